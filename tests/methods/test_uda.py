"""UDA's labels and annealing by hand, and its limits."""

from collections.abc import Callable

import pytest
import torch
import torch.nn.functional as F

from fssl.core.federation import Federation
from fssl.label.assign import LocalOnly, Sage, soft
from fssl.label.losses import image_cross_entropy
from fssl.methods.names import build_method
from fssl.methods.uda import Sharpened, annealed, signal, uda
from fssl.models import Out
from fssl.types import Batch, Clock
from helpers.matrix import equal, trained

Make = Callable[..., Federation]
SOFT = ("method.name=fixmatch-lpl", "method.tau=0.3", "method.vote=soft")


def test_a_label_is_sharpened_and_its_threshold_is_not() -> None:
    """p = softmax(2, 1, 0): 0.665 is below 0.8, although its label has 0.918."""
    p = torch.tensor([[2.0, 1.0, 0.0]]).softmax(-1)
    method = uda()
    labels = method.vote(p, p, None, {}, None)  # type: ignore[arg-type]  # asks neither payload nor batch
    torch.testing.assert_close(p[0], torch.tensor([0.665241, 0.244728, 0.090031]), rtol=0, atol=1e-6)
    torch.testing.assert_close(labels["target"][0], torch.tensor([0.918423, 0.075389, 0.006188]), rtol=0, atol=1e-6)
    assert labels["mask"].tolist() == [False]
    strong = torch.tensor([[1.0, 1.0, 0.0]])
    assert image_cross_entropy(strong, labels["target"]).item() == pytest.approx(0.868183, abs=1e-6)
    assert image_cross_entropy(strong, p).item() == pytest.approx(0.952025, abs=1e-6)


@pytest.mark.parametrize(
    ("tsa", "expected"),
    [
        ("linear", [0.1, 0.325, 0.55, 1.0]),
        ("exp", [0.106064, 0.121166, 0.173876, 1.0]),
        ("log", [0.1, 0.742146, 0.926124, 0.993936]),
    ],
)
def test_the_limit_grows_as_printed(tsa: str, expected: list[float]) -> None:
    """At the start, a quarter, half and the end of ten classes' run."""
    found = signal(torch.tensor([0.0, 0.25, 0.5, 1.0]), tsa, 10)  # type: ignore[arg-type]
    torch.testing.assert_close(found, torch.tensor(expected), rtol=0, atol=1e-6)


def test_images_that_are_known_too_well_do_not_count() -> None:
    """p(y) = 0.95, 0.5, 0.2 below a limit of 0.55: the mean of two; of all three from 1 on, and of none below 0.2."""
    p = torch.tensor([[0.95, 0.05], [0.5, 0.5], [0.2, 0.8]])
    y, one = torch.zeros(3, dtype=torch.long), torch.ones(())
    batch = Batch({}, y, y, one, Clock(one, one, one), {})
    found = [annealed(p.log(), batch, torch.tensor(eta)).item() for eta in (0.55, 1.0, 0.1)]
    assert found == pytest.approx([1.151293, 0.784626, 0.0], abs=1e-6)
    rare = batch._replace(extras={"class_weights": torch.tensor([2.0, 1.0])})
    weighed = annealed(p.log(), rare, torch.tensor(0.55)).item()
    assert weighed == pytest.approx(2 * 1.151293, abs=1e-6)
    assert found[1] == pytest.approx(F.cross_entropy(p.log(), y).item())


@pytest.mark.slow
def test_without_sharpening_it_is_fixmatch_with_soft_votes(make_federation: Make) -> None:
    """Bit for bit; sharpened as far as possible, it has FixMatch's hard votes."""
    name = ("method.name=uda", "method.tau=0.3")
    plain = trained(make_federation(*name, "method.temperature=1"))
    assert equal(plain, trained(make_federation(*SOFT)))
    assert not equal(plain, trained(make_federation(*name)))
    sharp = trained(make_federation(*name, "method.temperature=0.001"))
    for key, p in trained(make_federation(*SOFT[:2])).items():
        torch.testing.assert_close(sharp[key], p, rtol=1e-4, atol=1e-5)


def test_annealing_that_is_over_is_none() -> None:
    """Of two classes the limit is 0.55 after 4 of 40 rounds; from the end of the last one on all images count."""
    logits, y, one = torch.tensor([[0.95, 0.05], [0.5, 0.5], [0.2, 0.8]]).log(), torch.zeros(3).long(), torch.ones(())
    method, out = uda(tsa="linear", tsa_rounds=40), Out(logits, logits)
    for round, expected in ((5, 1.151293), (41, 0.784626), (50, 0.784626)):
        batch = Batch({}, y, y, one, Clock(round * one, one, one), {})
        assert method.supervised(out, batch).item() == pytest.approx(expected, abs=1e-6)
        assert method.supervised(out, batch._replace(has_labels=0 * one)).item() == 0
    assert uda(tsa_rounds=4.0) == uda()  # so that a run reports a setting without effect


def test_the_plug_in_sharpens_its_votes() -> None:
    assert build_method("uda+sage", {"temperature": 0.5}).assign == Sage(vote=Sharpened(0.5))  # type: ignore[attr-defined]
    p = torch.tensor([[0.7, 0.3]])
    assert torch.equal(LocalOnly(Sharpened(1.0)).vote(p), soft(p))
