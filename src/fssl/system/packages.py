"""Files that other Python packages carry, found without importing the package."""

from importlib.util import find_spec
from pathlib import Path


def package_folder(name: str) -> Path | None:
    """Return the folder of an installed package; None if it is not installed."""
    spec = find_spec(name)
    places = spec.submodule_search_locations if spec else None
    return Path(places[0]) if places else None
