"""FedDB: the prior, labels without it, and the shares of clients, worked by hand."""

from collections.abc import Callable

import numpy as np
import pytest
import torch

from fssl.core.client import at
from fssl.core.federation import Federation
from fssl.engines.compiler import as_traced
from fssl.engines.local import LocalEngine
from fssl.errors import UserError
from fssl.label.assign import GlobalOnly, LocalOnly, Sage
from fssl.methods.feddb import PI, PRIOR, SEEN, TABLE, FedDB, _within, debias, exact_shares, feddb, released_shares
from fssl.methods.names import build_method
from fssl.models import Out
from fssl.types import Batch, Clock, Counts, Local, Server, Sweep, Task, Upload, Weights

Make = Callable[..., Federation]
TASK, COUNTS = Task(num_classes=2, max_slots=6), Counts(labeled=1, pool=3)
NOTHING = Server(Weights({}, {}), {})


def objective(pi: np.ndarray, a: np.ndarray) -> float:
    return float(((a @ pi - 1 / pi.shape[1]) ** 2).sum())


def test_debiasing_by_hand() -> None:
    """(.6 .4) / (.75 .25) = (.8 1.6), normalized (1/3 2/3): the class that is expected less wins."""
    torch.testing.assert_close(
        debias(torch.tensor([[0.6, 0.4]]), torch.tensor([0.75, 0.25])), torch.tensor([[1 / 3, 2 / 3]])
    )


def test_a_uniform_prior_changes_nothing() -> None:
    p = torch.softmax(3 * torch.randn(50, 7, generator=torch.Generator().manual_seed(1)), -1)
    torch.testing.assert_close(debias(p, torch.full((7,), 1 / 7)), p)


def test_a_class_that_is_never_given_stays_out() -> None:
    p = torch.tensor([[0.5, 0.5, 0.0]])
    assert debias(p, p[0]).tolist() == [[0.5, 0.5, 0.0]]


class ClientFacts:
    """A network whose logits are the logarithm of its input."""

    def infer(self, weights: Weights, x: torch.Tensor) -> Out:
        return Out(x.log(), x)


def swept(pool: int, batches: list[tuple[list[list[float]], list[int], list[float]]]) -> Local:
    method = feddb()
    local = method.start(NOTHING, method.client_state(NOTHING, TASK, Counts(1, pool)))
    for p, slot, real in batches:
        sweep = Sweep(torch.tensor(slot), torch.tensor(slot), torch.zeros(len(slot), 3), torch.tensor(real))
        local = method.visit(ClientFacts(), NOTHING, local, torch.tensor(p), sweep)  # type: ignore[arg-type]
    return local


def test_the_sweep_by_hand() -> None:
    """Three images in batches of two: means (.75 .25) after two, (.9 + .6 + .3) / 3 = .6 after the third. The
    image that fills the last batch counts neither in the mean nor in the table."""
    first = ([[0.9, 0.1], [0.6, 0.4]], [0, 1], [1.0, 1.0])
    second = ([[0.3, 0.7], [0.2, 0.8]], [2, 0], [1.0, 0.0])
    state = swept(3, [first, second]).state
    torch.testing.assert_close(state[PRIOR], torch.tensor([0.6, 0.4]))
    assert torch.equal(state[PRIOR], state[PI])
    assert state[SEEN].item() == 3
    torch.testing.assert_close(state[TABLE][:3], torch.tensor([[0.9, 0.1], [0.6, 0.4], [0.3, 0.7]]))
    assert not state[TABLE][3:].any()


def test_a_pool_smaller_than_a_batch_fills_it_with_itself() -> None:
    state = swept(1, [([[0.9, 0.1], [0.2, 0.8]], [0, 0], [1.0, 0.0])]).state
    torch.testing.assert_close(state[TABLE][0], torch.tensor([0.9, 0.1]))
    torch.testing.assert_close(state[PRIOR], torch.tensor([0.9, 0.1]))


def voted(method: FedDB) -> tuple[dict[str, torch.Tensor], dict[str, torch.Tensor]]:
    """Votes on images 2 and 0, and the state after them."""
    prior = torch.tensor([0.75, 0.25])
    table = torch.tensor([[0.9, 0.1], [0.5, 0.5], [0.6, 0.4]])
    state = {TABLE: table, PRIOR: prior, SEEN: torch.tensor(3.0), PI: torch.tensor([0.5, 0.5])}
    zero = torch.zeros(())
    batch = Batch({}, zero, torch.tensor([2, 0]), zero, Clock(zero, zero, zero), {})
    p_l = torch.tensor([[0.7, 0.3], [0.1, 0.9]])
    p_g = method.ask_global(None, NOTHING, state, batch)  # type: ignore[arg-type]
    votes = method.vote(p_l, p_g, NOTHING, state, batch)
    return votes, method.remember(votes, batch, state)


