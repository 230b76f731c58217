"""SAGE that also records how often its model gives next to no probability to a label it trains on.

    fssl run paper/table1 --data-dir DATA --set data.name=cifar10 --set partition.alpha=0.1 --set seed=7 \
        --set train.rounds=8 --set method.name=benchmarks/guard.py:counting_sage --set method.bound=1e-8 --out guard

`loss_below` in its rounds is the number of such labels per step: strong views whose label has less than the bound. The
released code adds 10⁻¹⁰ to that probability, which matters only where it is about as small.
"""

from dataclasses import dataclass, fields
from typing import Annotated, ClassVar

from torch import Tensor

from fssl.config import Range
from fssl.methods.fixmatch import FixMatch, Seen
from fssl.methods.sage import sage
from fssl.models import Net
from fssl.types import Batch, Local, Payload, State


@dataclass(frozen=True)
class CountingSage(FixMatch):
    bound: float = 1e-8
    extra_loss: ClassVar[str] = "l_below"

    def extra(self, net: Net, payload: Payload, local: Local, batch: Batch, seen: Seen) -> tuple[Tensor, State]:
        """The count as a term of the loss: it has no gradient, so training is SAGE's."""
        label = seen.votes["target"].argmax(-1, keepdim=True)
        p = seen.strong.logits.detach().float().softmax(-1).gather(-1, label)[:, 0]
        return ((p < self.bound) * seen.votes["mask"]).sum(), local.state


def counting_sage(
    bound: Annotated[float, Range(0, 1), "probability below which a label counts"] = 1e-8,
) -> CountingSage:
    """SAGE that counts the unlikely ones among its labels."""
    same = sage()
    return CountingSage(**{f.name: getattr(same, f.name) for f in fields(same)}, bound=bound)
