"""fssl: federated semi-supervised learning, exact, fast and reproducible."""

from importlib import import_module
from typing import TYPE_CHECKING, Any

from .system import silence as silence  # before any dependency

if TYPE_CHECKING:
    from .api import dataset, experiment, experiments, export, load, run
    from .report.runs import runs

__version__ = "0.1.0"
__all__ = ["dataset", "experiment", "experiments", "export", "load", "run", "runs"]


def __getattr__(name: str) -> Any:
    """Import lazily: PyTorch takes seconds, and neither `fssl --version` nor `fssl.runs` needs it."""
    if name not in __all__:
        raise AttributeError(f"module 'fssl' has no attribute '{name}'")
    return getattr(import_module(".report.runs" if name == "runs" else ".api", __name__), name)


def __dir__() -> list[str]:
    return [*globals(), *__all__]
