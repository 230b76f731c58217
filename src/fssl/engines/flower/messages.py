"""fssl's records in Flower's messages: payload and job to a client, upload and tally, or sums, to the server."""

import math
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from typing import Any, NamedTuple

import numpy as np
import torch
from flwr.app import Array, ArrayRecord, ConfigRecord, MessageType, MetricRecord, RecordDict
from safetensors.torch import load, save
from torch import Tensor

from ...core.client import ClientResult
from ...core.dry_step import sketch
from ...core.federation import Federation
from ...core.site_scores import PARTS, SiteScore, Sums
from ...core.static_norm import NormSums
from ...errors import RunError, error_text
from ...types import Payload, State, Upload
from ..named_tensors import FormError, fill, named

MEASURE = f"{MessageType.QUERY}.measure"  # the type of a message that asks for statistics of a model
SCORE = f"{MessageType.QUERY}.score"  # the type of one that asks how good a model is on a client's own images
TENSORS = "safetensors"  # the name of a record's only array: the bytes of such a file
MOST_SAMPLES = 10**8  # images: no client's weight in a mean is larger
MessageParts = dict[str, ArrayRecord | MetricRecord | ConfigRecord]


class Job(NamedTuple):
    """An order to a client; its numbers follow from the configuration, the round and its number."""

    config: str  # TOML
    round: int
    client: int
    run: str = ""  # names the run where a site keeps the client's state; else the message has the state
    counted: int = 0  # the client's last round that counted: it continues with the state of that round
    resumable: int = 0  # the earliest round that a resumed server may continue from


class SiteError(RunError):
    """An error at a site that is reported to the server."""


class BadUploadError(FormError):
    """An upload that cannot be used, and why."""


def pack(tensors: State) -> ArrayRecord:
    """Return all tensors as one array: Flower transfers each array of a record by separate requests."""
    data = save({name: t.contiguous() for name, t in tensors.items()})
    return ArrayRecord({TENSORS: Array(np.frombuffer(data, np.uint8))})


def unpack(record: ArrayRecord | MetricRecord | ConfigRecord) -> State:
    if not isinstance(record, ArrayRecord):
        raise TypeError("expected arrays")
    return load(record[TENSORS].numpy().tobytes())


class Forms(NamedTuple):
    """Names, shapes and types of the sent tensors, without values."""

    payload: Payload
    upload: Payload
    tally: Tensor
    sums: State


def message_forms(federation: Federation, client: int = 0) -> Forms:
    """Return the forms, which the method itself defines, as for the layout of the tally."""
    size, net = federation.layout.size, federation.net
    counts = federation.counts(client)
    with sketch(federation.method, net, federation.task, counts, client) as (payload, local):
        upload = federation.method.upload(client, payload, local, counts)
        optimizer = federation.server_optimizer
        payload = optimizer.broadcast(payload, optimizer.start(payload.weights.params))
        sums = {name: payload.weights.buffers[name] for name in net.running}
        return Forms(payload, Payload(upload.weights, upload.extras), torch.zeros(2, size), sums)


def order(job: Job, payload: Payload, state: State | None) -> RecordDict:
    """Return the message to a client."""
    records: MessageParts = {
        "job": ConfigRecord(job._asdict()),
        "payload": pack(named(**payload._asdict())),
    }
    if state:
        records["state"] = pack(state)
    return RecordDict(records)


def read_job(content: RecordDict) -> Job:
    values: dict[str, Any] = dict(content["job"].items())
    return Job(**{field: values[field] for field in Job._fields})


def answer(job: Job, result: ClientResult, with_state: bool) -> RecordDict:
    """Return the reply. It contains the client's state only if the order did."""
    upload = result.upload
    facts: dict[str, Any] = {"client": job.client, "round": job.round, "num_samples": upload.num_samples}
    records: MessageParts = {
        "facts": ConfigRecord(facts),
        "upload": pack(named(**Payload(upload.weights, upload.extras)._asdict())),
        "tally": pack({"tally": result.tally}),
    }
    if with_state and result.state:
        records["state"] = pack(result.state)
    return RecordDict(records)


