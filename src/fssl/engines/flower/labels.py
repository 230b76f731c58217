"""Detects runs without a labeled image at any site, by sums that sites send anyway: nothing would be learned."""

from collections.abc import Callable, Mapping

from torch import Tensor

from ...core.federation import Federation
from ...errors import RunError
from .nodes import numbers

LABEL_PLACES = "labeled/CLASS/* of a site, or in server/CLASS/* of the server's folder with partition.labels = 'server'"
L_S = "l_s"  # the sum of the supervised losses: 0 at a client without labels


class LabelWatch:
    """Stops a run if every client has trained and none had a labeled image.

    After many rounds L_s may also be 0 for memorized images: so only a process that starts with the first round
    watches, and only until a client had a label.
    """

    def __init__(self, federation: Federation, say: Callable[[str], None]) -> None:
        self.say, self.sums = say, federation.layout.sums
        self.unheard = set(range(federation.config.partition.clients))
        is_known = federation.holdings.labeled is not None or federation.holdings.at_server is not None
        self.is_over = is_known or L_S not in self.sums
        self.has_begun = False

    def check(self, round: int, tallies: Mapping[int, Tensor]) -> None:
        """Check what the clients of a round sent; stop, or report after the first one which clients may have labels."""
        self.is_over = self.is_over or not (self.has_begun or round == 1)
        if self.is_over:
            return
        for client, tally in tallies.items():
            self.unheard.discard(client)
            self.is_over = self.is_over or self.of(tally, L_S) > 0
        if self.is_over:
            return
        lacking = "has a labeled image, and the server trains on none"
        if not self.unheard:
            raise RunError(f"round {round}: no client {lacking}: expected some in {LABEL_PLACES}")
        if not self.has_begun:
            self.say(f"round {round}: no client so far {lacking}; not heard yet: {numbers(self.unheard)}")
        self.has_begun = True

    def of(self, tally: Tensor, name: str) -> float:
        """Return a sum over all steps of a client."""
        return float(tally[0, self.sums.index(name)])
