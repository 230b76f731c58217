"""A partition in a file: JSON with the training rows of each client, labeled and unlabeled."""

import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np

from ..errors import UserError, shortened
from ..system.files import check_unchanged, expand_home, parse_json, short_sum, write_atomic
from .partition import Partition

ROWS_SHOWN = 3  # rows shown of those without a client
SORTS = ("labeled", "unlabeled")
COPY = " (a run folder keeps a copy: partition.file = 'RUN/split.json')"


def save_partition(partition: Partition, file: Path) -> None:
    """Write a partition for `partition.file`, a line for each client."""
    clients = [
        json.dumps({sort: getattr(partition, sort)[k].tolist() for sort in SORTS})
        for k in range(len(partition.labeled))
    ]
    write_atomic(file, ('{"clients": [\n' + ",\n".join(clients) + "\n]}\n").encode())


def read_partition(file: Path, num_images: int, expected: str | None = None) -> tuple[Partition, str]:
    """Return the partition in a file and the file's checksum; reject a file that is not the recorded one.

    Args:
        file: A file as `save_partition` writes it.
        num_images: Size of the training set; each of its images belongs to one client.
        expected: The checksum in a record.
    """
    content = read_bytes(file, expected)
    digest = short_sum(content)
    check_unchanged(f"partition.file = '{file}'", digest, "partition.digest", expected, "use", COPY)
    try:
        clients = clients_in(content)
        check_owners(clients, num_images)
    except UserError as error:
        raise UserError(f"partition.file = '{file}': {error}") from None
    labeled, unlabeled = (tuple(np.array(client[sort], np.int64) for client in clients) for sort in SORTS)
    return Partition(labeled, unlabeled), digest


def read_bytes(file: Path, expected: str | None) -> bytes:
    try:
        if (place := expand_home(file)).exists() and not (place.is_file() or place.is_dir()):
            raise UserError(f"partition.file = '{file}' is not a regular file")
        return place.read_bytes()
    except OSError as error:
        copy = COPY if expected else ""
        raise UserError(f"partition.file = '{file}' cannot be read: {error.strerror}{copy}") from None


def clients_in(content: bytes) -> list[dict[str, list[int]]]:
    """Return the clients listed in a file; raise UserError if it has another form than the documented one."""
    try:
        whole = parse_json(content)
    except ValueError:
        raise UserError("expected a JSON file") from None
    clients = whole.get("clients") if isinstance(whole, dict) and len(whole) == 1 else None
    if not isinstance(clients, list) or not clients:
        raise UserError('expected {"clients": [...]}, a list with an entry for each client')
    for number, client in enumerate(clients):
        check_client(number, client)
    if not any(client["labeled"] for client in clients):
        raise UserError("no client has a labeled image")
    return clients


def check_client(number: int, client: Any) -> None:
    if not isinstance(client, dict) or set(client) != set(SORTS):
        raise UserError(f'client {number}: expected {{"labeled": [...], "unlabeled": [...]}}')
    for sort in SORTS:
        rows = client[sort]
        if not isinstance(rows, list) or not all(type(row) is int for row in rows):
            raise UserError(f"client {number}, '{sort}': expected a list of whole numbers")
    if not any(client.values()):
        raise UserError(f"client {number} has no image")


def check_owners(clients: Sequence[dict[str, list[int]]], num_images: int) -> None:
    """Check that each image of the training set belongs to one client, once."""
    owner: dict[int, int] = {}
    for number, client in enumerate(clients):
        for row in (*client["labeled"], *client["unlabeled"]):
            if not 0 <= row < num_images:
                raise UserError(f"client {number} has row {row}, expected 0 to {num_images - 1}")
            if row in owner:
                both = f"clients {owner[row]} and {number}" if owner[row] != number else f"client {number}, twice"
                raise UserError(f"row {row} belongs to {both}")
            owner[row] = number
    if len(owner) < num_images:
        missing = [str(row) for row in range(num_images) if row not in owner]
        raise UserError(f"{len(missing)} of {num_images} images have no client: rows {shortened(missing, ROWS_SHOWN)}")
