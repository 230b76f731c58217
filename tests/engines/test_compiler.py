"""What the compiler is kept from doing."""

import pytest
import torch
from torch._inductor.exc import LoweringException, OperatorIssue

from fssl.augment.ops import _fixed_when_traced
from fssl.engines.capture import name_operations_only


class Input:
    """Something that must not be written out: of a deep network that would take for ever."""

    def __str__(self) -> str:
        raise AssertionError("written out")


def test_a_message_of_the_compiler_names_no_inputs(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(OperatorIssue, "operator_str", OperatorIssue.operator_str)  # as it was, after this test
    with pytest.raises(AssertionError, match="written out"):
        OperatorIssue.operator_str("fssl::norm_relu", [Input()], {})
    name_operations_only()
    assert OperatorIssue.operator_str("fssl::norm_relu", [Input()], {}) == "target: fssl::norm_relu"
    assert "fssl::norm_relu" in str(LoweringException(ValueError("why"), "fssl::norm_relu", [Input()], {}))


def test_a_mark_that_is_set_without_the_compiler_is_its_own() -> None:
    def ours() -> None: ...
    def theirs() -> None: ...

    _fixed_when_traced(ours)
    torch.compiler.assume_constant_result(theirs)
    assert vars(ours) == vars(theirs) != {}
