"""Every accumulator, against a plain loop over images."""

import math

import numpy as np
import torch

from fssl.label.assign import ConfidenceGap, Sage
from fssl.probes.tally import Bins, Layout, Sums
from fssl.probes.training import LabelProbe
from fssl.types import Trace

TAU, CLASSES, ROWS = 0.95, 5, 400


def example() -> tuple[Trace, torch.Tensor]:
    g = torch.Generator().manual_seed(5)
    p_l, p_g = (torch.softmax(5 * torch.randn(ROWS, CLASSES, generator=g), -1) for _ in range(2))
    sure_l, sure_g = p_l.amax(-1) >= TAU, p_g.amax(-1) >= TAU
    target, mask = Sage()(p_l, p_g, sure_l, sure_g)
    votes = {"p_l": p_l, "p_g": p_g, "sure_l": sure_l, "sure_g": sure_g, "target": target, "mask": mask}
    losses = {"l_s": torch.tensor(1.25), "l_u": torch.tensor(0.5)}
    return Trace(losses, votes), torch.randint(0, CLASSES, (ROWS,), generator=g)


def slow(trace: Trace, truth: torch.Tensor) -> dict[str, float | list[float]]:
    """The definitions, one image at a time."""
    zero = [0.0] * CLASSES
    out: dict[str, float | list[float]] = {"steps": 1.0, "l_s": 1.25, "l_u": 0.5}
    vectors = (
        "labels_by_class correct_by_class n_by_class n_sure_by_class lam_by_class lam_sure_by_class "
        "gap_by_class gap_sure_by_class rank_l_in_g rank_g_in_l"
    )
    v = {name: list(zero) for name in vectors.split()}
    h = {f"confidence_{w}": [0.0] * 100 for w in "lg"} | {f"confidence_{w}_top": [0.0] * 50 for w in "lg"}
    sums = (
        "n n_l n_g n_valid n_fallback correct_l correct_g correct_l_sure correct_g_sure correct_valid "
        "correct_fallback disagree disagree_sure lam lam_sure gap gap_sure "
        "entropy_l entropy_g entropy_l_sure entropy_g_sure"
    )
    s: dict[str, float] = dict.fromkeys(sums.split(), 0.0)
    for i, y in enumerate(truth.tolist()):
        p = {w: trace.votes[f"p_{w}"][i].tolist() for w in "lg"}
        a = {w: p[w].index(max(p[w])) for w in "lg"}
        c = {w: max(p[w]) for w in "lg"}
        sure = {w: bool(trace.votes[f"sure_{w}"][i]) for w in "lg"}
        s["n"] += 1
        for w in "lg":
            entropy = -sum(q * math.log(q) for q in p[w] if q > 0)
            s[f"n_{w}"] += sure[w]
            s[f"correct_{w}"] += a[w] == y
            s[f"correct_{w}_sure"] += sure[w] and a[w] == y
            s[f"entropy_{w}"] += entropy
            s[f"entropy_{w}_sure"] += entropy * sure[w]
            h[f"confidence_{w}"][min(int(c[w] * 100), 99)] += 1
            if c[w] >= 0.95:
                h[f"confidence_{w}_top"][min(int((c[w] - 0.95) * 1000), 49)] += 1
        label = trace.votes["target"][i].tolist()
        final = label.index(max(label))
        valid = sure["l"] or sure["g"]
        s["n_valid"] += valid
        s["correct_valid"] += valid and final == y
        v["labels_by_class"][final] += valid
        v["correct_by_class"][final] += valid and final == y
        only_g = sure["g"] and not sure["l"]
        s["n_fallback"] += only_g
        s["correct_fallback"] += only_g and a["g"] == y
        s["disagree"] += a["l"] != a["g"]
        s["disagree_sure"] += sure["l"] and a["l"] != a["g"]
        gap = abs(c["l"] - c["g"])
        lam = math.exp(-math.log(2) / 0.05 * gap)
        for name, value in (("lam", lam), ("gap", gap), ("n", 1.0)):
            if name != "n":
                s[name] += value
                s[f"{name}_sure"] += value * sure["l"]
            v[f"{name}_by_class"][a["l"]] += value
            v[f"{name}_sure_by_class"][a["l"]] += value * sure["l"]
        if sure["l"]:
            v["rank_l_in_g"][sum(q > p["g"][a["l"]] for q in p["g"])] += 1
        if sure["g"]:
            v["rank_g_in_l"][sum(q > p["l"][a["g"]] for q in p["l"])] += 1
    return out | s | v | h


def test_every_accumulator_equals_its_definition() -> None:
    trace, truth = example()
    measures = LabelProbe()(trace, truth)
    layout = Layout.of(measures)
    got = layout.unpack(layout.pack(measures).numpy())
    expected = slow(trace, truth)
    assert got.keys() == expected.keys()
    for name, value in expected.items():
        # bins at the edges of float32 may differ by one image from the double-precision definition
        tolerance = 1.01 if name.startswith("confidence") else 2e-3
        np.testing.assert_allclose(got[name], value, rtol=1e-5, atol=tolerance, err_msg=name)


def test_the_record_shows_the_methods_own_lambda() -> None:
    trace, truth = example()
    one = LabelProbe(ConfidenceGap(0.0))(trace, truth)["lam"]
    assert isinstance(one, Sums)
    assert one.values.sum().item() == ROWS  # kappa 0: lambda is 1 everywhere


def test_where_true_labels_are_not_known_nothing_is_called_correct() -> None:
    trace, truth = example()
    known, unknown = LabelProbe()(trace, truth), LabelProbe(knows_truth=False)(trace, torch.full_like(truth, -1))
    assert known.keys() - unknown.keys() == {name for name in known if name.startswith("correct_")}
    assert len(known.keys() - unknown.keys()) == 7
    for name in unknown:
        assert unknown[name].values.equal(known[name].values)


def test_without_a_global_model_its_quantities_are_absent() -> None:
    trace, truth = example()
    local = Trace(trace.losses, {k: t for k, t in trace.votes.items() if not k.endswith("_g")})
    names = LabelProbe()(local, truth).keys()
    assert "n_l" in names
    assert not {"n_g", "lam", "disagree", "n_fallback"} & names


def test_a_layout_packs_and_unpacks() -> None:
    measures = {
        "a": Sums(torch.tensor([1.0, 2.0])),
        "h": Bins(torch.tensor([2, 0]), torch.tensor([3.0, 4.0]), 3),
        "b": Sums(torch.tensor([5.0, 6.0])),
        "k": Bins(torch.tensor([1, 1]), torch.tensor([1.0, 1.0]), 2),
    }
    layout = Layout.of(measures)
    vector = layout.pack(measures)
    assert vector.tolist() == [3.0, 11.0, 4.0, 0.0, 3.0, 0.0, 2.0]
    assert {k: v.tolist() for k, v in layout.unpack(vector.numpy()).items()} == {
        "a": 3.0,
        "b": 11.0,
        "h": [4.0, 0.0, 3.0],
        "k": [0.0, 2.0],
    }
