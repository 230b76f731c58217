"""Two federated rounds of more methods against their plain references, as in `test_two_rounds.py`."""

from collections.abc import Iterator
from typing import Any, NamedTuple

import others
import plain
import pytest
import torch
from test_two_rounds import PROTOCOLS, SETTINGS
from torch import nn
from watch import CLASSES, DIGITS, SEED, Difference, Observed, difference, first_beyond, images, our_name, together

from fssl.data.sources import Dataset
from fssl.seeds import stream


class Case(NamedTuple):
    """A method, its reference, and the settings of both."""

    method: str
    reference: type[others.FixMatch]
    settings: dict[str, Any]
    digits: float = DIGITS


FREE = {"ema": 0.6, "saf": 0.3, "lowest": 0.5, "highest": 0.65}
DB = {"tau": 0.5, "ema": 0.3, "dma": "released", "passes": "separate"}
PROXY = {"tau": 0.9, "beta": 0.8, "ema": 0.7, "tuning_epochs": 0, "tuning_lr": 0.05, "tuning_batch": 5}
LOKE = {"mu_own": 0.7, "delta": 0.6, "ramp_rounds": 3}
DURE = {"tau": 0.6, "student_rate": 0.7, "passes": "joint"}
LABEL_2M = {"kl_weight": 0.5, "pull": 2.0, "burn_in": 0, "passes": "separate"}
MATCH = {"tau": 0.7, "lr": 0.01, "lam_s": 3.0, "lam_iccs": 0.5, "lam_l2": 2.0, "lam_l1": 0.001, "helper_interval": 1}
UDA = {"tau": 0.5, "temperature": 0.6, "tsa": "none"}
USUAL = {"tau": SETTINGS["tau"], "mu_u": SETTINGS["mu_u"]}
WITHOUT = {"freematch": {"tau"}, "fedloke": {"tau"}, "fedmatch": {"mu_u"}}  # settings that they do not have
CASES = {
    "fedprox+fixmatch": Case("fedprox+fixmatch", others.FedProx, {"mu_prox": 0.3}),
    "freematch": Case("freematch", others.FreeMatch, FREE),
    "freematch+sage": Case("freematch+sage", others.FreeMatch, FREE),
    "fedlabel": Case("fedlabel", others.FedLabel, {"kl_weight": 0.6}),
    "fedlabel+sage": Case("fedlabel+sage", others.FedLabel, {"kl_weight": 0.6}),
    "feddb": Case("feddb", others.FedDB, {**DB, "online": False}),
    "feddb, online": Case("feddb", others.FedDB, {**DB, "online": True, "dma": "off", "passes": "joint"}),
    "feddb+sage": Case("feddb+sage", others.FedDB, DB),
    "proxyfl, not tuned": Case("proxyfl", others.ProxyFL, PROXY),
    "proxyfl": Case("proxyfl", others.ProxyFL, {**PROXY, "tuning_epochs": 3}, 1e-5),  # tuning has float32
    "proxyfl+sage": Case("proxyfl+sage", others.ProxyFL, PROXY),
    "fedloke": Case("fedloke", others.FedLoKe, {**LOKE, "passes": "separate"}),
    "fedloke, joint": Case("fedloke", others.FedLoKe, {**LOKE, "passes": "joint"}),
    "feddure": Case("feddure", others.FedDure, DURE),
    "feddure, separate": Case("feddure", others.FedDure, {**DURE, "passes": "separate"}),
    "feddure+sage": Case("feddure+sage", others.FedDure, DURE),
    "fedlabel-2m": Case("fedlabel-2m", others.FedLabel2m, LABEL_2M),
    "fedlabel-2m, burn-in": Case("fedlabel-2m", others.FedLabel2m, {**LABEL_2M, "burn_in": 1, "passes": "joint"}),
    "fedlabel-2m+sage": Case("fedlabel-2m+sage", others.FedLabel2m, LABEL_2M),
    "uda": Case("uda", others.UDA, UDA),
    "uda, annealed": Case("uda", others.UDA, {**UDA, "tsa": "exp", "tsa_rounds": 2}),
    "uda+sage": Case("uda+sage", others.UDA, UDA),
    "fedmatch, 1 helper": Case("fedmatch", others.FedMatch, {**MATCH, "helpers": 1}),
    "fedmatch, 2 helpers": Case("fedmatch", others.FedMatch, {**MATCH, "helpers": 2}),
}


