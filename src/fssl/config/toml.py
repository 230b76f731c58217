"""TOML in and out: presets by name, files by path, values after --set."""

import json
import os
import tomllib
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from ..errors import UserError, nearest, unknown
from ..system.files import TOO_DEEP, is_too_deep

PRESETS = Path(__file__).parents[1] / "presets"


def read_toml(source: str) -> dict[str, Any]:
    """Return the tables of a preset (by name) or of a TOML file (by path)."""
    if not source or "\0" in source:  # no valid file name
        raise unknown("preset or configuration file", source, presets())
    is_preset = source in presets() and not os.path.isfile(source)  # isfile never raises, while Path.is_file may
    path = PRESETS / f"{source}.toml" if is_preset else Path(source)
    if os.path.isdir(path):
        if os.path.isfile(settings := path / "config.toml"):
            raise UserError(f"'{source}' is a run folder; give the preset or file that started it, or {settings}")
        if next(path.glob("**/config.toml"), None):
            raise UserError(
                f"'{source}' contains several runs; to resume them, repeat the command that started them", "resume"
            )
        raise UserError(f"'{source}' is a folder; expected a TOML file or a preset ({', '.join(presets())})")
    try:
        tables = load_toml(path, source)
    except FileNotFoundError:
        raise not_found(source) from None
    if not tables:
        raise UserError(f"{source}: contains no settings; to use the defaults, write for example seed = 7")
    return tables


def not_found(source: str, resumes: bool = False) -> UserError:
    """Return the error for settings that were not found; a path or a run to resume is rarely a misspelled preset."""
    bare = source.removesuffix(".toml")
    if bare != source:  # preset names have no suffix
        return UserError(f"there is no file {source}" + (f"; the preset is called {bare}" if bare in presets() else ""))
    folders = {name.rpartition("/")[0] for name in presets()} - {""}
    is_path = "/" in source and source.partition("/")[0] not in folders
    if (is_path or resumes) and not nearest(source.lower(), presets()):
        return UserError(f"'{source}': no such run folder, file or preset (see `fssl presets`)")
    return unknown("preset or configuration file", source, presets())


def load_toml(path: Path, name: str) -> dict[str, Any]:
    """Return the tables of a file, which errors call `name`; raise FileNotFoundError if it is missing."""
    try:
        return parse_toml(path.read_text("utf-8-sig"))  # some editors write a byte order mark
    except FileNotFoundError:
        raise
    except OSError as error:
        raise UserError(f"{name}: cannot be read: {error.strerror}") from None
    except UnicodeDecodeError as error:
        raise UserError(f"{name}: not UTF-8 text (byte {error.start + 1}); save it as UTF-8") from None
    except ValueError as error:
        raise UserError(f"{name}: not valid TOML: {error}") from None


def parse_toml(text: str) -> dict[str, Any]:
    """Parse TOML text; raise ValueError if it is invalid or nested too deeply."""
    try:
        tables = tomllib.loads(text)
    except RecursionError:
        raise ValueError(TOO_DEEP) from None
    if is_too_deep(tables):
        raise ValueError(TOO_DEEP)
    return tables


def presets() -> list[str]:
    return sorted(str(p.relative_to(PRESETS).with_suffix("")) for p in PRESETS.rglob("*.toml"))


def toml_value(text: str) -> Any:
    """Parse the value after --set: TOML, otherwise a string."""
    try:
        return parse_toml(f"v = {text}")["v"]
    except ValueError as error:
        if text[:1] in ("[", "{", '"'):
            likely = "a bracket or a quote is missing, or a string in it is not quoted"
            raise UserError(f"{text}: {error if str(error) == TOO_DEEP else likely}") from None
        return text


def to_toml(tables: Mapping[str, Any]) -> str:
    """Format plain tables as TOML, scalars first."""
    lines = assignments({k: v for k, v in tables.items() if not isinstance(v, Mapping)})
    for name, table in tables.items():
        if isinstance(table, Mapping):
            lines += ["", f"[{name}]", *assignments(table)]
    return "\n".join(lines) + "\n"


def assignments(table: Mapping[str, Any]) -> list[str]:
    return [f"{key} = {toml_text(value)}" for key, value in table.items()]


def toml_text(value: Any) -> str:
    """Format a value as TOML: JSON, with DEL escaped, which TOML does not allow."""
    return json.dumps(value, ensure_ascii=False).replace("\x7f", r"\u007f")
