"""The server's optimizer: by hand, in its limits, and through a run that is resumed."""

from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch.utils._pytree import tree_flatten

from fssl.catalog.describe import num_bytes
from fssl.core.federation import Federation
from fssl.core.server_optimizer import MOMENTUM, SQUARE, VELOCITY, ServerOptimizer
from fssl.data.sources import Dataset
from fssl.engines.local import LocalEngine
from fssl.engines.snapshot import Snapshot, flat, parts, restore
from fssl.errors import UserError
from fssl.methods import METHODS
from fssl.methods.base import broadcast_velocity
from fssl.records.checkpoint import Saved
from fssl.types import take
from helpers.small import refusal

Make = Callable[..., Federation]
ONE = torch.ones(())


def same(a: Any, b: Any) -> bool:
    return all(torch.equal(x, y) for x, y in zip(tree_flatten(a)[0], tree_flatten(b)[0], strict=True))


def walk(rule: ServerOptimizer, means: list[float], reach: float = 1.0) -> tuple[list[float], dict[str, torch.Tensor]]:
    """One parameter that begins at 1, and the clients' means in turn."""
    params = {"w": torch.tensor(1.0, dtype=torch.float64)}
    state, places = rule.start(params), []
    for mean in means:
        params, state = rule.step(params, {"w": torch.tensor(mean, dtype=torch.float64)}, state, torch.tensor(reach))
        places.append(params["w"].item())
    return places, state


# By hand.


def test_momentum_by_hand() -> None:
    """u_1 = 1 - 0.8 = 0.2; w_1 = 0.8. u_2 = 0.1 + (0.8 - 0.6) = 0.3; w_2 = 0.5. u_3 = 0.15 + 0 = 0.15; w_3 = 0.35."""
    places, state = walk(ServerOptimizer("momentum", lr=1.0, momentum=0.5), [0.8, 0.6, 0.5])
    assert places == pytest.approx([0.8, 0.5, 0.35], abs=1e-12)
    assert state[f"{MOMENTUM}w"].item() == pytest.approx(0.15)


def test_momentum_is_sgd_of_torch_on_the_way_to_the_mean() -> None:
    """SemiFL's server: SGD, lr 1, momentum 0.5, gradient w - mean."""
    torch.manual_seed(0)
    means = [{"w": torch.randn(5).double()} for _ in range(50)]
    for lr, momentum in ((1.0, 0.5), (0.3, 0.9), (2.0, 0.0)):
        weights = torch.nn.Parameter(torch.zeros(5).double())
        theirs = torch.optim.SGD([weights], lr=lr, momentum=momentum)
        rule, params = ServerOptimizer("momentum", lr, momentum), {"w": torch.zeros(5).double()}
        state = rule.start(params)
        for mean in means:
            weights.grad = weights.detach() - mean["w"]
            theirs.step()
            params, state = rule.step(params, mean, state, ONE)
        torch.testing.assert_close(params["w"], weights.detach(), rtol=1e-12, atol=1e-12)


def test_adam_by_hand() -> None:
    """d = 0.2: m = 0.1 * 0.2, v = 0.99 * 1e-6 + 0.01 * 0.04; then d = w - 0.5."""
    rule = ServerOptimizer("adam", lr=0.1, momentum=0.9, beta2=0.99, epsilon=1e-3)
    places, state = walk(rule, [0.8, 0.5])
    m, v = 0.02, 0.99e-6 + 0.0004
    w = 1 - 0.1 * m / (v**0.5 + 1e-3)
    assert places[0] == pytest.approx(w, abs=1e-12)
    d = w - 0.5
    m, v = 0.9 * m + 0.1 * d, 0.99 * v + 0.01 * d * d
    assert places[1] == pytest.approx(w - 0.1 * m / (v**0.5 + 1e-3), abs=1e-12)
    assert (state[f"{MOMENTUM}w"].item(), state[f"{SQUARE}w"].item()) == pytest.approx((m, v), abs=1e-12)


def test_the_broadcast_velocity_by_hand() -> None:
    """Rounds that move by 0.2 and 0.1, at a rate of 0.1 for 4 steps: velocities of 0.5 and 0.25."""
    rule = ServerOptimizer("mean", momentum=0.8, broadcasts=True)
    places, state = walk(rule, [0.8, 0.7], reach=0.4)
    assert places == [0.8, 0.7]
    assert state[f"{VELOCITY}w"].item() == pytest.approx(0.8 * 0.2 * 0.5 + 0.2 * 0.25)


