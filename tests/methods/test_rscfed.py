"""RSCFed: groups, the teacher, and means in which far models count less."""

import math
from collections.abc import Callable

import numpy as np
import pytest
import torch

from fssl.core.client import at, part
from fssl.core.federation import Federation
from fssl.engines.local import LocalEngine
from fssl.methods.rscfed import KNOWS, MEMBER, STEPS, TEACHER, Member, RSCFed, rscfed, sharpened, teacher_share
from fssl.types import Server, Upload, Weights, unpacked

Make = Callable[..., Federation]
FEW = (
    "method.name=rscfed", "partition.kind=iid", "partition.labels=knowing-clients", "partition.labeled_clients=1",
    "train.clients_per_round=2", "train.unlabeled_ratio=1", "train.local_epochs=1", "train.lr=0.05",
)  # fmt: skip


def test_sharpening_by_hand() -> None:
    torch.testing.assert_close(sharpened(torch.tensor([[0.6, 0.2, 0.2]])), torch.tensor([[9 / 11, 1 / 11, 1 / 11]]))


def test_the_teacher_s_share_grows_from_nothing() -> None:
    assert teacher_share(torch.tensor([0.0, 1.0, 3.0, 1e6]), 0.999).tolist() == pytest.approx([0, 0.5, 0.75, 0.999])


# Groups.


def test_groups_are_drawn_independently_and_may_share_clients(make_federation: Make) -> None:
    federation = make_federation(*FEW)
    groups = [federation.drawn_groups(round) for round in range(1, 30)]
    assert all(len(drawn) == 3 and all(len({*g}) == 2 for g in drawn) for drawn in groups)
    assert any(len({k for g in drawn for k in g}) < 4 for drawn in groups)
    assert federation.drawn_clients(3) == sorted({k for g in federation.drawn_groups(3) for k in g})
    times = {sum(k in g for g in drawn) for drawn in groups for k in range(4)}
    assert times == {0, 1, 2, 3}


def test_a_client_trains_once_for_each_of_its_groups(make_federation: Make) -> None:
    """Five steps each, other images' order and other views in each; the clock begins anew."""
    federation = make_federation(*FEW)
    round, client = next((r, k) for r in range(1, 30) for k in range(4) if drawn(federation, r, k) == [0, 2])
    draw = federation.plan(round, client).draw
    assert draw.clock.group.tolist() == [0.0] * 5 + [2.0] * 5
    assert draw.clock.step.tolist() == [*range(5)] * 2
    assert len(draw.x_row) == len(draw.noise["u_again"]) == 10
    assert not torch.equal(draw.u_slot[:5], draw.u_slot[5:])
    assert not torch.equal(draw.noise["u_weak"][:5], draw.noise["u_weak"][5:])
    assert len(federation.longest_plan().draw.x_row) == 15


def drawn(federation: Federation, round: int, client: int) -> list[int]:
    return [m for m, group in enumerate(federation.drawn_groups(round)) if client in group]


def test_each_group_begins_with_the_broadcast_model(make_federation: Make) -> None:
    """Without momentum, the second of two groups is as if the client had trained in it alone, with its teacher."""
    engine = LocalEngine(make_federation(*FEW, "train.momentum=0", "train.weight_decay=0"))
    federation = engine.federation
    round, client = next((r, k) for r in range(1, 30) for k in range(1, 4) if drawn(federation, r, k) == [0, 2])
    lane = engine.fleet.lanes[0]
    payload = federation.payload(engine.snapshot.server, {}, client)
    plan = federation.plan(round, client)
    with torch.no_grad():
        twice = engine.fleet.client(lane, plan, payload, None)
        half = plan._replace(draw=part(plan.draw, 5, 10))
        state = engine.fleet.client(lane, plan._replace(draw=part(plan.draw, 0, 5)), payload, None).state
        once = engine.fleet.client(lane, half, payload, state)
    assert twice.upload.extras[MEMBER].tolist() == [1, 0, 1]
    second, alone = (unpacked("rscfed.group2.", r.upload.extras) for r in (twice, once))
    assert all(torch.equal(t, alone.params[name]) for name, t in second.params.items())
    idle = unpacked("rscfed.group1.", twice.upload.extras)
    assert all(torch.equal(t, idle.params[name]) for name, t in payload.weights.params.items())
    assert twice.state[STEPS] == 10


# The teacher.


def test_after_the_first_step_the_teacher_is_the_student(make_federation: Make) -> None:
    federation = make_federation(*FEW)
    server = federation.first_server()
    payload = federation.method.payload(server, 1)
    local = federation.method.start(payload, federation.new_state(payload, 1))
    step, draw, tally = federation.steps.step(), federation.plan(1, 1).draw, torch.zeros(2, federation.layout.size)
    with torch.no_grad():
        first, tally = step(payload, local, tally, at(draw, 0))
        second, _ = step(payload, first, tally, at(draw, 1))
    teacher = unpacked(TEACHER, first.state)
    assert all(torch.equal(t, teacher.params[name]) for name, t in first.weights.params.items())
    assert all(torch.equal(t, teacher.buffers[name]) for name, t in payload.weights.buffers.items())
    later = unpacked(TEACHER, second.state).params
    expected = {k: (teacher.params[k] + t) / 2 for k, t in second.weights.params.items()}
    torch.testing.assert_close(later, expected)


