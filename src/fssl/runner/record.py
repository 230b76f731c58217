"""The record of a round: its line, its probes and its checkpoint."""

import time
from collections.abc import Callable, Iterable, Mapping
from typing import Any

import numpy as np
from numpy.typing import NDArray

from ..config import Config
from ..core.device import peak_memory
from ..core.evaluate import Test, Tester, headline_norm, make_score, model_facts, read_tested
from ..core.federation import Federation
from ..core.images import split_for_clients
from ..core.privacy import spent
from ..core.site_scores import SiteScore, site_facts
from ..engines.engine import Engine, Missing, RoundResult
from ..engines.named_tensors import fill, named, to
from ..engines.snapshot import flat, parts, with_parts
from ..probes.tally import Layout
from ..records.layout import BEST
from ..records.rounds import ALL_MEASURES, BestRound, Line, by_majority, rates, scalars
from ..records.saved_models import Models
from ..records.sealing import write_facts
from ..records.writer import RunWriter
from ..types import State, Weights, packed, unpacked

Measure = Callable[[Weights, int], dict[str, float]]  # a script's own metrics of a model after a round


class Choice:
    """The best round so far, and its model on the host if it is to be kept; part of every checkpoint."""

    def __init__(self, config: Config, lines: Iterable[Line], saved: Mapping[str, State]) -> None:
        self.progress, self._keeps = BestRound(config, lines), config.records.keep_best
        self.parts = {name: state for name, state in saved.items() if name.startswith(f"{BEST}.")}

    def take(self, line: Line, engine: Engine) -> None:
        """Update the choice with the round that the engine has just trained."""
        if self.progress.take(line) and self._keeps:
            model = named(**engine.model()._asdict())
            self.parts = {f"{BEST}.{line['round']}": {name: t.detach().cpu() for name, t in model.items()}}

    def moved(self, parts: Mapping[str, State]) -> None:
        """Replace tensors that are now stored on disk."""
        self.parts = {name: parts.get(name, state) for name, state in self.parts.items()}

    @property
    def model(self) -> State | None:
        return next(iter(self.parts.values()), None)


def record(
    folder: RunWriter, engine: Engine, result: RoundResult, choice: Choice, measure: Measure | None = None
) -> Line:
    """Write the record of a round: the line first, because the checkpoint relies on it."""
    begin = time.perf_counter()
    config = engine.federation.config
    line, probes = describe(engine.federation, engine.layout, result)
    if measure:
        line["metrics"] = measure(engine.federation.net.whole(engine.model()), result.round)
    folder.write_probes(result.round, probes)
    timing = {"seconds": result.seconds, "parts": result.parts, "record_seconds": time.perf_counter() - begin}
    line["timing"] = {**timing, **peak_memory(engine.federation.devices)}
    folder.append(line)
    choice.take(line, engine)
    is_last = result.round == config.rounds or choice.progress.is_over
    if result.round % config.records.checkpoint_every == 0 or is_last:
        save_state(folder, engine, choice)
    return line


def save_state(folder: RunWriter, engine: Engine, choice: Choice) -> None:
    """Write a checkpoint of the state after the last round; tensors too large for memory stay on disk only."""
    state, changed = flat(engine.snapshot), {**parts(engine.snapshot), **choice.parts}
    if moved := folder.checkpoint(engine.snapshot.round, state, changed):
        engine.snapshot = with_parts(engine.snapshot, moved)
        choice.moved(moved)


def write_result(folder: RunWriter, engine: Engine, choice: Choice) -> Line:
    """Write the models with their metadata, then the summary; return the summary."""
    federation, config, rounds = engine.federation, engine.federation.config, engine.snapshot.round
    write_facts(folder.folder.measures_file, final_tests(engine, choice))
    models, facts = Models(folder.folder), model_facts(config, federation.dataset.card)
    whole = federation.net.whole  # files contain ordinary networks
    tensors = {name: named(**whole(weights)._asdict()) for name, weights in engine.models().items()}
    models.write(tensors, config.server.ship, rounds, facts)
    if choice.model is not None and choice.progress.best:
        best = packed("", whole(unpacked("", to(choice.model, engine.device))))
        models.write_best(best, choice.progress.best.round, facts)
    private = {"privacy": found._asdict()} if (found := spent(config, rounds)) else {}
    return folder.finish(headline_norm(config), {**choice.progress.facts(stops=rounds < config.rounds), **private})


