"""fssl: federated semi-supervised learning, exact, fast and reproducible."""

from importlib import import_module
from typing import TYPE_CHECKING, Any

from .system import silence as silence  # before any dependency

if TYPE_CHECKING:
    from .api import dataset, estimate, experiment, experiments, export, load, run
    from .reading import compare, report, runs, tables

__version__ = "0.1.0"
__all__ = [
    "compare",
    "dataset",
    "estimate",
    "experiment",
    "experiments",
    "export",
    "load",
    "report",
    "run",
    "runs",
    "tables",
]
READING = ("compare", "report", "runs", "tables")  # what needs no PyTorch


def __getattr__(name: str) -> Any:
    """Import lazily: PyTorch takes seconds to import, and neither `fssl --version` nor reading run folders needs it."""
    if name not in __all__:
        raise AttributeError(f"module 'fssl' has no attribute '{name}'")
    return getattr(import_module(".reading" if name in READING else ".api", __name__), name)


def __dir__() -> list[str]:
    return [*globals(), *__all__]
