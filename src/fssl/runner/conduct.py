"""One run from configuration to summary: rounds from the engine, lines and checkpoints to the folder."""

import time
from collections.abc import Callable
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any, Protocol

import numpy as np
import torch

from ..config import Config, resolved
from ..core.federation import Federation
from ..core.parts import dataset_of, settled, uses_bf16
from ..data.sources import Dataset
from ..engines.engine import Engine, RoundResult, Snapshot, named, to
from ..engines.lanes import LocalEngine
from ..errors import RunError, UserError
from ..methods.names import with_defaults, with_settings
from ..probes.tally import Layout
from ..records.checkpoint import Saved
from ..records.rounds import by_majority, rates, scalars
from ..records.store import RunFolder
from ..system.user_code import digest_of
from ..types import Server, State, Weights, take

Line = dict[str, Any]


class Listener(Protocol):
    """Who wants to know how a run goes."""

    def started(self, config: Config, done: list[Line]) -> None: ...
    def round(self, line: Line) -> None: ...
    def say(self, text: str) -> None: ...


def run_experiment(
    config: Config,
    out: Path,
    listener: Listener,
    resume: bool = False,
    debug: bool = False,
    dataset: Dataset | None = None,
) -> Line:
    """Run or resume one cell; returns its summary."""
    dataset = dataset or dataset_of(config)
    config = written_out(settled(config, dataset))
    if RunFolder(out).deployment_file.is_file():
        raise UserError(f"{out} is a deployment's run, its clients' states are at the sites: use `fssl deploy start`")
    if config.compute.engine == "flower":
        simulate = flower_simulation()
        work = partial(conduct, config, out, listener, resume, dataset=dataset)
        summary: Line = simulate(config, out / "flower.log", work)
        return summary
    return conduct(config, out, listener, resume, lambda f: LocalEngine(f, debug=out if debug else None), dataset)


def conduct(
    config: Config,
    out: Path,
    listener: Listener,
    resume: bool,
    make: Callable[[Federation], Engine],
    dataset: Dataset | None = None,
) -> Line:
    """A run written out, with an engine of any kind, made once the folder is ours."""
    federation = Federation(config, dataset)
    config = federation.config
    folder = RunFolder(out, with_defaults)
    try:
        folder.open(config, resume)
        for file in config.own_files:
            folder.keep(file)
        engine = make(federation)
        if resume:
            engine.snapshot = resumed(folder, engine, listener)
        folder.write_env(federation.device, engine.snapshot.round)
        folder.write_partition(federation.labeled_counts, federation.unlabeled_counts)
        listener.started(config, folder.rounds())
        for result in engine.rounds(config.rounds):
            listener.round(record(folder, engine, result))
        return folder.finish(named(**engine.model()._asdict()), federation.headline)
    except (MemoryError, torch.OutOfMemoryError) as error:
        raise RunError(
            f"{out}: not enough memory on {federation.device.type}; fewer compute.lanes need less, and --resume goes on"
            " (with another train.batch it is another run)"
        ) from error
    except OSError as error:
        reason = error.strerror or str(error)
        raise RunError(f"{out}: {reason}; finished rounds are kept, and --resume goes on from there") from error
    finally:
        folder.close()


def check_engine(config: Config, debug: bool) -> None:
    """Refuse what the engine cannot do, before anything is computed."""
    compute, privacy = config.compute, config.privacy
    of_flower = {
        "compute.clients_per_gpu": compute.clients_per_gpu,
        "compute.ray_address": compute.ray_address,
        "privacy.clip": privacy.clip,
        "privacy.noise": privacy.noise or None,
    }
    if compute.engine == "local":
        for key, value in of_flower.items():
            if value is not None:
                raise UserError(f"{key} = {value!r}: only compute.engine = 'flower' has it (--engine flower)")
        return
    if debug:
        raise UserError("--debug checks every step of the local engine; leave out --engine flower")
    flower_simulation()


def flower_simulation() -> Any:
    """Flower's simulation engine, if it is installed."""
    try:
        from ..engines.flower.simulation import simulate
    except ImportError as error:
        raise UserError(f"--engine flower needs packages: pip install 'fssl[flower]' ({error})") from None
    return simulate