def observe(case: Case, protocol: str, data: Dataset) -> Observed:
    host = case.method.partition("+")[0]
    own = {k: v for k, v in {**USUAL, **case.settings}.items() if k not in WITHOUT.get(host, ())}
    values = [f"method.{k}={str(v).lower()}" for k, v in own.items()]
    values += [] if host == "fedmatch" else [f"train.lr={SETTINGS['lr']}"]
    values += ["train.local_epochs=2"] if host == "proxyfl" else []  # it counts classes in the last one
    return Observed([f"method.name={case.method}", f"protocol={protocol}", *values], data)


def reference(case: Case, protocol: str, observed: Observed) -> others.FixMatch:
    model, numbers = plain.ResNet8(CLASSES, 1), dict(case.settings)
    if case.reference is others.ProxyFL:
        model.feat_proj, model.proxy_proj = nn.Linear(64, 64), nn.Linear(64, 64, bias=False)
        streams = [stream(SEED, "server", round) for round in (1, 2)]
        epochs = range(numbers["tuning_epochs"])
        numbers["orders"] = [[rng.permutation(3 * CLASSES).tolist() for _ in epochs] for rng in streams]
    names = [name for name in model.state_dict() if not name.endswith("num_batches_tracked")]
    first = {k.removeprefix("sigma."): t for k, t in together(observed.first.weights).items()}
    state = {name: first[our_name(name)] for name in names}
    if case.reference is others.FedMatch:
        kernels = [name for name in names if state[name].ndim > 1]
        assert all(torch.equal(first[f"psi.{our_name(name)}"], 0.2 * state[name]) for name in kernels)
        numbers["sigma"], numbers["psi"] = dict(state), {name: 0.2 * state[name] for name in kernels}
        numbers["noise"] = observed.first.extras["fedmatch.probe"].double()
    model.double().load_state_dict(state, strict=False)
    settings = plain.Settings(case.method, protocol, **{**SETTINGS, "tau": numbers.get("tau", SETTINGS["tau"])})
    return case.reference(model, settings, case.method.endswith("+sage"), numbers)


def differences(observed: Observed, method: others.FixMatch) -> Iterator[Difference]:
    """Every number that both sides have, as the reference computes it."""
    traces, after, step = iter(observed.traces), iter(observed.after), 0
    for done in method.train(observed.visits):
        if isinstance(done, others.Step):
            step, trace = step + 1, next(traces)
            ours, theirs = {**trace.votes, **trace.losses}, dict(done.shown)
            theirs.pop("prox", None)  # FedProx's term is not recorded
        else:
            now = next(after)
            ours = {**together(now.server.weights), **now.server.extras, **now.weights, "accuracy": now.accuracy}
            theirs = {our_name(k): t for k, t in others.state_of(done.model).items()} | done.server
            theirs = {our_name(k): t for k, t in theirs.items() if our_name(k) in ours}
            theirs["accuracy"] = plain.accuracy(done.model, *observed.test_images())
        yield from (difference(what, step, ours[what], value) for what, value in theirs.items())
    assert next(traces, None) is None


@pytest.fixture(scope="module")
def data() -> Dataset:
    return images()


@pytest.mark.slow
@pytest.mark.parametrize("protocol", PROTOCOLS)
@pytest.mark.parametrize("name", CASES)
def test_engine_and_reference_agree(name: str, protocol: str, data: Dataset) -> None:
    case = CASES[name]
    observed = observe(case, protocol, data)
    mask = observed.votes("mask") > 0
    found = list(differences(observed, reference(case, protocol, observed)))
    assert first_beyond(iter(found), case.digits) is None
    assert {"p_l", "mask", "target", "l_s", "conv.weight", "bn.running_var", "accuracy"} <= {d.what for d in found}
    assert min(mask.sum(), (~mask).sum()) >= 10  # else equal numbers would prove little
