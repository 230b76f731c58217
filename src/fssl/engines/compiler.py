"""Compile pure functions: trace them for the shapes of a call, then optimize them with PyTorch's compiler.

`torch.compile` analyzes Python bytecode, which takes several times as long, and checks at every call that its code
still applies. A pure function of tensors with known shapes needs neither.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from threading import Lock
from typing import Any, NamedTuple

import torch
from torch import Tensor
from torch._guards import TracingContext, tracing
from torch._inductor import config as inductor
from torch._inductor.compile_fx import compile_fx
from torch._inductor.exc import InductorError, OperatorIssue
from torch._subclasses.fake_tensor import FakeTensorMode
from torch.fx import GraphModule, Node
from torch.fx.experimental.proxy_tensor import make_fx
from torch.fx.experimental.symbolic_shapes import ShapeEnv
from torch.utils._pytree import TreeSpec, tree_flatten, tree_leaves, tree_map, tree_unflatten

from ..core.step import Learn, Shown
from ..types import Local, Payload
from .named_tensors import overwrite
from .stopwatch import spending

Function = Callable[..., Any]  # of nested records of tensors


@dataclass(frozen=True)
class Code:
    """A compiled function for arguments of one structure, with the shapes that it was traced with."""

    run: Callable[[Sequence[Tensor]], Sequence[Tensor]]  # takes the arguments' tensors, in the order of their structure
    given: TreeSpec
    made: TreeSpec

    def __call__(self, *given: Any) -> Any:
        return tree_unflatten(self.run(self.given.flatten_up_to(given)), self.made)


class Traced(NamedTuple):
    """A function as a graph of operations. Constant tensors become arguments after the function's arguments."""

    graph: GraphModule
    shapes: Sequence[Tensor]  # of all arguments
    constants: list[Tensor]
    given: TreeSpec
    made: TreeSpec

    def code(self, function: Any) -> Code:
        return Code(lambda tensors: function(*tensors, *self.constants), self.given, self.made)


class ForShapes:
    """A function that is compiled for each combination of argument shapes at its first call."""

    def __init__(self, function: Function, faster: Callable[..., Function]) -> None:
        self._function, self._faster, self._made = function, faster, dict[Any, Function]()
        self._one_at_a_time = Lock()

    def __call__(self, *given: Any) -> Any:
        shapes = tuple(tensor.shape for tensor in tree_leaves(given))
        with self._one_at_a_time:
            if shapes not in self._made:
                self._made[shapes] = self._faster(self._function, *given)
        return self._made[shapes](*given)


def compiled(function: Function, *given: Any) -> Code:
    """Compile a function for arguments like these; it may overwrite them, and is pure otherwise."""
    # Before torch 2.13 the search for a better order of loops fails for some steps (of `flfl` on a small network).
    # If the compiler fails, try again without that search.
    shorten_messages()
    try:
        return optimized(traced(function, *given))
    except InductorError:
        if not inductor.loop_ordering_after_fusion:
            raise
        with inductor.patch(loop_ordering_after_fusion=False):
            return optimized(traced(function, *given))


def in_place(learn: Learn, *given: Any) -> Callable[[], Learn]:
    """Compile the learning half of a step. Return a function that makes it for one lane, with separate buffers."""

    def write(payload: Payload, local: Local, tally: Tensor, shown: Shown) -> None:
        new_local, new_tally = learn(payload, local, tally, shown)
        overwrite(local, new_local)
        tally.copy_(new_tally)

    code = compiled(write, *given)

    def lane() -> Learn:
        held, known = tree_map(torch.clone, given[:-1]), list[Payload | None]([None])
        fixed = tree_leaves(held)

        def run(payload: Payload, local: Local, tally: Tensor, shown: Shown) -> tuple[Local, Tensor]:
            overwrite(held, (payload, local, tally), (known[0], None, None))
            known[0] = payload
            code.run([*fixed, *tree_leaves(shown)])
            return held[1], held[2]

        return run

    return lane


def traced(function: Function, *given: Any) -> Traced:
    """Record the operations of a pure function of tensors, using only their shapes."""
    tensors, form = tree_flatten(given)
    forms: list[TreeSpec] = []

    def flat(*tensors: Tensor) -> list[Tensor]:
        made, made_form = tree_flatten(function(*tree_unflatten(tensors, form)))
        forms.append(made_form)
        return made

    known = ShapeEnv(allow_scalar_outputs=False, allow_dynamic_output_shape_ops=False)  # the compiler's cache needs one
    mode = FakeTensorMode(allow_non_fake_inputs=True, shape_env=known)
    with (
        spending("tracing"),
        torch.no_grad(),
        torch.autograd.set_multithreading_enabled(False),
    ):  # other threads would not be traced
        shapes = [mode.from_tensor(t, static_shapes=True) for t in tensors]
        graph = make_fx(flat, tracing_mode="fake", _allow_non_fake_inputs=True)(*shapes)
    constants = lifted(graph)
    shapes += [mode.from_tensor(t, static_shapes=True) for t in constants]
    return Traced(graph, shapes, constants, form, *forms)


def lifted(graph: GraphModule) -> list[Tensor]:
    """Turn a graph's constants into arguments and return their tensors."""
    # The compiler's cache would read every number of a constant.
    found: dict[int, tuple[Tensor, Node]] = {}
    nodes = list(graph.graph.nodes)
    last = next(node for node in reversed(nodes) if node.op == "placeholder")
    for node in nodes:
        if node.op == "get_attr":
            tensor = getattr(graph, str(node.target))
            if id(tensor) not in found:
                with graph.graph.inserting_after(last):
                    last = graph.graph.placeholder(f"constant_{len(found)}")
                last.meta = dict(node.meta)
                found[id(tensor)] = tensor, last
            node.replace_all_uses_with(found[id(tensor)][1])
            graph.graph.erase_node(node)
    graph.recompile()
    return [tensor for tensor, _ in found.values()]


def as_traced(function: Function, *given: Any) -> Code:
    """Return the function as its traced operations, run one after another with bit-identical results."""
    of = traced(function, *given)
    return of.code(of.graph)


def optimized(of: Traced) -> Code:
    with spending("compiling"), torch.no_grad(), tracing(TracingContext(of.shapes[0].fake_mode)):  # type: ignore[attr-defined]
        return of.code(compile_fx(of.graph, of.shapes))


def shorten_messages() -> None:
    """Make the compiler's messages name an operation without its inputs."""
    # Before torch 2.13 the compiler formats the inputs of each of our operations, even with logging off. Each input
    # includes its inputs in turn, so the text doubles with every layer of a residual network: compiling ResNet-18 never
    # ends.
    OperatorIssue.operator_str = staticmethod(lambda target, args, kwargs: f"target: {target}")  # type: ignore[method-assign]
