"""Acceptance rules, worked by hand."""

import pytest
import torch

from fssl.label.accept import NO_SLOT, UNSEEN, FixedThreshold, FlexThreshold
from fssl.types import Counts, Task

TASK, COUNTS = Task(num_classes=3, max_slots=8), Counts(labeled=2, pool=6)


def flex_state(*entries: int) -> dict[str, torch.Tensor]:
    return {"flex.table": torch.tensor([*entries, *[NO_SLOT] * (8 - len(entries))])}


def test_the_threshold_itself_is_sure() -> None:
    p = torch.tensor([[0.95, 0.05], [0.94, 0.06], [0.05, 0.95]])
    assert FixedThreshold(0.95).sure(p, {}).tolist() == [True, False, True]


def test_a_new_table_has_the_clients_slots_only() -> None:
    table = FlexThreshold().init(TASK, COUNTS)["flex.table"]
    assert table.tolist() == [UNSEEN] * 6 + [NO_SLOT] * 2


def test_an_unseen_table_accepts_everything() -> None:
    rule = FlexThreshold(0.95)
    state = rule.init(TASK, COUNTS)
    assert rule.thresholds(3, state).tolist() == [0.0, 0.0, 0.0]
    assert rule.sure(torch.tensor([[0.34, 0.33, 0.33]]), state).item()


def test_thresholds_by_hand() -> None:
    """Table 0 0 0 1 -1 -1: counts 3, 1, 0; two unseen. With warm-up the denominator is max(3, 2) = 3, so
    beta = 1, 1/3, 0 and T = tau * beta / (2 - beta) = tau, tau / 5, 0."""
    state = flex_state(0, 0, 0, 1, UNSEEN, UNSEEN)
    expected = torch.tensor([0.95, 0.19, 0.0])
    torch.testing.assert_close(FlexThreshold(0.95).thresholds(3, state), expected)


@pytest.mark.parametrize(("warmup", "first"), [(True, 1 / 7), (False, 1.0)])
def test_warmup_counts_the_unseen(warmup: bool, first: float) -> None:
    """Table 0 -1 -1 -1 -1: one label and four unseen: beta_0 is 1/4 with warm-up, 1 without."""
    state = flex_state(0, UNSEEN, UNSEEN, UNSEEN, UNSEEN)
    assert FlexThreshold(1.0, warmup=warmup).thresholds(3, state)[0].item() == pytest.approx(first)


def test_full_and_even_tables_are_the_fixed_threshold() -> None:
    """beta = 1 for every class: FlexMatch is FixMatch."""
    state = flex_state(0, 0, 1, 1, 2, 2)
    p = torch.softmax(4 * torch.randn(200, 3, generator=torch.Generator().manual_seed(1)), -1)
    assert torch.equal(FlexThreshold(0.9).sure(p, state), FixedThreshold(0.9).sure(p, state))


def test_the_table_takes_confident_local_votes() -> None:
    p_l = torch.tensor([[0.96, 0.02, 0.02], [0.5, 0.3, 0.2], [0.01, 0.01, 0.98]])
    votes = {"p_l": p_l}
    state = flex_state(1, 1, UNSEEN, UNSEEN, UNSEEN, UNSEEN)
    after = FlexThreshold(0.95).update(votes, torch.tensor([0, 1, 4]), state)["flex.table"]
    assert after.tolist() == [0, 1, UNSEEN, UNSEEN, 2, UNSEEN, NO_SLOT, NO_SLOT]
    assert state["flex.table"].tolist()[0] == 1  # arguments stay as they were


@pytest.mark.parametrize("order", [[0, 1, 2], [2, 1, 0], [1, 0, 2]])
def test_a_sure_view_counts_wherever_it_stands_in_the_batch(order: list[int]) -> None:
    """A pool smaller than the batch shows an image more than once: views 0 and 2 of slot 3 are not sure."""
    p_l = torch.tensor([[0.5, 0.3, 0.2], [0.01, 0.98, 0.01], [0.4, 0.3, 0.3]])[order]
    after = FlexThreshold(0.95).update({"p_l": p_l}, torch.tensor([3, 3, 3]), flex_state(0, 0, 0, 0))["flex.table"]
    assert after.tolist()[:4] == [0, 0, 0, 1]


def test_with_sage_the_table_takes_the_final_label_where_either_model_is_sure() -> None:
    p_l = torch.tensor([[0.5, 0.3, 0.2], [0.5, 0.3, 0.2]])
    p_g = torch.tensor([[0.01, 0.98, 0.01], [0.2, 0.6, 0.2]])
    votes = {"p_l": p_l, "p_g": p_g, "target": torch.tensor([[0.0, 1.0, 0.0], [0.0, 1.0, 0.0]])}
    rule = FlexThreshold(0.95, count="final")
    after = rule.update(votes, torch.tensor([3, 5]), rule.init(TASK, COUNTS))["flex.table"]
    assert after.tolist()[:6] == [UNSEEN, UNSEEN, UNSEEN, 1, UNSEEN, UNSEEN]
