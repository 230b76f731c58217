"""How the learning rate moves through a run: a factor for every step, known before it is taken."""

import math
from dataclasses import dataclass
from typing import Literal

Kind = Literal["constant", "cosine", "warmup-cosine"]


@dataclass(frozen=True)
class Schedule:
    """1 throughout, or until a straight line down ends the run; half a cosine from 1 to 0; or a line up to 1 first.

    A step's place t in the run is counted in rounds and begins at 0. Over rounds, all steps of a round have the place
    of its beginning; over steps, a client's steps are spread evenly over its round, whatever their number.
    """

    kind: Kind = "constant"
    over: Literal["rounds", "steps"] = "rounds"
    rounds: int = 1
    warmup: int = 0  # rounds of the line up
    cooldown: int = 0  # rounds of the line down, after a constant rate

    @property
    def moves(self) -> bool:
        """Whether any step has another factor than 1."""
        return self.kind != "constant" or self.cooldown > 0

    def factors(self, round: int, steps: int) -> list[float]:
        """A factor of the learning rate for each step of a client's round; rounds count from 1."""
        if self.over == "rounds":
            return [self.factor(round - 1)] * steps
        return [self.factor(round - 1 + i / steps, 1 / steps) for i in range(steps)]

    def factor(self, t: float, each: float = 1.0) -> float:
        """The factor at a place; `each` is how far it is to the next one: the line up begins above 0 and ends at 1.

        The line down mirrors it: it begins at 1 and ends above 0.
        """
        if self.kind == "constant":
            return min(1.0, (self.rounds - t) / self.cooldown) if self.cooldown else 1.0
        if t < self.warmup:
            return min(1.0, (t + each) / self.warmup)
        return 0.5 * (1 + math.cos(math.pi * (t - self.warmup) / (self.rounds - self.warmup)))

    def typical(self, round: int) -> float:
        """One factor for a whole round: over steps, that of its middle."""
        return self.factor(round - 1) if self.over == "rounds" else self.factor(round - 0.5, 0.0)
