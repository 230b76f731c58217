"""A failed training step: report its round, client and step, save its inputs, and replay it."""

import shlex
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any, NamedTuple, TypeVar

import numpy as np
import torch
from safetensors import SafetensorError
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves

from ..config import Config, as_tables, parse, parse_toml, to_toml
from ..core.client import StepError, at
from ..core.dry_step import sketch
from ..core.experiment import prepare
from ..core.federation import OWN_NUMBER, Federation
from ..errors import RunError, UserError, error_text
from ..probes.tally import Layout
from ..records.layout import CONFIG, NO_START, kept_code, kept_split, read_settings
from ..records.tensors import sealed, unseal
from ..system.files import write_atomic
from ..system.user_code import user_file
from ..types import Draw, Local, Payload
from .named_tensors import FormError, fill, named, to

SAVED = "failed-step.safetensors"
T = TypeVar("T")


class NotFiniteError(RunError):
    """Training diverged: a value is not finite."""


class ClientError(RunError):
    """The failed round of a client, with the step if it is known; the cause is the original error."""

    client: int
    where: str


class SavedStep(NamedTuple):
    """A failed step, ready to be replayed."""

    federation: Federation
    where: str
    payload: Payload
    local: Local
    draw: Draw


def checked(step: Callable[[Payload, Local, torch.Tensor, T], tuple[Local, torch.Tensor]], layout: Layout) -> Any:
    """Return a step, or its learning half, that checks every result: each loss, then the weights."""

    def run(payload: Payload, local: Local, tally: torch.Tensor, given: T) -> tuple[Local, torch.Tensor]:
        after, new = step(payload, local, tally, given)
        for name, total in layout.unpack(new.cpu().numpy()).items():
            if not np.isfinite(total).all():
                raise NotFiniteError(f"{name} is not finite")
        for name, value in named(params=after.weights.params, buffers=after.weights.buffers).items():
            if not bool(torch.isfinite(value).all()):
                raise NotFiniteError(f"{name} has a value that is not finite")
        return after, new

    return run


def client_error(round: int, client: int, error: Exception) -> ClientError:
    """Return an error with its round, client and step."""
    cause = error.__cause__ if isinstance(error, StepError) and error.__cause__ else error
    reason = str(cause) if isinstance(cause, RunError) else error_text(cause)
    # Without a step: from a captured graph, or before the first step.
    step = f", step {int(error.draw.clock.step) + 1}" if isinstance(error, StepError) else ""
    where = f"round {round}, {name_of(client)}{step}"
    made = ClientError(f"{where}: {reason}")
    made.client, made.where = client, where
    return made


@contextmanager
def failure_saved(config: Config, folder: Path | None) -> Iterator[None]:
    """Save the inputs of a failed step in the folder, and add the command that replays the step to the error."""
    # Around a whole round and not in a lane: of several steps that fail at once, the reported one is saved.
    try:
        yield
    except ClientError as error:
        if folder is None or not isinstance(error.__cause__, StepError):
            raise
        save_step(config, folder / SAVED, error.where, error.client, error.__cause__)
        again = shlex.join(["fssl", "replay", str(folder / SAVED)])
        raise ClientError(f"{error}; `{again}` repeats this step") from error.__cause__


def name_of(client: int) -> str:
    return "the server" if client <= OWN_NUMBER else f"client {client}"


def save_step(config: Config, path: Path, where: str, client: int, failed: StepError) -> None:
    """Write a step's inputs and the run's settings."""
    tensors = {k: t.cpu() for k, t in named(payload=failed.payload, local=failed.local, draw=failed.draw).items()}
    facts = {"where": where, "client": client, "config": to_toml(as_tables(config))}
    write_atomic(path, sealed(tensors, facts))


