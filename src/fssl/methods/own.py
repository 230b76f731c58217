"""Methods in files of one's own: the name `margin.py:margin_match` is that function of that file."""

import importlib.util
import re
import sys
from collections.abc import Callable
from functools import cache
from pathlib import Path
from types import ModuleType
from zlib import crc32

from ..errors import UserError
from .base import Method

PLACE = re.compile(r"([^+]+\.py):(\w+)(\+.*)?")  # file, function, plug-ins


def file_of(name: str) -> Path | None:
    """The file that a method's name leads to; most names are in a list instead."""
    found = PLACE.fullmatch(name)
    return Path(found[1]) if found else None


def builder_in(file: Path, name: str) -> Callable[..., Method]:
    """The function after the colon."""
    function = name.rpartition(":")[2]
    builder = vars(loaded(file.resolve())).get(function)
    if not callable(builder):
        raise UserError(f"method '{name}': there is no function '{function}' in {file}")
    return builder  # type: ignore[no-any-return]  # what it makes is checked when it has made it


@cache
def loaded(path: Path) -> ModuleType:
    """The file as a module, run once in this process."""
    name = f"own_method_{path.stem}_{crc32(bytes(path)):08x}"  # files of one name in two folders are two modules
    spec = importlib.util.spec_from_file_location(name, path)
    if not path.is_file() or spec is None or spec.loader is None:
        raise UserError(f"method.name: there is no file {path}")
    module = sys.modules[spec.name] = importlib.util.module_from_spec(spec)  # dataclasses look themselves up there
    try:
        spec.loader.exec_module(module)
    except Exception as error:
        del sys.modules[spec.name]
        raise UserError(f"{path} cannot be loaded: {type(error).__name__}: {error}") from error
    return module
