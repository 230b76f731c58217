"""Facts in JSON files that hold a check of their own, so that a changed digit is noticed."""

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from ..system.files import read_json, short_sum, write_atomic


def write_facts(path: Path, facts: Mapping[str, Any], indent: int | None = None) -> None:
    write_atomic(path, json.dumps({**facts, "check": sum_of(facts)}, indent=indent) + "\n")


def read_facts(path: Path) -> dict[str, Any]:
    """The facts in a file; `{}` if it is missing or damaged."""
    facts = read_json(path)
    return facts if facts.pop("check", None) == sum_of(facts) else {}


def sum_of(facts: Mapping[str, Any]) -> str:
    return short_sum(json.dumps(facts, sort_keys=True).encode())
