"""FlexMatch (Zhang et al., 2021) in a federation: class-wise thresholds from a table that stays with the client."""

from dataclasses import dataclass, replace
from typing import Annotated, Literal, Self

from ..label.accept import UNSEEN, FlexThreshold
from ..label.assign import Assign
from ..types import Local, Payload, State
from .base import Source
from .fixmatch import FixMatch
from .shared_settings import MuU, Tau


@dataclass(frozen=True)
class FlexMatch(FixMatch):
    """FixMatch whose acceptance table may be cleared at the start of each round."""

    accept: FlexThreshold = FlexThreshold()  # noqa: RUF009
    count: Literal["final", "local"] = "final"  # the vote that the table records if a plug-in changes labels

    def relabeled(self, assign: Assign) -> Self:
        """Return the method with another rule; by default the table follows the labels trained on."""
        return replace(super().relabeled(assign), accept=replace(self.accept, count=self.count))

    def start(self, payload: Payload, state: State) -> Local:
        if not self.accept.persistent:
            state = clear_table(state)
        return super().start(payload, state)


def clear_table(state: State) -> State:
    """Return the state with the table as before the client's first round."""
    return {**state, "flex.table": state["flex.table"].clamp(max=UNSEEN)}


@Source("Zhang et al. 2021", "reconstruction", client="label table", label="FlexMatch", look="green solid diamond")
def flexmatch(
    tau: Tau = 0.95,
    mu_u: MuU = 1.0,
    warmup: Annotated[bool, "the denominator also counts images not labeled yet"] = True,
    persistent: Annotated[bool, "the table survives rounds"] = True,
    count: Annotated[Literal["final", "local"], "with +sage: the label that the table stores"] = "final",
) -> FlexMatch:
    """FixMatch-LPL that accepts hard classes earlier; its table of labels survives rounds."""
    return FlexMatch(accept=FlexThreshold(tau, warmup, persistent), mu_u=mu_u, count=count)
