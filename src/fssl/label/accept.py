"""Acceptance rules: when a prediction counts as sure."""

from dataclasses import dataclass
from typing import ClassVar, Literal

import torch
from torch import Tensor

from ..types import Counts, State, Task
from .losses import entropy


class Accept:
    """A rule for which predictions are sure; it may keep state with the client (tables, running means).

    Every rule defines `sure`. A rule with state defines `init`, and `observe` or `update`. If the rule has a field
    `tau`, records count a confidence of `tau` as sure.

    Attributes:
        weighs: True for a rule that weighs labels instead of accepting them; it also defines `weight`.
    """

    weighs: ClassVar[bool] = False

    def init(self, task: Task, counts: Counts) -> State:
        """Return the rule's initial tensors for a client, under unique names; by default none."""
        return {}

    def observe(self, p_l: Tensor, state: State) -> State:
        """Return the tensors that change before a step's votes, given its predictions; by default none."""
        return {}

    def sure(self, p: Tensor, state: State) -> Tensor:
        """Return which rows are sure.

        Args:
            p: Probabilities [B, C] of one model.
            state: The client's state.

        Returns:
            Booleans [B].
        """
        raise NotImplementedError("a rule for sure labels must define `sure`")

    def weight(self, p: Tensor, state: State) -> Tensor:
        """Return the weight of a label from each row [B], from 0 to 1; called if the rule `weighs`.

        A rule for targets sees only `sure`. Its mask becomes the mean over all levels from 0 to 1 of what it would
        be if `sure` were a weight of at least that level.
        """
        raise NotImplementedError("a rule with weighs = True must define `weight`")

    def update(self, votes: State, u_slot: Tensor, state: State) -> State:
        """Return the rule's tensors after a step, all that `init` has; by default unchanged.

        Args:
            votes: p_l, p_g, sure_l, sure_g, target and mask of the step.
            u_slot: Positions [B] of the images in the client's pool.
            state: The client's state before the step.
        """
        return state


@dataclass(frozen=True)
class FixedThreshold(Accept):
    """Accepts predictions whose largest probability reaches tau (the paper's algorithm says >=, its equations >).

    Examples:
        >>> FixedThreshold(0.75).sure(torch.tensor([[0.75, 0.25], [0.5, 0.5]]), {})
        tensor([ True, False])
    """

    tau: float = 0.95

    def sure(self, p: Tensor, state: State) -> Tensor:
        return p.amax(-1) >= self.tau


def sure_from(accept: Accept) -> float:
    """Return the confidence from which records count a prediction as sure: the rule's tau, or 0.95 without one."""
    return float(getattr(accept, "tau", 0.95))


UNSEEN, NO_SLOT = -1, -2  # entries of FlexMatch's table: not labeled yet, beyond this client's pool


@dataclass(frozen=True)
class FlexThreshold(Accept):
    """FlexMatch: a class that is learned less well is accepted earlier.

    The client's table holds, for each image of its pool, the class it was last confidently given. `count`
    says which vote enters the table: that of one of the models, or the final target where either model reaches tau.
    """

    tau: float = 0.95
    warmup: bool = True
    persistent: bool = True
    count: Literal["local", "final", "global"] = "local"

    def init(self, task: Task, counts: Counts) -> State:
        slot = torch.arange(task.max_slots)
        return {"flex.table": torch.where(slot < counts.pool, UNSEEN, NO_SLOT)}

    def thresholds(self, num_classes: int, state: State) -> Tensor:
        """Return T_c = tau * beta_c / (2 - beta_c), where beta_c is the class's share of the best-learned one."""
        table = state["flex.table"]
        sigma = (table[:, None] == torch.arange(num_classes, device=table.device)).sum(0)
        best, unseen = sigma.amax(), (table == UNSEEN).sum()
        beta = sigma / (torch.maximum(best, unseen) if self.warmup else best).clamp(min=1)
        return self.tau * beta / (2 - beta)

    def sure(self, p: Tensor, state: State) -> Tensor:
        confidence, best = p.max(-1)
        return confidence >= self.thresholds(p.shape[-1], state)[best]

    def update(self, votes: State, u_slot: Tensor, state: State) -> State:
        confidence, vote = votes["p_g" if self.count == "global" else "p_l"].max(-1)
        if self.count == "final":
            confidence = torch.maximum(confidence, votes["p_g"].amax(-1))
            vote = votes["target"].argmax(-1)
        table = state["flex.table"]
        entry = torch.where(confidence >= self.tau, vote, UNSEEN)  # tau itself, not T_c
        # A small pool fills a batch more than once: a sure view of an image counts even if other views are unsure.
        given = torch.full_like(table, UNSEEN).scatter_reduce(0, u_slot, entry, "amax")
        return {"flex.table": torch.where(given > UNSEEN, given, table)}


@dataclass(frozen=True)
class EntropyThreshold(Accept):
    """FedLoKe: accepts predictions whose entropy in nats is below delta."""

    delta: float = 0.1

    def sure(self, p: Tensor, state: State) -> Tensor:
        return entropy(p) < self.delta
