"""TOML in and out: presets by name, files by path, values after --set."""

import json
import os
import tomllib
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from ..errors import UserError, unknown

PRESETS = Path(__file__).parents[1] / "presets"


def read_toml(source: str) -> dict[str, Any]:
    """Tables of a preset (by name) or of a TOML file (by path)."""
    is_preset = source in presets() and not os.path.isfile(source)  # which never raises, as Path's own may
    path = PRESETS / f"{source}.toml" if is_preset else Path(source)
    if os.path.isdir(path):
        if next(path.glob("**/config.toml"), None):
            raise UserError(f"'{source}' holds several runs; give the command that began them, with --resume to go on")
        raise UserError(f"'{source}' is a folder; expected a TOML file or a preset ({', '.join(presets())})")
    try:
        return load_toml(path, source)
    except FileNotFoundError:
        raise unknown("preset or configuration file", source, presets()) from None


def load_toml(path: Path, name: str) -> dict[str, Any]:
    """Tables of a file that errors call by this name; one that is not there is the caller's to explain."""
    try:
        return tomllib.loads(path.read_text("utf-8-sig"))  # some editors begin with a mark
    except FileNotFoundError:
        raise
    except OSError as error:
        raise UserError(f"{name}: cannot be read: {error.strerror}") from None
    except UnicodeDecodeError as error:
        raise UserError(f"{name}: not UTF-8 text (byte {error.start + 1}); save it as UTF-8") from None
    except tomllib.TOMLDecodeError as error:
        raise UserError(f"{name}: not valid TOML: {error}") from None


def presets() -> list[str]:
    return sorted(str(p.relative_to(PRESETS).with_suffix("")) for p in PRESETS.rglob("*.toml"))


def toml_value(text: str) -> Any:
    try:
        return tomllib.loads(f"v = {text}")["v"]
    except tomllib.TOMLDecodeError:
        if text[:1] in ("[", "{", '"'):
            raise UserError(f"{text}: a bracket or a quote is missing, or a string in it is not quoted") from None
        return text


def to_toml(tables: Mapping[str, Any]) -> str:
    """TOML text of plain tables, scalars first."""
    lines = assignments({k: v for k, v in tables.items() if not isinstance(v, Mapping)})
    for name, table in tables.items():
        if isinstance(table, Mapping):
            lines += ["", f"[{name}]", *assignments(table)]
    return "\n".join(lines) + "\n"


def assignments(table: Mapping[str, Any]) -> list[str]:
    return [f"{key} = {json.dumps(value, ensure_ascii=False)}" for key, value in table.items()]
