"""A round written down: its line, its probes, its checkpoint."""

import time
from collections.abc import Mapping
from typing import Any

import numpy as np
from numpy.typing import NDArray

from ..core.evaluate import Test, Tested, model_facts
from ..core.federation import Federation
from ..engines.engine import Engine, RoundResult
from ..engines.snapshot import flat, parts, with_parts
from ..engines.tensors import named
from ..probes.tally import Layout
from ..records.rounds import MEASURES, by_majority, rates, scalars
from ..records.store import RunFolder

Line = dict[str, Any]


def record(folder: RunFolder, engine: Engine, result: RoundResult) -> Line:
    """Write a round down, its line before the checkpoint that relies on it."""
    begin = time.perf_counter()
    config = engine.federation.config
    line, probes = describe(engine.federation, engine.layout, result)
    folder.write_probes(result.round, probes)
    line["timing"] = {"seconds": result.seconds, "record_seconds": time.perf_counter() - begin}
    folder.append(line)
    if result.round % config.records.checkpoint_every == 0 or result.round == config.rounds:
        save_state(folder, engine)
    return line


def save_state(folder: RunFolder, engine: Engine) -> None:
    """Write a checkpoint of the state after the last round; what has no room in memory stays there alone."""
    folder.checkpoint(engine.snapshot.round, flat(engine.snapshot), parts(engine.snapshot))
    if moved := folder.moved_parts():
        engine.snapshot = with_parts(engine.snapshot, moved)


def write_result(folder: RunFolder, engine: Engine) -> Line:
    """Write the model, with what its user must know of it, and the summary."""
    federation = engine.federation
    facts = model_facts(federation.config, federation.dataset.card)
    folder.write_measures(measured(engine))
    models = {name: named(**weights._asdict()) for name, weights in engine.models().items()}
    return folder.finish(models, federation.config.server.ship, federation.headline, facts)


def measured(engine: Engine) -> Line:
    """The test of each final model once more, with all that it tells: a resumed run has it just the same."""
    federation, round = engine.federation, engine.snapshot.round
    tests = {name: {"round": round, "test": facts_of_test(engine.tested(m))} for name, m in engine.models().items()}
    classes = list(federation.dataset.card.class_names)
    return {"headline": federation.headline, "class_names": classes, "models": tests}


def facts_of_test(tested: Tested) -> Line:
    """Single numbers of a test, then its classes, confusion matrix and calibration."""
    return {**tested.numbers._asdict(), **tested.answers.facts()}


def describe(federation: Federation, layout: Layout, result: RoundResult) -> tuple[Line, dict[str, Any]]:
    """A line of the record, and the arrays for the probes file."""
    whole, last = (layout.unpack(result.tally[:, i]) for i in (0, 1))
    known = federation.unlabeled_counts
    line = {
        "round": result.round,
        "clients": result.clients,
        **({"missing": {str(m.client): m.reason for m in result.missing}} if result.missing else {}),
        **headline_facts(result.tests[federation.headline]),
        "test": {norm: test._asdict() for norm, test in result.tests.items()},
        **smooth_facts(result.smooth_tests, federation.headline),
        **server_facts(result.own_sums),
        **rates(scalars(whole)),
        **by_majority(whole, known if known is None else known[result.clients]),
        "sums": scalars(whole),
        "last_epoch": scalars(last),
    }
    arrays = {"clients": np.array(result.clients, dtype=np.int64)}
    for prefix, sums in (("", whole), ("last_epoch.", last), ("server.", result.own_sums)):
        arrays |= {prefix + name: np.ascontiguousarray(v, dtype=np.float32) for name, v in sums.items()}
    return line, arrays


def server_facts(sums: Mapping[str, NDArray[np.float64]]) -> Line:
    """The loss and the number of steps of the server's own training, if it trained."""
    if not sums:
        return {}
    return {"server_loss": float(sums["l_s"] / sums["steps"]), "server_steps": int(sums["steps"].round())}


def headline_facts(test: Test) -> Line:
    """The measures of a test that stand in the line themselves; of another normalization they are below `test`."""
    return {name: value for name, value in test._asdict().items() if name in MEASURES}


def smooth_facts(tests: dict[str, Test], headline: str) -> Line:
    """The tests of the smoothed model, if there is one."""
    if not tests:
        return {}
    return {
        **{f"ema_{name}": value for name, value in headline_facts(tests[headline]).items()},
        "ema_test": {norm: test._asdict() for norm, test in tests.items()},
    }
