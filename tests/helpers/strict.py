"""A compile backend that refuses shapes and branches that depend on data."""

from typing import Any

import torch
from torch.fx.experimental.symbolic_shapes import free_unbacked_symbols


class Strict:
    """Counts graphs, and fails where a node's shape or value is known only at run time."""

    def __init__(self) -> None:
        self.graphs = 0

    def __call__(self, graph: torch.fx.GraphModule, inputs: list[Any]) -> Any:
        self.graphs += 1
        for node in graph.graph.nodes:
            value = node.meta.get("example_value")
            if value is not None and free_unbacked_symbols(value):
                raise AssertionError(f"{node.op} {node.target} depends on data: {value}")
        return graph