def written_out(config: Config) -> Config:
    """The same run with everything filled in that the dataset, the method's builders, files or the device decide."""
    method, model = config.method, config.model
    config = replace(
        config,
        train=replace(config.train, precision="bf16" if uses_bf16(config) else "fp32"),
        method=replace(method, digest=digest_of("method", method.name, method.digest)),
        model=replace(model, digest=digest_of("model", model.name, model.digest)),
    )
    return resolved(with_settings(config))


def resumed(folder: RunFolder, engine: Engine, listener: Listener) -> Snapshot:
    """The state after the last round that a checkpoint vouches for, or the beginning."""
    before = folder.rounds_file.is_file()
    saved = folder.resume_point(listener.say)
    if saved is None:
        if before:
            listener.say(f"{folder.path}: no checkpoint to go on from, starting with round 1")
        return engine.snapshot
    listener.say(f"resuming {folder.path} after round {saved.round}")
    return restore(engine.snapshot, saved._replace(tensors=to(saved.tensors, engine.device)))


def record(folder: RunFolder, engine: Engine, result: RoundResult) -> Line:
    """Write a round down, its line before the checkpoint that relies on it."""
    begin = time.perf_counter()
    config = engine.federation.config
    line, probes = describe(engine.federation, engine.layout, result)
    folder.write_probes(result.round, probes)
    line["timing"] = {"seconds": result.seconds, "record_seconds": time.perf_counter() - begin}
    folder.append(line)
    if result.round % config.records.checkpoint_every == 0 or result.round == config.rounds:
        folder.checkpoint(result.round, flat(engine.snapshot), parts(engine.snapshot))
    return line


def describe(federation: Federation, layout: Layout, result: RoundResult) -> tuple[Line, dict[str, Any]]:
    """A line of the record, and the arrays for the probes file."""
    whole, last = (layout.unpack(result.tally[:, i]) for i in (0, 1))
    known = federation.unlabeled_counts
    line = {
        "round": result.round,
        "clients": result.clients,
        **({"missing": {str(m.client): m.reason for m in result.missing}} if result.missing else {}),
        "accuracy": result.tests[federation.headline].accuracy,
        "test": {norm: test._asdict() for norm, test in result.tests.items()},
        **rates(scalars(whole)),
        **by_majority(whole, known if known is None else known[result.clients]),
        "sums": scalars(whole),
        "last_epoch": scalars(last),
    }
    arrays = {"clients": np.array(result.clients, dtype=np.int64)}
    for prefix, sums in (("", whole), ("last_epoch.", last)):
        arrays |= {prefix + name: np.ascontiguousarray(v, dtype=np.float32) for name, v in sums.items()}
    return line, arrays


def flat(snapshot: Snapshot) -> State:
    """What changes in every round."""
    return named(server=snapshot.server._replace(memory={}), velocity=snapshot.velocity)


def parts(snapshot: Snapshot) -> dict[str, State]:
    """What changes only when a client takes part: its own state, and what the server remembers of it."""
    groups = {"clients": snapshot.clients, "memory": snapshot.server.memory}
    return {f"{group}.{k}": state for group, states in groups.items() for k, state in states.items()}


def restore(like: Snapshot, saved: Saved) -> Snapshot:
    """The snapshot that `flat` and `parts` took apart."""

    def group(name: str) -> dict[int, State]:
        return {int(k.partition(".")[2]): state for k, state in saved.parts.items() if k.startswith(f"{name}.")}

    params, buffers = (take(f"server.weights.{kind}.", saved.tensors) for kind in Weights._fields)
    weights = Weights(in_order(like.server.weights.params, params), in_order(like.server.weights.buffers, buffers))
    server = Server(weights, in_order(like.server.extras, take("server.extras.", saved.tensors)), group("memory"))
    snapshot = Snapshot(saved.round, server, group("clients"), take("velocity.", saved.tensors))
    unknown = saved.tensors.keys() - flat(snapshot).keys()
    if unknown:
        raise UserError(f"the checkpoint does not fit: nothing is called {min(unknown)} here (another version?)")
    return snapshot


def in_order(like: State, tree: State, refusal: str = "the checkpoint does not fit") -> State:
    """The same entries in the order of another dict: files sort names, compiled steps expect the model's order."""
    for name, tensor in like.items():
        if name not in tree or tree[name].shape != tensor.shape:
            raise UserError(f"{refusal}: {name} is missing or has another shape (another version?)")
    return {name: tree[name] for name in like}
