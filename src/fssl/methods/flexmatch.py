"""FlexMatch (Zhang et al., 2021) in a federation: class-wise thresholds from a table that stays with the client."""

from dataclasses import dataclass
from typing import Literal

from ..label.accept import UNSEEN, FlexThreshold
from ..types import Local, Server, State
from .base import Source
from .fixmatch import FixMatch


@dataclass(frozen=True)
class FlexMatch(FixMatch):
    """FixMatch whose acceptance table may be forgotten at the start of each round."""

    accept: FlexThreshold = FlexThreshold()  # noqa: RUF009
    count: Literal["final", "local"] = "final"  # what a plug-in that changes labels writes into the table

    def start(self, server: Server, state: State) -> Local:
        if not self.accept.persistent:
            state = forget(state)
        return super().start(server, state)


def forget(state: State) -> State:
    """The table as it was before the client's first round."""
    return {**state, "flex.table": state["flex.table"].clamp(max=UNSEEN)}


@Source("Zhang et al. 2021", follows="reconstruction", page="flexmatch", client="label table")
def flexmatch(
    tau: float = 0.95,
    mu_u: float = 1.0,
    warmup: bool = True,
    persistent: bool = True,
    count: Literal["final", "local"] = "final",
) -> FlexMatch:
    """FixMatch-LPL that accepts hard classes earlier; its table of labels survives rounds.

    warmup: the denominator also counts images not labeled yet. persistent: false forgets the table each round.
    count: with SAGE on it, the final label enters the table, or still the local vote.
    """
    return FlexMatch(accept=FlexThreshold(tau, warmup, persistent), mu_u=mu_u, count=count)
