"""CDMAD by hand: predictions less those of a blank image, in labels and in the deployed model."""

from collections.abc import Callable
from typing import Any

import pytest
import torch

from fssl.core.federation import Federation
from fssl.data.cards import card
from fssl.engines.local import LocalEngine
from fssl.errors import UserError
from fssl.label.assign import Sage
from fssl.methods.cdmad import Debiased, debias
from fssl.methods.freematch import FreeMatch
from fssl.methods.names import build_method, defaults_on
from helpers.matrix import equal, trained

Make = Callable[..., Federation]
Z, BLANK = torch.tensor([[3.0, 2.5, 0.0]]), torch.tensor([2.0, 0.5, -1.0])


def test_predictions_lose_those_of_the_blank_image() -> None:
    p = Z.softmax(-1)
    torch.testing.assert_close(p, torch.tensor([[0.603749, 0.366192, 0.030059]]), rtol=0, atol=1e-6)
    torch.testing.assert_close(debias(p, BLANK), torch.tensor([[0.211942, 0.576117, 0.211942]]), rtol=0, atol=1e-6)
    torch.testing.assert_close(debias(p, torch.full((3,), 7.0)), p)  # the same of every class: no effect
    certain = torch.tensor([[1.0, 0.0, 0.0]])
    assert debias(certain, BLANK).isfinite().all()


def test_the_deployed_model_has_the_bias_in_its_last_layer(make_federation: Make) -> None:
    """An ordinary model: its logits of the blank image are 0, and all others less the same numbers."""
    federation = make_federation("method.name=fixmatch-lpl+cdmad")
    net, method = federation.net, federation.method
    server = method.init(net, net.first, federation.task)
    deployed, images = method.deploy(net, server), torch.randn(5, 3, 8, 8)
    blank = torch.ones(1, 3, 8, 8)
    z = [net.infer(weights, images).logits for weights in (net.first, deployed)]
    b = net.infer(net.first, blank).logits
    assert net.size == 8
    assert b.abs().max() > 0.01
    torch.testing.assert_close(z[1], z[0] - b)
    torch.testing.assert_close(net.infer(deployed, blank).logits, torch.zeros(1, 4), rtol=0, atol=1e-6)


def test_labels_are_the_hosts_until_correction_begins(make_federation: Make) -> None:
    hosts = {"fixmatch-lpl": "tau=0.3", "flexmatch": "tau=0.3", "feddb": "tau=0.255", "fedlabel-2m": "burn_in=0"}
    for host, setting in hosts.items():
        words = [f"method.name={host}", f"method.{setting}"]
        late = trained(make_federation(f"method.name={host}+cdmad", *words[1:], "method.start_rounds=1"))
        assert equal(late, trained(make_federation(*words)))
        now = trained(make_federation(f"method.name={host}+cdmad", *words[1:], "method.start_rounds=0"))
        assert not equal(late, now)


def test_the_blank_image_may_have_statistics_of_its_own(make_federation: Make) -> None:
    words = ("method.name=fixmatch-lpl+cdmad", "method.tau=0.3", "method.start_rounds=0")
    assert not equal(trained(make_federation(*words)), trained(make_federation(*words, "method.blank_bn=train")))


def test_the_host_stays_what_it_is() -> None:
    method: Any = build_method("freematch+cdmad", {"ema": 0.5, "start_rounds": 3})
    assert isinstance(method, Debiased)
    assert isinstance(method, FreeMatch)
    assert (method.accept.ema, method.start_rounds, method.extra_loss) == (0.5, 3, "l_f")
    assert method == build_method("freematch+cdmad", {"ema": 0.5, "start_rounds": 3})
    for name in ("fixmatch-lpl+sage+cdmad", "fixmatch-lpl+cdmad+sage"):
        both: Any = build_method(name, {"kappa": 2.0})
        assert isinstance(both.assign, Sage)
        assert isinstance(both, Debiased)
    assert defaults_on("sage+cdmad", card("cifar100"))["start_rounds"] == 100


def test_a_method_without_labels_rejects_it() -> None:
    with pytest.raises(UserError, match=r"^the plug-in 'cdmad' needs a method with pseudo-labels"):
        build_method("fedavg+cdmad", {})


@pytest.mark.slow
def test_the_tested_model_is_the_deployed_one(make_federation: Make) -> None:
    """Also after a step of the server, which moves the model that the correction is of."""
    engine = LocalEngine(make_federation("method.name=sage+cdmad", "server.optimizer=momentum", "server.lr=0.7"))
    list(engine.rounds(2))
    net = engine.federation.net
    assert net.infer(engine.model(), torch.ones(1, 3, 8, 8)).logits.abs().max() < 1e-5
    assert net.infer(engine.snapshot.server.weights, torch.ones(1, 3, 8, 8)).logits.abs().max() > 1e-3