def test_the_teacher_stays_with_the_client(make_federation: Make) -> None:
    engine = LocalEngine(make_federation(*FEW, "train.clients_per_round=4"))
    list(engine.rounds(2))
    kept = engine.snapshot.clients[1]
    assert {name.split(".")[1] for name in kept} == {"teacher", "steps"}
    assert kept[STEPS] == 2 * 3 * 5  # rounds, groups, steps


# Means.


def member(value: float, size: int, knows: bool = False) -> Member:
    return Member(Weights({"a": torch.full((4,), value), "b": torch.tensor([value])}, {}), size, knows)


def test_equal_models_weigh_by_size_and_labels_six_times() -> None:
    assert rscfed().group_weights([member(2, 3), member(2, 5)]) == [3, 5]
    assert rscfed().group_weights([member(2, 3, knows=True), member(2, 5)]) == [18, 5]


@pytest.mark.parametrize(("knows", "beta"), [(True, 100), (False, 1e4)])
def test_far_models_count_less(knows: bool, beta: float) -> None:
    """Their mean is 0.0015; four numbers and one give d = (2 + 1) * 0.0015 and (2 + 1) * 0.0045."""
    members = [member(0, 100, knows), member(0, 200), member(0.006, 100)]
    found = rscfed(boost=1).group_weights(members)
    expected = [100 * math.exp(-beta * 4.5e-5), 200 * math.exp(-beta * 2.25e-5), 100 * math.exp(-beta * 1.35e-4)]
    assert [w / found[0] for w in found] == pytest.approx([w / expected[0] for w in expected], rel=1e-5)


def test_very_far_models_leave_the_nearest() -> None:
    assert np.isfinite(rscfed().group_weights([member(0, 1), member(1e6, 1), member(3e6, 1)])).all()


def limit(federation: Federation, rounds: int = 2) -> dict[str, torch.Tensor]:
    engine = LocalEngine(federation)
    list(engine.rounds(rounds))
    return engine.model().params


@pytest.mark.slow
def test_one_group_of_all_clients_that_weigh_by_size_is_fedavg(make_federation: Make) -> None:
    everyone = ("partition.labeled_clients=4", "train.clients_per_round=4")
    off = ("method.groups=1", "method.beta=0", "method.beta_unlabeled=0", "method.boost=1")
    ours = limit(make_federation(*FEW, *everyone, *off))
    theirs = limit(make_federation(*FEW, *everyone, "method.name=fedavg", "method.steps=labeled"))
    torch.testing.assert_close(ours, theirs, rtol=0, atol=1e-6)
    assert not torch.equal(*(next(iter(p.values())) for p in (ours, limit(make_federation(*FEW, *everyone)))))


def test_the_model_is_the_plain_mean_of_the_groups() -> None:
    """Groups of (0, 4) and (8): by size (3 * 0 + 1 * 4) / 4 = 1; (1 + 8) / 2 = 4.5; the third group was empty."""
    method = RSCFed(groups=3, beta=0, beta_unlabeled=0)

    def upload(client: int, values: list[float], member: list[float], size: int) -> Upload:
        first, *others = values
        extras = {f"rscfed.group{m}.params.w": torch.tensor([v]) for m, v in enumerate(others, 1)}
        extras |= {MEMBER: torch.tensor(member), "rscfed.knows": torch.tensor(0.0)}
        return Upload(client, Weights({"w": torch.tensor([first])}, {}), size, extras)

    made = [upload(0, [0.0, 8.0, 99.0], [1, 1, 0], 3), upload(1, [4.0, 99.0, 99.0], [1, 0, 0], 1)]
    server = Server(Weights({"w": torch.tensor([-1.0])}, {}), {})
    after = method.aggregate(None, server, made, np.random.default_rng(0))  # type: ignore[arg-type]
    assert after.weights.params["w"].item() == pytest.approx(4.5)


def test_a_group_without_weights_is_left_out() -> None:
    """With boost = 0, a group of clients with labels alone; the mean of the other two, 1 and 3, is 2."""
    method = rscfed(boost=0, beta=0, beta_unlabeled=0)
    members = member(9.0, 1, knows=True), member(1.0, 1), member(3.0, 1)
    uploads = [
        Upload(k, each.weights, each.size, {**others(each.weights), MEMBER: one_of_three(k), KNOWS: knowing(each)})
        for k, each in enumerate(members)
    ]
    server = Server(member(7, 1).weights, {})
    after = method.aggregate(None, server, uploads, np.random.default_rng(0))  # type: ignore[arg-type]
    assert after.weights.params["a"].tolist() == pytest.approx([2.0] * 4)
    assert method.aggregate(None, server, uploads[:1], np.random.default_rng(0)) == server  # type: ignore[arg-type]


def others(weights: Weights) -> dict[str, torch.Tensor]:
    """The same model for the second and the third group."""
    return {f"rscfed.group{m}.params.{name}": t for m in (1, 2) for name, t in weights.params.items()}


def one_of_three(group: int) -> torch.Tensor:
    return torch.eye(3)[group]


def knowing(each: Member) -> torch.Tensor:
    return torch.tensor(float(each.knows))
