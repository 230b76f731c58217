"""Two federated rounds of more methods against their plain references, as in `test_two_rounds.py`."""

import inspect
import re
from collections.abc import Iterator

import others
import plain
import pytest
import torch
from others import CASES, Case
from test_two_rounds import METHODS as METHODS_IN_PLAIN
from test_two_rounds import PROTOCOLS, SETTINGS
from torch import nn
from watch import CLASSES, HERE, SEED, Difference, Observed, difference, first_beyond, images, our_name, together

from fssl.data.sources import Dataset
from fssl.methods.names import METHODS, split_name
from fssl.seeds import stream

# As many images of both kinds, so that none is shown twice.
OF_TWO_KINDS = ["partition.labels=knowing-clients", "partition.labeled_clients=2", "train.unlabeled_ratio=1"]
USUAL = {"tau": SETTINGS["tau"], "mu_u": SETTINGS["mu_u"]}


def observe(case: Case, protocol: str, data: Dataset) -> Observed:
    host = split_name(case.method)[0]
    has = inspect.signature(METHODS[host]).parameters
    usual = {k: v for k, v in USUAL.items() if k in has and (host, k) != ("fedloke", "tau")}  # it filters by entropy
    values = [f"method.{k}={str(v).lower()}" for k, v in {**usual, **case.settings}.items()]
    values += [] if host == "fedmatch" else [f"train.lr={SETTINGS['lr']}"]
    values += OF_TWO_KINDS if issubclass(case.reference, others.OfTwoKinds) else []
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
    if case.reference is others.SemiAnAgg:
        found = {k.partition(".")[2].partition(".")[2]: t for k, t in observed.first.extras.items()}
        numbers["anchor"] = loaded(plain.ResNet8(CLASSES, 1), found).eval()
    if case.reference is others.TwinSight:
        twin = {k.removeprefix("twin."): t for k, t in first.items() if k.startswith("twin.")}
        layers = [nn.Linear(64, 512), nn.BatchNorm1d(512), nn.ReLU(), nn.Linear(512, 256)]
        project = {k.removeprefix("project."): t for k, t in twin.items() if k.startswith("project.")}
        numbers["twin"], numbers["projector"] = loaded(plain.ResNet8(CLASSES, 1), twin), nn.Sequential(*layers).double()
        numbers["projector"].load_state_dict(project, strict=False)
    model.double().load_state_dict(state, strict=False)
    settings = plain.Settings(case.method, protocol, **{**SETTINGS, "tau": numbers.get("tau", SETTINGS["tau"])})
    return case.reference(model, settings, "+sage" in case.method, numbers)


def loaded(model: plain.ResNet8, found: dict[str, torch.Tensor]) -> plain.ResNet8:
    """The reference's network with weights of the engine's names, as far as there are some."""
    state = {name: found[our_name(name)] for name in model.state_dict() if our_name(name) in found}
    model.double().load_state_dict(state, strict=False)
    return model


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


def test_the_page_says_which_methods_have_no_reference() -> None:
    page = (HERE.parents[1] / "docs" / "methods.md").read_text()
    named = re.findall("`(.+?)`", page.split("covers all methods but")[1].partition(", most of them")[0])
    covered = {split_name(name)[0] for name in (*(case.method for case in CASES.values()), *METHODS_IN_PLAIN)}
    assert named == [name for name in METHODS if name not in covered]


@pytest.fixture(scope="module")
def data() -> Dataset:
    return images()


@pytest.mark.slow
@pytest.mark.parametrize("protocol", PROTOCOLS)
@pytest.mark.parametrize("name", CASES)
def test_engine_and_reference_agree(name: str, protocol: str, data: Dataset) -> None:
    case = CASES[name]
    observed = observe(case, protocol, data)
    mask = observed.votes("mask") >= 0.5  # a mask may be of weights
    found = list(differences(observed, reference(case, protocol, observed)))
    assert first_beyond(iter(found), case.digits) is None
    assert {"p_l", "mask", "target", "l_s", "conv.weight", "bn.running_var", "accuracy"} <= {d.what for d in found}
    assert min(mask.sum(), (~mask).sum()) >= 10  # else equal numbers would prove little
