"""fssl: federated semi-supervised learning, exact, fast and reproducible."""

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from .api import dataset, experiment, experiments, export, load, model, run, runs

__version__ = "0.1.0"
__all__ = ["dataset", "experiment", "experiments", "export", "load", "model", "run", "runs"]


def __getattr__(name: str) -> Any:
    """Loaded when they are asked for: the framework takes seconds, and `fssl --version` needs none of it."""
    if name not in __all__:
        raise AttributeError(f"module 'fssl' has no attribute '{name}'")
    from . import api

    return getattr(api, name)


def __dir__() -> list[str]:
    return [*globals(), *__all__]