def final_tests(engine: Engine, choice: Choice) -> Line:
    """Return the full test of each final model, computed again so that a resumed run has it too."""
    federation, round = engine.federation, engine.snapshot.round
    config, headline = federation.config, headline_norm(federation.config)
    models = {name: (round, weights) for name, weights in engine.models().items()}
    splits, score = split_for_clients(config, federation.dataset), make_score(federation.net)
    testers = {client: federation.pools.tester(score, split, [headline]) for client, split in splits.items()}
    if choice.model is not None and choice.progress.best:
        models[BEST] = choice.progress.best.round, to(fill(engine.model(), choice.model), engine.device)
    return {
        "headline": headline,
        "class_names": list(federation.dataset.card.class_names),
        "models": {name: facts_of_model(engine, testers, *each) for name, each in models.items()},
    }


def facts_of_model(engine: Engine, testers: Mapping[int, Tester], round: int, weights: Weights) -> Line:
    """Return a model's round and tests: on all images, on the validation part, and on clients' own images."""
    held_out, num_classes = engine.validated(weights), engine.federation.task.num_classes
    validation = {"validation": held_out.numbers.facts()} if held_out else {}
    of_clients = {client: read_tested(test(weights), num_classes)[0] for client, test in testers.items()}
    clients = {
        str(client): {"images": int(own.answers.images.sum()), **own.numbers.facts()}
        for client, own in of_clients.items()
    }
    tested = engine.tested(weights)
    all_images = {**tested.numbers.facts(), **tested.answers.facts()}  # the second: classes, confusion, calibration
    return {"round": round, "test": all_images, **validation, **({"clients": clients} if clients else {})}


def describe(federation: Federation, layout: Layout, result: RoundResult) -> tuple[Line, dict[str, Any]]:
    """Return a line of the record, and the arrays for the probes file."""
    whole, last = (layout.unpack(result.tally[:, i]) for i in (0, 1))
    scores = [each for each in result.scores if isinstance(each, SiteScore)]
    known, headline = federation.holdings.unlabeled, headline_norm(federation.config)
    line = {
        "round": result.round,
        "clients": result.clients,
        **({} if (rate := federation.config.schedule.typical(result.round)) == 1 else {"rate": rate}),
        **list_left_out("missing", result.missing),
        **list_left_out("unmeasured", result.unmeasured),
        **list_left_out("unscored", [each for each in result.scores if isinstance(each, Missing)]),
        **headline_measures(result.tests[headline]),
        "test": {norm: test.facts() for norm, test in result.tests.items()},
        **smooth_facts(result.smooth_tests, headline),
        **server_facts(result.own_sums),
        **({"validation": result.validation.facts()} if result.validation else {}),
        **({"sites": found} if (found := site_facts(scores)) else {}),
        **({"ema_validation": result.smooth_validation.facts()} if result.smooth_validation else {}),
        **rates(scalars(whole), labeled_steps(federation, result.clients, whole)),
        **by_majority(whole, known if known is None else known[result.clients]),
        "sums": scalars(whole),
        "last_epoch": scalars(last),
    }
    arrays = {"clients": np.array(result.clients, dtype=np.int64)}
    for prefix, sums in (("", whole), ("last_epoch.", last), ("server.", result.own_sums)):
        arrays |= {prefix + name: np.ascontiguousarray(v, dtype=np.float32) for name, v in sums.items()}
    return line, arrays


def labeled_steps(federation: Federation, clients: list[int], sums: Mapping[str, NDArray[np.float64]]) -> float:
    """Return the number of steps of clients with labels; if clients hold their own images, their loss shows it."""
    if "l_s" not in sums:
        return 0.0
    has_labels = sums["l_s"] > 0
    if federation.holdings.labeled is not None:
        has_labels = np.array([federation.counts(client).labeled > 0 for client in clients])
    return float(sums["steps"][has_labels].sum())


def list_left_out(key: str, clients: list[Missing]) -> Line:
    """Return the clients with missing results, each with the reason; empty if none."""
    return {key: {str(client): reason for client, reason in clients}} if clients else {}


def server_facts(sums: Mapping[str, NDArray[np.float64]]) -> Line:
    """Return the loss and the number of steps of the server's training, if it trained."""
    if not sums:
        return {}
    return {"server_loss": float(sums["l_s"] / sums["steps"]), "server_steps": int(sums["steps"].round())}


def headline_measures(test: Test) -> Line:
    """Return the test measures at the top level of a line; other normalizations are below `test`."""
    return {name: value for name, value in test.facts().items() if name in ALL_MEASURES}


def smooth_facts(tests: dict[str, Test], headline: str) -> Line:
    """Return the tests of the smoothed model, if there is one."""
    if not tests:
        return {}
    return {
        **{f"ema_{name}": value for name, value in headline_measures(tests[headline]).items()},
        "ema_test": {norm: test.facts() for norm, test in tests.items()},
    }
