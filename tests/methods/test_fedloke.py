"""FedLoKe: what mixes, who labels for whom, and what leaves the client."""

from collections.abc import Callable
from dataclasses import replace

import pytest
import torch

from fssl.core.client import ClientResult, client_round
from fssl.core.federation import Federation
from fssl.engines.local import LocalEngine
from fssl.label.accept import EntropyThreshold, FixedThreshold
from fssl.methods.fedloke import OWN, FedLoKe, fedloke, kept
from fssl.methods.names import build_method
from fssl.types import Batch, Clock, Server, State, Weights, part, rest
from helpers.small import host_lane

Make = Callable[..., Federation]


def one_round(federation: Federation, state: State | None = None, round: int = 1) -> ClientResult:
    net, method = federation.net, federation.method
    server = method.init(net, net.first, federation.task)
    state = federation.new_state(server, 1) if state is None else state
    with torch.no_grad():
        return client_round(host_lane(federation), method, server, state, federation.plan(round, 1))


def batch_of(round: float) -> Batch:
    zero = torch.zeros(())
    return Batch({}, zero, zero, zero, Clock(torch.tensor(round), zero, zero), {})


def test_the_own_model_is_mixed_with_the_broadcast() -> None:
    """mu = 0.75: 0.75 * 4 + 0.25 * 8 = 5 for the parameter, 0.75 * (-2) + 0.25 * 2 = -1 for the statistic."""
    server = Server(Weights({"w": torch.tensor(8.0)}, {"m": torch.tensor(2.0)}), {})
    before = kept(Weights({"w": torch.tensor(4.0)}, {"m": torch.tensor(-2.0)}))
    local = FedLoKe(mu_own=0.75).start(server, before)
    assert part(OWN, local.weights) == Weights({"w": torch.tensor(5.0)}, {"m": torch.tensor(-1.0)})
    assert rest(OWN, local.weights) == server.weights
    assert {name: v.item() for name, v in local.velocity.items()} == {"w": 0, "own.w": 0}


def test_entropy_filter_by_hand() -> None:
    """H(0.99, 0.01) = 0.00995 + 0.04605 = 0.0560; H(0.97, 0.03) = 0.02955 + 0.10520 = 0.1347; H(1, 0) = 0."""
    p = torch.tensor([[0.99, 0.01], [0.97, 0.03], [1.0, 0.0]])
    assert EntropyThreshold(0.1).sure(p, {}).tolist() == [True, False, True]
    assert EntropyThreshold(0.05).sure(p, {}).tolist() == [False, False, True]
    assert fedloke(filter="confidence", tau=0.97).accept == FixedThreshold(0.97)


def test_each_model_labels_for_the_other() -> None:
    votes = FedLoKe(accept=FixedThreshold(0.8)).vote(torch.tensor([[0.0, 3.0]]), torch.tensor([[1.0, 0.0]]))
    assert votes["p_l"][0, 1].item() == pytest.approx(0.952574, abs=1e-6)  # 1 / (1 + e^-3)
    assert votes["p_g"][0, 0].item() == pytest.approx(0.731059, abs=1e-6)  # 1 / (1 + e^-1)
    assert (votes["sure_l"].item(), votes["sure_g"].item()) == (True, False)
    assert votes["target"] is votes["p_l"]  # the uploaded model learns from the own one
    assert votes["mask"] is votes["sure_l"]


def test_the_ramp_begins_at_nothing_and_ends_at_mu_u() -> None:
    """The released code counts rounds from 0."""
    method = FedLoKe(ramp_rounds=4, mu_u=2.0)
    assert [float(method.ramp(batch_of(t))) for t in (1.0, 2.0, 4.0, 5.0, 9.0)] == [0.0, 0.5, 1.5, 2.0, 2.0]
    assert replace(method, ramp_rounds=0).ramp(batch_of(1.0)) == 2.0


@pytest.mark.parametrize("passes", ["joint", "separate"])
def test_without_labels_for_each_other_the_own_model_leaves_no_trace(passes: str, make_federation: Make) -> None:
    """mu = 0 and no unlabeled term: both start as the broadcast, and the upload does not know the other model."""
    settings = ("method.name=fedloke", "method.mu_own=0", "method.mu_u=0", f"method.passes={passes}")
    federation = make_federation(*settings)
    server = federation.method.init(federation.net, federation.net.first, federation.task)
    strange = {name: t + 1 for name, t in federation.new_state(server, 1).items()}
    local = federation.method.start(server, strange)
    for model in (part(OWN, local.weights), rest(OWN, local.weights)):
        assert all(torch.equal(t, server.weights.params[name]) for name, t in model.params.items())
        assert all(torch.equal(t, server.weights.buffers[name]) for name, t in model.buffers.items())
    federation.method = replace(federation.method, mu_own=0.5)  # type: ignore[call-arg]
    one, other = one_round(federation), one_round(federation, strange)
    assert all(torch.equal(t, other.upload.weights.params[name]) for name, t in one.upload.weights.params.items())
    assert not torch.equal(one.state["own.params.body.0.weight"], other.state["own.params.body.0.weight"])


def test_the_upload_learns_from_the_own_model(make_federation: Make) -> None:
    federation = make_federation(
        "method.name=fedloke", "method.filter=confidence", "method.tau=0.3", "method.ramp_rounds=0"
    )
    server = federation.method.init(federation.net, federation.net.first, federation.task)
    strange = {name: t * 0.5 for name, t in federation.new_state(server, 1).items()}
    one, other = one_round(federation), one_round(federation, strange)
    assert not torch.equal(one.upload.weights.params["body.0.weight"], other.upload.weights.params["body.0.weight"])


def test_only_the_shared_model_is_sent_and_only_the_own_one_kept(make_federation: Make) -> None:
    federation = make_federation("method.name=fedloke")
    engine = LocalEngine(federation)
    names = set(federation.net.first.params)
    result = one_round(federation)
    assert set(result.upload.weights.params) == names
    assert {name for name in result.state if name.startswith("own.params.")} == {f"own.params.{n}" for n in names}
    list(engine.rounds(2))
    assert set(engine.model().params) == names
    first, second = (engine.snapshot.clients[k]["own.params.body.0.weight"] for k in list(engine.snapshot.clients)[:2])
    assert not torch.equal(first, second)


def test_bad_settings_are_named() -> None:
    with pytest.raises(ValueError, match=r"method.mu_own = 1.5: expected a number from 0 to 1"):
        build_method("fedloke", {"mu_own": 1.5})
    with pytest.raises(ValueError, match="needs a method with pseudo-labels"):
        build_method("fedloke+sage", {})
