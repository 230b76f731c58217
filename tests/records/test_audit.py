"""The audit trail: appended to by several processes, checked, and honest about what a chain can show."""

import json
import stat
from concurrent.futures import ThreadPoolExecutor
from hashlib import sha256
from pathlib import Path

import pytest

from fssl.deploy.trails import details
from fssl.records.audit import LONGEST, append, read_trail


@pytest.fixture
def trail(tmp_path: Path) -> Path:
    file = tmp_path / "audit.jsonl"
    for number in range(1, 6):
        append(file, "left", round=number, holds={"upload": {"bytes": 100 * number}})
    return file


def test_a_chain_is_what_it_says(trail: Path) -> None:
    """The digest by hand: SHA-256 of the digest before and of the line without its own, keys in order."""
    found = read_trail(trail)
    assert found.faults == []
    assert [(entry.number, entry.what, entry.facts["round"]) for entry in found.entries] == [
        (n, "left", n) for n in range(1, 6)
    ]
    first, second = map(json.loads, trail.read_text().splitlines()[:2])
    digest = second.pop("digest")
    text = json.dumps(second, sort_keys=True, separators=(",", ":"))
    assert digest == sha256((first["digest"] + text).encode()).hexdigest()
    assert stat.S_IMODE(trail.stat().st_mode) == 0o600


@pytest.mark.parametrize(
    ("change", "faults"),
    [
        (lambda lines: [*lines[:2], lines[2].replace("300", "301"), *lines[3:]], ["line 3: entry 3 was changed"]),
        (lambda lines: [*lines[:2], *lines[3:]], ["line 3 is entry 4 after entry 2"]),
        (lambda lines: lines[1:], ["line 1 is entry 2 after entry 0"]),
        (
            lambda lines: [lines[0], lines[2], lines[1], *lines[3:]],
            ["line 2 is entry 3 after entry 1", "line 3 is entry 2 after entry 3", "line 4 is entry 4 after entry 2"],
        ),
        (lambda lines: [*lines[:2], *lines[1:]], ["line 3 is entry 2 after entry 2"]),
        (lambda lines: [*lines[:4], "{", lines[4]], ["line 5 is damaged"]),
    ],
    ids=["changed", "removed", "cut at the beginning", "moved", "twice", "damaged"],
)
def test_what_was_done_to_a_trail_is_found(trail: Path, change: object, faults: list[str]) -> None:
    assert callable(change)
    trail.write_text("".join(f"{line}\n" for line in change(trail.read_text().splitlines())))
    found = read_trail(trail).faults
    assert len(found) == len(faults)
    assert all(said.startswith(fault) for said, fault in zip(found, faults, strict=True))


def test_half_a_line_of_a_power_failure_is_named_and_the_chain_continues(trail: Path) -> None:
    trail.write_bytes(trail.read_bytes() + b'{"number": 6, "ti')
    append(trail, "left", round=6)
    found = read_trail(trail)
    assert found.faults == ["line 6 is damaged"]
    assert [entry.number for entry in found.entries] == [1, 2, 3, 4, 5, 6]


def test_many_writers_make_one_chain(tmp_path: Path) -> None:
    file = tmp_path / "audit.jsonl"
    with ThreadPoolExecutor(8) as pool:
        list(pool.map(lambda number: append(file, "came", writer=number), range(40)))
    found = read_trail(file)
    assert (len(found.entries), found.faults) == (40, [])
    assert {entry.facts["writer"] for entry in found.entries} == set(range(40))


def test_a_text_from_outside_cannot_fill_the_disk_or_break_a_line(tmp_path: Path) -> None:
    file = tmp_path / "audit.jsonl"
    append(file, "rejected", reason=f"a\nb\x1b[2J{10**6 * 'x'}")
    append(file, "left")
    found = read_trail(file)
    assert found.faults == []
    assert len(found.entries[0].facts["reason"]) == LONGEST
    assert "\n" not in details(found.entries[0]).partition("reason ")[0]
