"""FlexMatch (Zhang et al., 2021) in a federation: class-wise thresholds from a table that stays with the client."""

from dataclasses import dataclass, replace
from typing import Literal, Self

from ..label.accept import UNSEEN, FlexThreshold
from ..label.assign import Assign
from ..types import Local, Payload, State
from .base import Source
from .fixmatch import FixMatch
from .settings import Threshold, Weight


@dataclass(frozen=True)
class FlexMatch(FixMatch):
    """FixMatch whose acceptance table may be forgotten at the start of each round."""

    accept: FlexThreshold = FlexThreshold()  # noqa: RUF009
    count: Literal["final", "local"] = "final"  # what a plug-in that changes labels writes into the table

    def relabeled(self, assign: Assign) -> Self:
        """The table follows the labels that are trained on, unless `count` says otherwise."""
        return replace(super().relabeled(assign), accept=replace(self.accept, count=self.count))

    def start(self, payload: Payload, state: State) -> Local:
        if not self.accept.persistent:
            state = forget(state)
        return super().start(payload, state)


def forget(state: State) -> State:
    """The table as it was before the client's first round."""
    return {**state, "flex.table": state["flex.table"].clamp(max=UNSEEN)}


@Source("Zhang et al. 2021", follows="reconstruction", page="flexmatch", client="label table")
def flexmatch(
    tau: Threshold = 0.95,
    mu_u: Weight = 1.0,
    warmup: bool = True,
    persistent: bool = True,
    count: Literal["final", "local"] = "final",
) -> FlexMatch:
    """FixMatch-LPL that accepts hard classes earlier; its table of labels survives rounds.

    warmup: the denominator also counts images not labeled yet. persistent: false forgets the table each round.
    count: with SAGE on it, the final label enters the table, or still the local vote.
    """
    return FlexMatch(accept=FlexThreshold(tau, warmup, persistent), mu_u=mu_u, count=count)
