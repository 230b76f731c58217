"""A record as one small file, for publishing: `rounds.json.xz` holds the text of `rounds.jsonl`, byte for byte.

Lines become columns, because similar values compress well next to each other. A column that follows from the sums of
its lines, digit for digit, becomes a formula such as "l_u / steps".
"""

import json
from collections.abc import Mapping, Sequence
from itertools import groupby, permutations
from pathlib import Path
from typing import Any

from ..errors import UserError
from ..system.files import parse_json
from .rounds import ratio

SUMS, OVER = "sums", " / "
MOST_BYTES = 2**30  # bytes in a small form, since a file from elsewhere may claim to hold any number


def packed(text: bytes) -> bytes:
    """Return a record's small form; raise ValueError if that would not restore its text, as with a damaged line."""
    import lzma  # here, because some builds of Python lack it

    blocks = [with_formulas(columns([*alike])) for _, alike in groupby(map(parse_json, text.splitlines()), shape)]
    data = lzma.compress(json.dumps(blocks, separators=(",", ":")).encode())
    if unpacked(data) != text:
        raise ValueError("its text cannot be restored")
    return data


def unpacked(data: bytes) -> bytes:
    """Return the text of a record from its small form."""
    import lzma

    decompressor = lzma.LZMADecompressor()
    blocks = parse_json(decompressor.decompress(data, MOST_BYTES))
    if not decompressor.eof:
        raise ValueError("it is larger than any record")
    return b"".join(json.dumps(line).encode() + b"\n" for block in blocks for line in rows(block, sums_of(block)))


def read_packed(path: Path) -> bytes:
    """Return the text of a packed record; raise UserError if the file is damaged."""
    from lzma import LZMAError

    try:
        return unpacked(path.read_bytes())
    except (LZMAError, ValueError, TypeError, LookupError, AttributeError):  # all but the first: xz without a record
        raise UserError(f"{path} is damaged; restore the file") from None


def shape(value: Any) -> Any:
    """Return the keys of a table and of the tables in it, in order; None for any other value."""
    return [(key, shape(inner)) for key, inner in value.items()] if isinstance(value, dict) and value else None


def columns(values: Sequence[Any]) -> Any:
    """Return tables of one shape as one table of columns; other values stay a list."""
    if shape(values[0]) is None:
        return values
    return {key: columns([value[key] for value in values]) for key in values[0]}


def rows(table: Any, sums: Mapping[str, Sequence[Any]]) -> list[Any]:
    """Return the values that `columns` made a table of."""
    if isinstance(table, str):
        return quotients(*(sums[name] for name in table.split(OVER)))
    if isinstance(table, list):
        return table
    inner = [rows(column, sums) for column in table.values()]
    return [dict(zip(table, values, strict=True)) for values in zip(*inner, strict=True)]


def with_formulas(table: Any) -> Any:
    """Return a table of columns with a formula in place of each column that is a quotient of two sums."""
    sums = sums_of(table)
    known = {repr(quotients(sums[a], sums[b])): f"{a}{OVER}{b}" for a, b in permutations(sums, 2)}
    return {key: known.get(repr(column), column) for key, column in table.items()} if known else table


def sums_of(table: Any) -> dict[str, Sequence[float]]:
    """Return the columns of a block's sums; none if its lines have no such numbers."""
    sums = table.get(SUMS) if isinstance(table, dict) else None
    columns = sums.items() if isinstance(sums, dict) else ()
    return {name: column for name, column in columns if all(isinstance(value, int | float) for value in column)}


def quotients(totals: Sequence[float], weights: Sequence[float]) -> list[float | None]:
    """Return the mean of each line, as records have it."""
    return [ratio(total, weight) for total, weight in zip(totals, weights, strict=True)]