def test_clients_at_one_velocity_have_it_broadcast() -> None:
    """Where every round moves the model as a constant velocity would, the mean of velocities goes to it."""
    rule, v, reach = ServerOptimizer("mean", momentum=0.5, broadcasts=True), 3.0, 0.4
    _, state = walk(rule, [1 - reach * v * n for n in range(1, 40)], reach)
    assert state[f"{VELOCITY}w"].item() == pytest.approx(v, rel=1e-5)


# Limits.


def ran(federation: Federation, rounds: int = 3) -> Snapshot:
    engine = LocalEngine(federation)
    list(engine.rounds(rounds))
    engine.close()
    return engine.snapshot


@pytest.mark.parametrize("name", METHODS)
@pytest.mark.slow
def test_no_momentum_and_whole_steps_are_the_mean(name: str, make_federation: Make) -> None:
    settings = (f"method.name={name}", "train.steps_per_round=2")
    limit = ("server.optimizer=momentum", "server.momentum=0", "server.lr=1")
    mean = ran(make_federation(*settings))
    assert same(ran(make_federation(*settings, *limit)).server, mean.server)
    assert mean.optimizer == {}
    assert not same(ran(make_federation(*settings, "server.optimizer=momentum")).server, mean.server)


def test_statistics_are_the_means(make_federation: Make) -> None:
    """In the first round every server gets the same uploads."""
    settings = ("train.steps_per_round=2", "method.name=fedavg")
    mean = ran(make_federation(*settings), 1).server.weights
    for more in (["server.optimizer=momentum", "server.lr=0.5"], ["server.optimizer=adam", "server.lr=0.01"]):
        stepped = ran(make_federation(*settings, *more), 1).server.weights
        assert same(stepped.buffers, mean.buffers)
        assert mean.buffers
        assert not same(stepped.params, mean.params)


# Momentum that is broadcast.

BROADCAST = ("server.broadcast_momentum=true", "train.lr=0.05", "train.steps_per_round=3")


@pytest.mark.parametrize("name", [name for name in METHODS if name not in ("fedmatch", "rscfed")])
@pytest.mark.slow
def test_clients_begin_with_what_is_broadcast(name: str, make_federation: Make) -> None:
    federation = make_federation(f"method.name={name}", *BROADCAST)
    snapshot = ran(federation, 1)
    payload = federation.payload(snapshot.server, snapshot.optimizer, 1)
    velocity = broadcast_velocity(payload)
    assert velocity.keys() == snapshot.server.weights.params.keys()
    local = federation.method.start(payload, federation.new_state(payload, 1))
    begun = {key.removeprefix("A.").removeprefix("B."): v for key, v in local.velocity.items()}
    assert all(torch.equal(begun[key], v) for key, v in velocity.items())
    assert any(v.abs().sum() > 0 for v in velocity.values())
    shared = {id(t) for t in tree_flatten(payload)[0]}
    assert not shared & {id(t) for t in tree_flatten(local)[0]}


def test_what_goes_down_are_the_parameters_twice(make_federation: Make) -> None:
    sizes = []
    for settings in ((), BROADCAST[:1]):
        federation = make_federation("method.name=sage", *settings)
        server = federation.first_server()
        optimizer = federation.server_optimizer.start(server.weights.params)
        sizes.append(num_bytes(federation.payload(server, optimizer, 0)))
    assert sizes[1] - sizes[0] == num_bytes(server.weights.params) > 0


def test_the_first_round_begins_at_zero_and_the_second_does_not(make_federation: Make) -> None:
    plain, sent = (
        [ran(make_federation("method.name=sage", *BROADCAST[1:], *more), n) for n in (1, 2)]
        for more in ((), BROADCAST[:1])
    )
    assert same(plain[0].server, sent[0].server)
    assert not same(plain[1].server, sent[1].server)


def test_its_unit_is_that_of_a_clients_velocity(make_federation: Make) -> None:
    """One client, no decay: d / (rate steps) is the mean of the velocities that its steps had."""
    federation = make_federation(
        "method.name=fedavg", "partition.kind=iid", "partition.clients=1", "train.clients_per_round=1",
        "train.steps_per_round=5", "train.lr=0.02", "train.schedule=cosine", "train.rounds=4", "server.momentum=0",
        "server.broadcast_momentum=true",
    )  # fmt: skip
    engine = LocalEngine(federation)
    list(engine.rounds(2))
    before = engine.snapshot
    payload = federation.payload(before.server, before.optimizer, 0)
    local, velocities, step = federation.method.start(payload, {}), [], federation.steps.step()
    draw = federation.plan(3, 0).draw
    with torch.no_grad():
        for i in range(5):
            one = type(draw)(*(take_step(part, i) for part in draw))
            local, _ = step(payload, local, torch.zeros(2, federation.layout.size), one)
            velocities.append(local.velocity)
    list(engine.rounds(3))
    for name, v in take(VELOCITY, engine.snapshot.optimizer).items():
        expected = torch.stack([each[name] for each in velocities]).mean(0)
        torch.testing.assert_close(v, expected, rtol=1e-3, atol=1e-4)


