"""What is handed to the compiler, and what it is kept from doing."""

import os
from collections.abc import Callable

import pytest
import torch
from torch import Tensor
from torch._inductor.exc import LoweringException, OperatorIssue
from torch._inductor.runtime.cache_dir_utils import default_cache_dir

from fssl.core.client import at
from fssl.core.federation import Federation
from fssl.data.cache import cache_folder
from fssl.engines.compiler import ForShapes, as_traced, in_place, shorten_messages, traced
from fssl.engines.lanes import COMPILED, name_compilers_folder
from fssl.types import Weights

ORIGINAL = OperatorIssue.operator_str  # before any test compiles


class Input:
    """Something that must not be written out: of a deep network that would take for ever."""

    def __str__(self) -> str:
        raise AssertionError("written out")


def test_a_message_of_the_compiler_names_no_inputs(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(OperatorIssue, "operator_str", staticmethod(ORIGINAL))  # an earlier test may have compiled
    with pytest.raises(AssertionError, match="written out"):
        OperatorIssue.operator_str("fssl::norm_relu", [Input()], {})
    shorten_messages()
    assert OperatorIssue.operator_str("fssl::norm_relu", [Input()], {}) == "target: fssl::norm_relu"
    assert "fssl::norm_relu" in str(LoweringException(ValueError("why"), "fssl::norm_relu", [Input()], {}))


def test_compiled_code_lies_next_to_the_images_unless_the_user_says_where(monkeypatch: pytest.MonkeyPatch) -> None:
    """Importing the compiler names a folder, which is not the user's choice."""
    for before, after in (
        (None, str(cache_folder() / "compiled")),
        (default_cache_dir(), str(cache_folder() / "compiled")),
        ("/elsewhere", "/elsewhere"),
    ):
        monkeypatch.setenv("TRITON_CACHE_DIR", "is set")
        monkeypatch.delenv(COMPILED, raising=False)
        if before is not None:
            monkeypatch.setenv(COMPILED, before)
        name_compilers_folder()
        assert os.environ[COMPILED] == after


def test_tensors_that_a_function_knows_become_arguments() -> None:
    """Once each, and their values at the time of a call count: the compiler's cache need not look at them."""
    known, other = torch.tensor([1.0, 2.0]), torch.tensor([10.0, 20.0])

    def function(x: Tensor) -> Tensor:
        return x * known + other * known

    assert [t is k for t, k in zip(traced(function, torch.ones(2)).constants, (known, other), strict=True)] == [
        True
    ] * 2
    code = as_traced(function, torch.ones(2))
    known[0] = 5
    assert code(torch.ones(2)).tolist() == [55.0, 42.0]


def test_records_may_come_in_another_order_and_another_shape() -> None:
    def function(weights: Weights) -> dict[str, Tensor]:
        return {"difference": weights.params["a"] - weights.params["b"]}

    fast = ForShapes(function, as_traced)
    for n in (2, 3):
        a, b = torch.full((n,), 5.0), torch.full((n,), 3.0)
        for params in ({"a": a, "b": b}, {"b": b, "a": a}):
            assert fast(Weights(params, {}))["difference"].tolist() == [2.0] * n


def test_lanes_share_code_and_no_buffers(
    make_federation: Callable[..., Federation], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Two lanes a step at a time, each on a client of its own: the bits of the same steps without buffers."""
    codes = []
    monkeypatch.setattr("fssl.engines.compiler.compiled", lambda *given: codes.append(as_traced(*given)) or codes[0])
    federation = make_federation()
    steps, server = federation.steps, federation.first_server()
    learn, show, tally = steps.learn(), steps.show(), torch.zeros(2, steps.layout.size)
    with torch.no_grad():
        plans = [federation.plan(1, client).draw for client in (0, 1)]
        local = federation.method.start(server, {})
        before = [(local, tally)] * 2
        plain, fast = [*before], [*before]
        make = in_place(learn, server, local, tally, show(at(plans[0], 0)))
        lanes = [make(), make()]
        for i in range(3):
            for k, draw in enumerate(plans):
                shown = show(at(draw, i))
                plain[k] = learn(server, *plain[k], shown)
                fast[k] = lanes[k](server, *fast[k], shown)
    assert len(codes) == 1
    for (expected, sums), (found, own_sums) in zip(plain, fast, strict=True):
        assert torch.equal(sums, own_sums)
        assert all(torch.equal(t, found.weights.params[name]) for name, t in expected.weights.params.items())
    assert not local.velocity["head.linear.weight"].any()  # what came in is left as it was
