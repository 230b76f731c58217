"""The learning rate over a run: a factor for every step, known in advance."""

import math
from dataclasses import dataclass
from typing import Literal

Kind = Literal["constant", "cosine", "warmup-cosine"]


@dataclass(frozen=True)
class Schedule:
    """Constant at 1, optionally with a linear cooldown; half a cosine from 1 to 0; or this after a linear warm-up.

    A step's place t in the run is counted in rounds and begins at 0. Over rounds, all steps of a round have the place
    of its beginning; over steps, a client's steps are spread evenly over its round, whatever their number.
    """

    kind: Kind = "constant"
    over: Literal["rounds", "steps"] = "rounds"
    rounds: int = 1
    warmup: int = 0  # warm-up rounds
    cooldown: int = 0  # cooldown rounds, after a constant rate

    @property
    def moves(self) -> bool:
        """Return whether any step has another factor than 1."""
        return self.kind != "constant" or self.cooldown > 0

    def factors(self, round: int, steps: int) -> list[float]:
        """Return the factors of the learning rate in a client's round, a factor per step; rounds count from 1."""
        if self.over == "rounds":
            return [self.factor(round - 1)] * steps
        return [self.factor(round - 1 + i / steps, 1 / steps) for i in range(steps)]

    def factor(self, t: float, each: float = 1.0) -> float:
        """Return the factor at t; `each` is the distance to the next place: the warm-up starts above 0 and ends at 1.

        The cooldown mirrors it: it starts at 1 and ends above 0.
        """
        if self.kind == "constant":
            return min(1.0, (self.rounds - t) / self.cooldown) if self.cooldown else 1.0
        if t < self.warmup:
            return min(1.0, (t + each) / self.warmup)
        return 0.5 * (1 + math.cos(math.pi * (t - self.warmup) / (self.rounds - self.warmup)))

    def typical(self, round: int) -> float:
        """Return one factor for a whole round: over steps, that of its middle."""
        return self.factor(round - 1) if self.over == "rounds" else self.factor(round - 0.5, 0.0)