def test_offline_labels_come_from_the_table() -> None:
    """Image 2: (.6 .4) / (.75 .25) -> (1/3 2/3); image 0: (.9 .1) / (.75 .25) = (1.2 .4) -> (3/4 1/4). With
    tau = 0.7 only the second is sure, and the local model is not asked."""
    votes, _ = voted(feddb(tau=0.7))
    torch.testing.assert_close(votes["p_g"], torch.tensor([[1 / 3, 2 / 3], [0.75, 0.25]]))
    assert votes["target"].argmax(-1).tolist() == [1, 0]
    assert votes["mask"].tolist() == [False, True]


def test_online_labels_come_from_the_local_model() -> None:
    """The running prior is uniform: p_l = (.7 .3), (.1 .9) as it is."""
    votes, _ = voted(feddb(tau=0.7, online=True))
    assert votes["target"].argmax(-1).tolist() == [0, 1]
    assert votes["mask"].tolist() == [True, True]


@pytest.mark.parametrize(("tau", "target"), [(0.7, [1.0, 0.0]), (0.6, [0.685020, 0.314980])])
def test_with_sage_both_models_are_divided_by_their_priors(tau: float, target: list[float]) -> None:
    """Local (.6 .4) / (.75 .25) -> (1/3 2/3) by the running prior, global (.9 .1) / (.75 .25) -> (3/4 1/4) by that of
    the sweep. At tau = 0.7 only the global model is sure; at 0.6 the local vote has the weight of a gap of 1/12,
    2^(-(1/12) / 0.05) = 0.31498."""
    method, zero, pi = build_method("feddb+sage", {"tau": tau}), torch.zeros(()), torch.tensor([0.75, 0.25])
    assert isinstance(method, FedDB)
    state = {TABLE: torch.tensor([[0.9, 0.1]]), PRIOR: pi, SEEN: torch.tensor(1.0), PI: pi.clone()}
    batch = Batch({}, zero, torch.tensor([0]), zero, Clock(zero, zero, zero), {})
    p_g = method.ask_global(None, NOTHING, state, batch)  # type: ignore[arg-type]
    votes = method.vote(torch.tensor([[0.6, 0.4]]), p_g, NOTHING, state, batch)
    torch.testing.assert_close(votes["p_l"], torch.tensor([[1 / 3, 2 / 3]]))
    torch.testing.assert_close(votes["target"], torch.tensor([target]))
    assert votes["mask"].tolist() == [True]


def test_the_running_prior_by_hand() -> None:
    """1/2 (.5 .5) + 1/2 mean of (.7 .3), (.1 .9) = 1/2 (.5 .5) + 1/2 (.4 .6) = (.45 .55): of the predictions
    before debiasing. The sweep's prior stays."""
    _, state = voted(feddb())
    torch.testing.assert_close(state[PI], torch.tensor([0.45, 0.55]))
    torch.testing.assert_close(state[PRIOR], torch.tensor([0.75, 0.25]))
    _, still = voted(feddb(ema=1.0))
    torch.testing.assert_close(still[PI], torch.tensor([0.5, 0.5]))


@pytest.mark.parametrize("solve", [exact_shares, released_shares])
def test_equal_priors_weigh_the_same(solve: Callable[[np.ndarray], np.ndarray]) -> None:
    pi = np.tile([0.7, 0.2, 0.1], (5, 1))
    np.testing.assert_allclose(solve(pi), np.full(5, 0.2), atol=1e-6)


def test_exact_shares_by_hand() -> None:
    """(1 0) and (1/4 3/4): a + (1 - a) / 4 = 1/2 gives a = 1/3. With (1 0), (3/4 1/4) no mixture is uniform and
    the nearer one gets everything."""
    np.testing.assert_allclose(exact_shares(np.array([[1.0, 0.0], [0.25, 0.75]])), [1 / 3, 2 / 3], atol=1e-6)
    np.testing.assert_allclose(exact_shares(np.array([[1.0, 0.0], [0.75, 0.25]])), [0, 1], atol=1e-12)


def test_of_equally_good_shares_the_most_even() -> None:
    """Two clients with (1 0) and one with (0 1): the pair shares its half."""
    pi = np.array([[1.0, 0.0], [1.0, 0.0], [0.0, 1.0]])
    np.testing.assert_allclose(exact_shares(pi), [0.25, 0.25, 0.5], atol=1e-6)


@pytest.mark.parametrize("seed", range(20))
def test_exact_shares_are_optimal(seed: int) -> None:
    """On the simplex, and no client's gradient lies below the mean one: the conditions of a minimum."""
    rng = np.random.default_rng(seed)
    pi = rng.dirichlet(np.full(10, 0.1), size=8 if seed % 2 else 20)
    a = exact_shares(pi)
    assert (a >= 0).all()
    assert a.sum() == pytest.approx(1)
    slope = pi @ (a @ pi - 0.1)
    assert slope.min() >= a @ slope - 1e-7
    assert objective(pi, a) <= objective(pi, released_shares(pi)) <= objective(pi, np.full(len(pi), 1 / len(pi)))


