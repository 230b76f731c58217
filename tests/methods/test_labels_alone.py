"""train.labels_alone: clients that know every label of theirs train on labels alone."""

from collections.abc import Callable

import numpy as np
import pytest
import torch

from fssl.catalog.facts import registry
from fssl.core.federation import Federation
from fssl.engines.engine import RoundResult
from fssl.engines.local import LocalEngine
from fssl.errors import UserError

Make = Callable[..., Federation]
KNOWING = ("partition.labels=knowing-clients", "partition.kind=iid", "train.clients_per_round=4")
ALONE = "train.labels_alone=true"
KINDS = {name: facts.traits.labels_alone for name, facts in registry().methods.items() if facts.traits}
TAKE_IT, ANYWAY, REFUSING = ([name for name in KINDS if KINDS[name] == kind] for kind in ("yes", "always", "no"))


def accepting(name: str) -> tuple[str, ...]:
    """The method, with a threshold at which even a first round labels images."""
    return (f"method.name={name}", *["method.tau=0.1"] * ("tau" in registry().declared_by(name)))


def test_the_lists_are_what_they_say() -> None:
    assert {"sage", "fixmatch-lpl", "feddb", "feddure-full"} < {*TAKE_IT}
    assert {"fedavg", "fedprox", "fedavg-sl", "cbafed", "rscfed"} <= {*ANYWAY}
    assert {"fedmatch", "fedloke", "fedlabel-2m", "semifl", "flfl"} <= {*REFUSING}


def first_round(make_federation: Make, *settings: str) -> tuple[LocalEngine, RoundResult]:
    engine = LocalEngine(make_federation("partition.clients=4", *KNOWING, *settings))
    (result,) = engine.rounds(1)
    return engine, result


@pytest.mark.parametrize("name", [*TAKE_IT, "freematch+sage", "proxyfl+sage"])
@pytest.mark.slow
def test_only_clients_with_unlabeled_images_label_some(name: str, make_federation: Make) -> None:
    """Two of four know all their labels; of the others the first round is as it was, step for step."""
    settings = ("partition.labeled_clients=2", *accepting(name))
    sums = []
    for more in ((), (ALONE,)):
        engine, result = first_round(make_federation, *settings, *more)
        assert result.clients == [0, 1, 2, 3]
        assert np.isfinite(result.tally).all()
        sums.append(engine.layout.unpack(result.tally[:, 0]))
    whole, alone = sums
    assert (alone["l_s"] > 0).tolist() == [True, True, False, False]
    for name in ("l_u", "n_valid"):
        assert (whole[name] > 0).all()
        assert (alone[name] > 0).tolist() == [False, False, True, True]
    for name, values in whole.items():
        assert np.array_equal(alone[name][2:], values[2:]), name


@pytest.mark.parametrize(
    ("name", "off"),
    [
        ("sage", ["method.mu_u=0"]),
        ("fixmatch-gpl", ["method.mu_u=0"]),
        ("fedlabel", ["method.mu_u=0"]),
        ("freematch", ["method.mu_u=0", "method.saf=0"]),
    ],
)
@pytest.mark.slow
def test_if_all_know_their_labels_nothing_but_labels_is_learned(
    name: str, off: list[str], make_federation: Make
) -> None:
    """The limit: a method without its unlabeled terms, bit for bit."""
    method = ("partition.labeled_clients=4", *accepting(name))
    alone, without, whole = (
        first_round(make_federation, *method, *more)[0].model().params for more in ([ALONE], off, [])
    )
    assert all(torch.equal(alone[k], without[k]) for k in alone)
    assert not all(torch.equal(alone[k], whole[k]) for k in alone)


@pytest.mark.slow
@pytest.mark.parametrize("name", [name for name in ANYWAY if name != "fedavg-sl"])
def test_methods_that_do_so_anyway_do_not_change(name: str, make_federation: Make) -> None:
    method = ("partition.labeled_clients=2", f"method.name={name}")
    a, b = (first_round(make_federation, *method, *more)[0].model().params for more in ([], [ALONE]))
    assert all(torch.equal(a[k], b[k]) for k in a)


@pytest.mark.parametrize("name", REFUSING)
def test_methods_that_do_not_ask_are_rejected(name: str, make_federation: Make) -> None:
    method = (*KNOWING, "partition.labeled_clients=2", f"method.name={name}")
    with pytest.raises(UserError, match=f"^method '{name}': train.labels_alone has no effect"):
        make_federation(*method, ALONE)


@pytest.mark.parametrize("labels", ["all-clients", "server"])
def test_it_is_rejected_without_every_label(labels: str, make_federation: Make) -> None:
    with pytest.raises(UserError, match=f"with partition.labels = '{labels}'.*: no client knows every label"):
        make_federation(f"partition.labels={labels}", ALONE)


def test_clients_that_hold_only_labeled_images_know_every_label(make_federation: Make) -> None:
    settings = ("partition.clients=4", "partition.labeled_clients=1", "train.clients_per_round=4", "method.tau=0.1")
    engine = LocalEngine(make_federation("method.name=sage", *settings, ALONE))
    (result,) = engine.rounds(1)
    assert (engine.layout.unpack(result.tally[:, 0])["l_u"] > 0).tolist() == [False, True, True, True]