def take_step(part: Any, i: int) -> Any:
    if isinstance(part, torch.Tensor):
        return part[i]
    if isinstance(part, dict):
        return {key: take_step(value, i) for key, value in part.items()}
    return type(part)(*(take_step(value, i) for value in part))


def test_it_is_rejected_where_a_round_has_several_groups(make_federation: Make) -> None:
    settings = ("method.name=rscfed", "partition.labels=knowing-clients", "partition.labeled_clients=1")
    with pytest.raises(UserError, match="needs a single group of clients per round, but method 'rscfed' draws 3"):
        make_federation(*settings, *BROADCAST)


# Resumed, and on any lanes.

RULES = {
    "momentum": ("server.optimizer=momentum", "server.momentum=0.5"),
    "adam": ("server.optimizer=adam", "server.lr=0.01"),
    "broadcast": ("server.broadcast_momentum=true",),
    "both": ("server.optimizer=momentum", "server.momentum=0.5", "server.broadcast_momentum=true"),
}


@pytest.mark.parametrize("rule", RULES)
@pytest.mark.slow
def test_a_resumed_server_resumes_as_it_would_have(rule: str, make_federation: Make) -> None:
    settings = ("method.name=flexmatch", "train.steps_per_round=3", *RULES[rule])
    engine = LocalEngine(make_federation(*settings, "compute.lanes=1"))
    snapshots = [engine.snapshot for _ in engine.rounds(4)]
    assert snapshots[0].optimizer
    for more in (["compute.lanes=1"], ["compute.lanes=2"], ["compute.lanes=2", "compute.processes=on"]):
        other = LocalEngine(make_federation(*settings, *more))
        saved = dict(sorted(flat(snapshots[1]).items()))  # as files do
        other.snapshot = restore(other.snapshot, Saved(2, saved, parts(snapshots[1])))
        list(other.rounds(4))
        other.close()
        assert same(other.snapshot.server, snapshots[3].server)
        assert same(other.snapshot.optimizer, snapshots[3].optimizer)


def test_a_checkpoint_without_the_servers_state_does_not_fit(make_federation: Make) -> None:
    plain, rule = make_federation(), make_federation("server.optimizer=momentum")
    snapshot, engine = ran(plain, 1), LocalEngine(rule)
    with pytest.raises(UserError, match=r"the checkpoint does not fit: optimizer\.momentum\..* is missing"):
        restore(engine.snapshot, Saved(1, flat(snapshot), parts(snapshot)))


REFUSED = {
    (
        "server.lr=0.5",
    ): "server.lr = 0.5 has no effect with server.optimizer = 'mean'; remove it, or use 'momentum' or 'adam'",
    (
        "server.momentum=0.5",
    ): "server.momentum = 0.5 has no effect with server.optimizer = 'mean' and server.broadcast_momentum = false",
    (
        "server.beta2=0.5",
        "server.optimizer=momentum",
    ): "server.beta2 = 0.5 has no effect with server.optimizer = 'momentum'; remove it, or use 'adam'",
    (
        "server.epsilon=0.5",
    ): "server.epsilon = 0.5 has no effect with server.optimizer = 'mean'; remove it, or use 'adam'",
    (
        "server.broadcast_momentum=true",
        "train.optimizer=adamw",
    ): "does not work with train.optimizer = 'adamw': only the momentum of sgd",
    (
        "server.broadcast_momentum=true",
        "train.momentum=0",
    ): "does not work with train.momentum = 0: clients have no momentum",
    ("server.broadcast_momentum=true", "train.keep_momentum=true"): "clients keep their own momentum",
    ("server.broadcast_momentum=true", "protocol=authors"): "carries momentum from client to client",
    (
        "server.broadcast_momentum=true",
        "method.name=fedmatch",
    ): "'fedmatch', which uses its own optimizer",
    ("server.optimizer=sgd",): "server.optimizer",
}


@pytest.mark.parametrize("settings", REFUSED)
def test_what_makes_no_sense_is_rejected(settings: tuple[str, ...], tiny_data: Dataset) -> None:
    assert REFUSED[settings] in refusal(settings, tiny_data)