def load_step(path: Path, trust: bool = False) -> SavedStep:
    """Load a saved step with its federation; the images are loaded again.

    Args:
        path: The file.
        trust: Whether to run code and read images that the file names outside its run folder.
    """
    if not path.is_file():
        raise UserError(f"there is no file '{path}'; a run writes {SAVED} into its folder when a step fails")
    try:
        tensors, facts = unseal(path)
        if facts is None:
            raise ValueError("it has no checksum")
        config, client, where = parse(parse_toml(str(facts["config"]))), int(facts["client"]), str(facts["where"])
    except (OSError, SafetensorError, LookupError, TypeError, ValueError, OverflowError) as error:
        raise UserError(f"{path} is not a saved step ({error_text(error)})") from None
    federation = Federation(prepare(with_kept_files(config, path, trust)))
    if client <= OWN_NUMBER and config.server_epochs:
        federation = federation.of_server()
    elif not 0 <= client < len(federation.sites):
        raise UserError(f"{path} does not fit its settings: there is no client {client}")
    draw = at(federation.plan(1, client).draw, 0)
    with sketch(federation.method, federation.net, federation.task, federation.counts(client), client) as parts:
        like = {"payload": parts[0], "local": parts[1], "draw": draw}
    try:
        found = to(fill(like, tensors), federation.device)
    except FormError as error:
        raise UserError(f"{path} does not fit its settings: {error}") from None
    return SavedStep(federation, where, found["payload"], found["local"], found["draw"])


def with_kept_files(config: Config, path: Path, trust: bool) -> Config:
    """Return the settings with the run folder's copies of code and partition in place of the files that they name."""
    folder, part, method, model = path.parent, config.partition, config.method, config.model
    copies = {
        "partition.file": (part.file, kept_split(folder, part.digest)),
        "method.name": (user_file(method.name) and method.name, kept_code(folder, method.name, method.digest, True)),
        "model.name": (user_file(model.name) and model.name, kept_code(folder, model.name, model.digest, True)),
    }
    recorded = read_settings(folder) if (folder / CONFIG).is_file() else {}
    named = {"data": ("dir", config.data.dir), "model": ("start", None if model.start == NO_START else model.start)}
    foreign = {key: given for key, (given, copy) in copies.items() if given and not copy}
    foreign |= {f"{k}.{key}": v for k, (key, v) in named.items() if v and v != recorded.get(k, {}).get(key)}
    if foreign and not trust:
        key, given = next(iter(foreign.items()))
        raise UserError(
            f"{path}: its {key} = '{given}' differs from its run folder's; check it, then trust it", "trust"
        )
    file, name, network = (str(copy or given) if given else None for given, copy in copies.values())
    return replace(
        config,
        partition=replace(part, file=file),
        method=replace(method, name=name or method.name),
        model=replace(model, name=network or model.name),
    )


class FirstBad(TorchDispatchMode):
    """A mode that raises an error at the first operation whose result has a bad value, as `is_bad` defines it."""

    def __init__(self, is_bad: Callable[[torch.Tensor], torch.Tensor], reason: str) -> None:
        super().__init__()  # type: ignore[no-untyped-call]  # torch's own constructor
        self.is_bad, self.reason = is_bad, reason

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        made = func(*args, **(kwargs or {}))
        for value in tree_leaves(made):
            has_values = isinstance(value, torch.Tensor) and value.is_floating_point() and not value.is_meta
            if has_values and bool(self.is_bad(value).any()):
                raise NotFiniteError(f"{self.reason}; it begins in {func}")
        return made


def replay_step(saved: SavedStep) -> None:
    """Replay a saved step, uncompiled and with every result checked, so that its error is raised again.

    If a result is not finite, the error names the first operation that gives such a value.
    """
    try:
        take(saved)
    except NotFiniteError as error:
        for is_bad in (torch.isnan, torch.isinf):  # infinite values are often intended, as in masks
            with FirstBad(is_bad, str(error)):
                take(saved)
        raise


def take(saved: SavedStep) -> None:
    step = checked(saved.federation.steps.step(), saved.federation.layout)
    tally = torch.zeros(2, saved.federation.layout.size, device=saved.federation.device)
    with torch.no_grad():
        step(saved.payload, saved.local, tally, saved.draw)
