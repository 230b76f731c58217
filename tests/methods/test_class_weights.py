"""Class weights in the supervised loss: what they do to a step, and that every method takes them."""

import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
import torch.nn.functional as F

from fssl.core.client import at
from fssl.core.federation import Federation
from fssl.data.sources import Dataset
from fssl.engines.compiler import as_traced
from fssl.methods.names import METHODS
from fssl.methods.optimizers import Sgd
from fssl.methods.supervised import Supervised
from fssl.types import Batch, Clock, Server
from helpers.command import SMALL, Fssl, outcome
from helpers.matrix import equal, prepared, same, trained
from helpers.small import refusal

Make = Callable[..., Federation]
FULL = "train.class_weights=1"


def test_a_step_goes_down_the_weighed_loss(make_federation: Make) -> None:
    """theta - lr d/dtheta (1/4) sum w_y CE, with the gradient by plain PyTorch; three images count for little."""
    net = make_federation("method.name=fedavg").net
    weights, one = net.first, torch.ones(())
    x, y = torch.randn(4, 3, 8, 8, generator=torch.Generator().manual_seed(0)), torch.tensor([0, 0, 0, 1])
    w = torch.tensor([2 / 3, 2.0, 1.0, 1.0])
    batch = Batch({"x": x}, y, y, one, Clock(one, one, one), {}, {"class_weights": w})
    method = Supervised(optimizer=Sgd(lr=0.5, momentum=0.0, weight_decay=0.0))
    payload = method.payload(Server(weights, {}), 0)
    after, trace = method.step(net, payload, method.start(payload, {}), batch)

    leaves = {name: p.clone().requires_grad_() for name, p in weights.params.items()}
    _, (out,) = net.fit(weights._replace(params=leaves), x)
    loss = (torch.tensor([2 / 3, 2 / 3, 2 / 3, 2.0]) * F.cross_entropy(out.logits, y, reduction="none")).sum() / 4
    grads = torch.autograd.grad(loss, list(leaves.values()))
    assert trace.losses["l_s"].item() == pytest.approx(loss.item(), rel=1e-6)
    for (name, p), grad in zip(weights.params.items(), grads, strict=True):
        torch.testing.assert_close(after.weights.params[name], p - 0.5 * grad, rtol=1e-5, atol=1e-6)


@pytest.mark.parametrize("name", METHODS)
@pytest.mark.slow
def test_every_method_takes_them_and_balanced_labels_need_none(name: str, make_federation: Make) -> None:
    """Bit for bit the same where every class has as many labels; not so where some have more."""
    short = (f"method.name={name}", "train.steps_per_round=2")
    even = (*short, "partition.kind=iid")
    federation = make_federation(*even, FULL)
    assert all((site.by_class["class_weights"] == 1).all() for site in federation.sites)
    assert equal(trained(federation), trained(make_federation(*even)))
    skewed = make_federation(*short, "partition.alpha=0.5", FULL)
    assert (
        np.ptp(
            skewed.sites[1].by_class["class_weights"][np.unique(skewed.dataset.train.labels[skewed.sites[1].labeled])]
        )
        > 0
    )
    assert not equal(trained(skewed), trained(make_federation(*short, "partition.alpha=0.5")))


@pytest.mark.slow
def test_they_are_part_of_the_one_graph(make_federation: Make) -> None:
    step, server, local, tally, draw = prepared(lambda *words: make_federation(*words, FULL), "sage")
    assert draw.extras["class_weights"].shape == (len(draw.x_row), 4)
    given = server, local, tally, at(draw, 0)
    with torch.no_grad():
        assert same(step(*given), as_traced(step, *given)(*given))


def test_a_server_with_labels_weighs_its_own(make_federation: Make) -> None:
    """It has as many of each class, unless some are held out; clients have none, and weigh nothing."""
    federation = make_federation("partition.labels=server", FULL)
    sites: list[Any] = [federation.holdings.server, *federation.sites]
    assert [site.by_class["class_weights"].tolist() for site in sites] == [[1.0] * 4] * 5
    assert "class_weights" in federation.of_server().plan(1, 0).draw.extras


@pytest.mark.parametrize("method", ["semifl", "flfl"])
def test_methods_whose_server_alone_learns_from_labels_take_weights(method: str, make_federation: Make) -> None:
    federation = make_federation(f"method.name={method}", "partition.labels=server", FULL)
    assert federation.layout.size > 0


@pytest.mark.slow
def test_a_resumed_run_is_the_same(fssl: Fssl) -> None:
    words = ("run", "smoke", *SMALL, "--set", FULL, "--set", "method.name=flexmatch")
    assert fssl(*words, "--set", "train.rounds=4", "--out", "whole").code == 0
    assert fssl(*words, "--out", "parts").code == 0
    assert fssl(*words, "--set", "train.rounds=4", "--out", "parts", "--resume").code == 0
    assert outcome("parts") == outcome("whole")
    assert fssl("run", "smoke", *SMALL, "--set", "method.name=flexmatch", "--out", "plain").code == 0
    assert outcome("plain")[0][1] != outcome("whole")[0][1]


def test_both_ways_at_once_are_rejected(tiny_data: Dataset) -> None:
    said = refusal(["train.class_balance=0.5", FULL], tiny_data)
    assert said == (
        "train.class_weights = 1 does not work with train.class_balance = 0.5: both make up for rare classes, one by"
        " draws and one in the loss; remove it"
    )


OWN = """
from fssl.label.losses import cross_entropy, supervised_loss
from fssl.methods.base import Method, descend
from fssl.types import Trace

class Own(Method):
    def labeled(self, logits, batch):
        return cross_entropy(logits, batch.y)

    def step(self, net, payload, local, batch):
        def loss(weights, state):
            buffers, (x,) = net.fit(weights, batch.x)
            l_s = self.labeled(x.logits, batch)
            return l_s, (buffers, state, Trace({"l_s": l_s.detach(), "l_u": 0 * l_s.detach()}, {}))
        return descend(loss, self.optimizer.at(batch.clock), local)

class Shared(Own):
    def labeled(self, logits, batch):
        return supervised_loss(logits, batch)

def own() -> Own:
    return Own()

def shared() -> Shared:
    return Shared()
"""


def test_an_own_method_takes_them_or_is_rejected(fssl: Fssl) -> None:
    Path("my.py").write_text(OWN)
    words = ("run", "smoke", *SMALL, "--set", FULL, "--set")
    code, _, said = fssl(*words, "method.name=my.py:own", "--out", "own")
    assert (code, said.count("\n")) == (2, 1)
    expected = (
        r"method 'my\.py:own': train\.class_weights has no effect: its loss ignores it;"
        r" use `supervised_loss`, or remove the setting$"
    )
    assert re.search(expected, said.strip())
    assert not Path("own").exists()
    assert fssl(*words, "method.name=my.py:shared", "--out", "shared").code == 0
    assert fssl("run", "smoke", *SMALL, "--set", "method.name=my.py:own", "--out", "own").code == 0