def read_result(content: RecordDict, job: Job, forms: Forms) -> ClientResult:
    """Return a client's result, if it has the expected form and only finite numbers."""
    check_parts(content, "facts", "upload", "tally")
    samples = check_weight(content["facts"], job)
    with from_outside():
        flat, tally = unpack(content["upload"]), unpack(content["tally"])
        state = unpack(content["state"]) if "state" in content and not job.run else {}  # a site keeps its own
    check_names(flat, named(**forms.upload._asdict()))
    check_names(tally, {"tally": forms.tally})
    sent: Payload = fill(forms.upload, flat)
    check_finite({**flat, **tally})
    upload = Upload(job.client, sent.weights, samples, sent.extras)
    return ClientResult(upload, state, {}, fill({"tally": forms.tally}, tally)["tally"])


def sums_answer(job: Job, sums: NormSums) -> RecordDict:
    """Return the answer to a request for a measurement."""
    facts: dict[str, Any] = {"client": job.client, "round": job.round, "batches": sums.batches}
    return RecordDict({"facts": ConfigRecord(facts), "sums": pack(sums.total)})


def read_sums(content: RecordDict, job: Job, forms: Forms) -> NormSums:
    """Return a client's measured sums, if they are valid."""
    check_parts(content, "facts", "sums")
    batches = check_weight(content["facts"], job, "batches", least=1)
    with from_outside():
        flat = unpack(content["sums"])
    total: State = fill(forms.sums, flat)
    check_finite(flat)
    return NormSums(total, batches)


def score_answer(job: Job, score: SiteScore) -> RecordDict:
    """Return the answer to a request for scores: three numbers for each part of the images."""
    facts: dict[str, Any] = {"client": job.client, "round": job.round, "num_samples": 0}
    sums: dict[str, Any] = {part: [float(number) for number in sums] for part, sums in score.parts.items()}
    return RecordDict({"facts": ConfigRecord(facts), "score": ConfigRecord(sums)})


def read_score(content: RecordDict, job: Job) -> SiteScore:
    """Return a client's score of a model, if its numbers are consistent."""
    check_parts(content, "facts", "score")
    check_weight(content["facts"], job)
    scores: dict[str, Any] = dict(content["score"].items())
    return SiteScore(job.client, {part: read_part(part, numbers) for part, numbers in scores.items()})


def read_part(part: str, numbers: object) -> Sums:
    if part not in PARTS or not isinstance(numbers, list) or [*map(type, numbers)] != [float] * len(Sums._fields):
        raise BadUploadError(f"its score has a part {part[:100]!r} that is unknown")
    images, right, loss = numbers
    if not (1 <= images <= MOST_SAMPLES and 0 <= right <= images and math.isfinite(loss)):
        raise BadUploadError(f"its score of the {part} part is {numbers}")
    return Sums(int(images), int(right), loss)


def check_parts(content: RecordDict, *names: str) -> None:
    for name in names:
        if name not in content:
            raise BadUploadError(f"its message has no '{name}'")


def check_names(sent: State, expected: State) -> None:
    """Reject unexpected tensors: they would only fill the server's memory."""
    if unknown := sorted(sent.keys() - expected.keys()):
        raise BadUploadError(f"it has {len(unknown)} unexpected tensors, such as {unknown[0][:100]}")


@contextmanager
def from_outside() -> Iterator[None]:
    """Turn any error in reading bytes from outside into BadUploadError, so that it cannot end the run."""
    try:
        yield
    except Exception as error:
        raise BadUploadError(f"it cannot be read: {error_text(error)}") from None


def check_weight(facts: Mapping[str, Any], job: Job, key: str = "num_samples", least: int = 0) -> int:
    """Return a client's weight in the mean; reject one of another client or round."""
    client, round, number = (facts.get(name) for name in ("client", "round", key))
    if (client, round) != (job.client, job.round):
        raise BadUploadError(f"it is from client {client!r}, round {round!r}")
    if type(number) is not int or not least <= number <= MOST_SAMPLES:
        raise BadUploadError(f"{key} is {number!r}, expected a whole number from {least} to {MOST_SAMPLES:.0e}")
    return number


def check_finite(tensors: State) -> None:
    for name, tensor in tensors.items():
        if tensor.is_floating_point() and not bool(torch.isfinite(tensor).all()):
            raise BadUploadError(f"{name} has a value that is not finite")
