"""The audit trails of a site and a server: which messages came and left, and what was in them."""

from collections.abc import Callable, Iterable
from functools import lru_cache
from itertools import islice
from pathlib import Path
from typing import TYPE_CHECKING, Any

from flwr.app import ArrayRecord, Context, Message, RecordDict

from ...errors import error_text
from ...records.audit import TRAIL, append
from ...system.files import parse_json
from .identity import AdmittedSite, assign
from .internals import as_node
from .messages import TENSORS, SiteError

if TYPE_CHECKING:
    from flwr.serverapp import Grid

MOST_RECORDS, MOST_NAMES, LONGEST_NAME = 20, 500, 100  # of a message, in a line of a trail
COUNTS = ("client", "round", "num_samples", "batches")  # facts of our records; others may hold more than a number


def audited(message: Message, context: Context, call_next: Callable[[Message, Context], Message]) -> Message:
    """Answer a message as usual, and record at a site what came, what left, or why the order was rejected."""
    if "folder" not in context.node_config:  # a simulation
        return call_next(message, context)
    trail = Path(str(context.node_config["folder"])) / TRAIL
    facts = {"run": str(message.metadata.run_id), "kind": message.metadata.message_type}
    try:
        append(trail, "came", **facts, holds=summarize_message(message.content, trail))
    except OSError as error:
        raise SiteError(f"the site's audit trail cannot be written ({error_text(error)})") from error
    try:
        reply = call_next(message, context)
    except Exception as error:
        append(trail, "rejected", **facts, reason=str(error))
        raise
    append(trail, "left", **facts, holds=summarize_message(reply.content, trail))
    return reply


def summarize_message(content: RecordDict, trail: Path) -> dict[str, Any]:
    """Return the records of a message: bytes, numbers of tensors, and counts. No values, and no names of files."""
    return {name[:LONGEST_NAME]: size(name, record, trail) for name, record in islice(content.items(), MOST_RECORDS)}


def size(name: str, record: Any, trail: Path) -> dict[str, Any]:
    """Return the bytes of a record, its tensors, and the counts in it."""
    if not isinstance(record, ArrayRecord):
        sent = len(record.deflate())  # Flower's count_bytes fails for an empty text
        return {"bytes": sent, **{key: record[key] for key in COUNTS if key in record}}
    names = tensor_names(record)
    note_names(trail, name[:LONGEST_NAME], tuple(each[:LONGEST_NAME] for each in names[:MOST_NAMES]))
    return {"bytes": record.count_bytes(), "tensors": len(names)}


def tensor_names(record: ArrayRecord) -> list[str]:
    """Return the names of the tensors, from the head of the file that holds them; others have one array each."""
    if [*record] != [TENSORS]:
        return sorted(map(str, record))
    content = record[TENSORS].numpy().ravel()
    try:
        end = 8 + int.from_bytes(content[:8].tobytes(), "little")
        return sorted(parse_json(content[8:end].tobytes()).keys() - {"__metadata__"})
    except (ValueError, TypeError, AttributeError):  # other code rejects it
        return []


@lru_cache(maxsize=64)
def note_names(trail: Path, record: str, names: tuple[str, ...]) -> None:
    """Record which tensors a record has, once while they stay the same."""
    append(trail, "tensors", record=record, names=list(names))


class AuditedGrid:
    """A server's connection to its nodes, which records all messages, by site."""

    def __init__(self, grid: "Grid", trail: Path, run: str, sites: list[AdmittedSite]) -> None:
        self._grid, self._trail, self._run, self._sites = grid, trail, run, sites
        self._names: dict[int, str] = {}

    def __getattr__(self, name: str) -> Any:
        return getattr(self._grid, name)

    def push_messages(self, messages: Iterable[Message]) -> Iterable[str]:
        messages = list(messages)
        for message in messages:
            self._write("left", message, message.metadata.dst_node_id)
        return self._grid.push_messages(messages)

    def pull_messages(self, numbers: Iterable[str]) -> Iterable[Message]:
        replies = list(self._grid.pull_messages(numbers))
        for reply in replies:
            self._write("came", reply, reply.metadata.src_node_id)
        return replies

    def _write(self, what: str, message: Message, node: int) -> None:
        if node not in self._names and self._sites:
            found = assign(self._sites, map(as_node, self._grid.get_nodes())).nodes
            self._names |= {online.number: self._sites[client].name for client, online in found.items()}
        held = (
            {"error": message.error.reason}
            if message.has_error()
            else {"holds": summarize_message(message.content, self._trail)}
        )
        site = self._names.get(node, f"node {node}")
        append(self._trail, what, run=self._run, site=site, kind=message.metadata.message_type, **held)