def test_clients_leave_in_an_order_that_never_leads_away_from_the_minimum() -> None:
    """Otherwise the search could return to where it was: of several, the client whose share is 0 first leaves first."""
    for seed in range(200):
        rng = np.random.default_rng(seed)
        v = rng.dirichlet(np.full(3, 0.3), size=6) - 1 / 3
        gram, a = v @ v.T + 1e-8 * np.eye(6), rng.dirichlet(np.ones(6))
        found = _within(gram, a, a > 0)
        assert found @ gram @ found <= a @ gram @ a, seed
        assert (found >= 0).all()
        assert found.sum() == pytest.approx(1)


def test_one_released_step_by_hand() -> None:
    """The first of 100: a = (1/2 1/2), pi = (1 0), (1/2 1/2): mixture (3/4 1/4), off by (1/4 -1/4); the gradient of
    the mean square is 2/2 (1/4, 0), with decay (.7, .45); a - 1.9 g = (-.83, -.355). It continues from its softmax."""
    a = np.exp([-0.83, -0.355])
    a /= a.sum()
    pi = np.array([[1.0, 0.0], [0.5, 0.5]])
    for _ in range(99):
        g = pi @ (a @ pi - 0.5) + 0.9 * a
        a = np.exp(a - 1.9 * g)
        a /= a.sum()
    np.testing.assert_allclose(released_shares(pi), a)


def test_released_shares_are_nearly_uniform() -> None:
    pi = np.random.default_rng(3).dirichlet(np.full(10, 0.1), size=8)
    shares = released_shares(pi)
    assert shares.sum() == pytest.approx(1)
    assert np.abs(shares * 8 - 1).max() < 0.03


def uploads() -> list[Upload]:
    made = ((0, 0.0, 30, [1.0, 0.0]), (1, 3.0, 10, [0.25, 0.75]))
    return [Upload(k, Weights({"w": torch.tensor(w)}, {}), n, {PI: torch.tensor(pi)}) for k, w, n, pi in made]


@pytest.mark.parametrize(("dma", "mean"), [("exact", 2.0), ("off", 0.75)])
def test_the_mean_by_hand(dma: str, mean: float) -> None:
    """Weights 0 and 3, shares 1/3 and 2/3: 2; by size 30 : 10 it is 3/4."""
    method = build_method("feddb", {"dma": dma})
    new = method.aggregate(None, NOTHING, uploads(), None)  # type: ignore[arg-type]
    assert new.weights.params["w"].item() == pytest.approx(mean, abs=1e-5)


def test_nothing_stays_with_a_client_but_its_prior_goes_up(make_federation: Make) -> None:
    engine = LocalEngine(make_federation("method.name=feddb", "method.tau=0.251"))
    (result,) = engine.rounds(1)
    assert engine.snapshot.clients == {}
    assert engine.layout.unpack(result.tally[:, 0])["n_valid"].sum() > 0


def test_the_sweep_compiles_into_one_graph(make_federation: Make) -> None:
    """As a step must: no shape depends on data, and eager gives the same bits."""
    federation = make_federation("method.name=feddb")
    method, visit = federation.method, federation.steps.visit()
    server = method.init(federation.net, federation.net.first, federation.task)
    local = method.start(server, federation.new_state(server, 1))
    sweep = federation.plan(1, 1).sweep
    assert sweep is not None
    traced = as_traced(visit, server, local, at(sweep, 0))
    expected, given = local, local
    with torch.no_grad():
        for i in range(len(sweep.u_row)):
            expected, given = visit(server, expected, at(sweep, i)), traced(server, given, at(sweep, i))
    assert all(torch.equal(t, given.state[name]) for name, t in expected.state.items())
    assert expected.state[SEEN].item() == federation.counts(1).pool


def test_the_plug_in_keeps_the_hosts_priors() -> None:
    assert feddb().assign == GlobalOnly()
    assert feddb(online=True).assign == LocalOnly()
    both = build_method("feddb+sage", {"dma": "exact"})
    assert isinstance(both, FedDB)
    assert (both.assign, both.dma) == (Sage(), "exact")


@pytest.mark.parametrize(
    ("settings", "said"),
    [({"dma": "exakt"}, "did you mean 'exact'"), ({"ema": 1.5}, "method.ema"), ({"online": 1}, "true or false")],
)
def test_bad_settings(settings: dict[str, object], said: str) -> None:
    with pytest.raises(UserError, match=said) as error:
        build_method("feddb", settings)
    assert "\n" not in str(error.value)
