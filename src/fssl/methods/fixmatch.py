"""FixMatch (Sohn et al., 2020) in a federation: labels from the local or from the global model."""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import ClassVar, Literal, NamedTuple, Self

import torch
from torch import Tensor

from ..label.accept import Accept, FixedThreshold, sure_from
from ..label.assign import VOTES, Assign, GlobalOnly, LocalOnly, weight_in, weights_of
from ..label.losses import soft_cross_entropy, supervised_loss
from ..models import Net, Out
from ..types import Batch, Clock, Counts, Local, Payload, PseudoLabels, State, Task, Trace, Weights
from .base import Method, Needs, Recipe, Source, Value, Watched, descend
from .shared_settings import LabelBN, MuProx, MuU, Tau, VoteChoice
from .terms import Proximal, Term, add_terms


class Seen(NamedTuple):
    """The trained model's outputs for each view, with gradients, and the votes."""

    x: Out
    weak: Out
    strong: Out
    votes: State


@dataclass(frozen=True)
class FixMatch(Method):
    """FixMatch in a federation: two replaceable rules decide the labels, `accept` and `assign`.

    A step passes labeled, weak and strong views through the network as one batch in training mode. Derived methods
    support the plug-ins: `+sage` replaces `assign`, and `+oracle` drops wrong labels. They may override `ask_local`,
    `meet`, `ask_global`, `vote`, `remember`, `weight_at`, `supervised` and `extra`, which a step calls in this order.

    Attributes:
        accept: Decides which predictions are sure: `FixedThreshold`, `FlexThreshold`, `FreeThreshold`, `SoftWeight`,
            `EntropyThreshold`, or your own `Accept`.
        assign: Returns `PseudoLabels(target, mask)`, [B, C] and [B], from `(p_l, p_g, sure_l, sure_g)`: `LocalOnly`,
            `GlobalOnly`, `Sage`, `Winner`, or your own. Its `uses_global` requests the global prediction.
        terms: Further terms on the weights, such as `Proximal`.
        mu_u: The weight of L_u.
        label_bn: The BatchNorm statistics with which the local model labels: of the batch, or running ones.
        oracle: Whether to drop wrong pseudo-labels (Fig. 1b).
        extra_loss: The name under which records show `extra`, such as "l_c"; empty: not recorded.
        hooks: Names of functions whose results are checked before a run.
    """

    accept: Accept = FixedThreshold()  # noqa: RUF009 (a frozen value)
    assign: Assign = LocalOnly()  # noqa: RUF009
    terms: tuple[Term, ...] = ()
    mu_u: float = 1.0
    label_bn: Literal["train", "eval"] = "train"
    oracle: bool = False
    extra_loss: ClassVar[str] = ""
    hooks: ClassVar[tuple[str, ...]] = ("assign", "vote", "supervised", "extra")

    @property
    def needs(self) -> Needs:
        return Needs(truth=self.oracle)

    def recipe(self, usual: Recipe) -> Recipe:
        return replace(usual, views=("x", "u_weak", "u_strong"))

    @property
    def watched(self) -> Watched:
        return Watched(weight_in(self.assign), sure_from(self.accept))

    def relabeled(self, assign: Assign) -> Self:
        """Return the method with another rule for targets, as plug-ins need it."""
        return replace(self, assign=assign)

    def client_state(self, payload: Payload, task: Task, counts: Counts) -> State:
        return self.accept.init(task, counts)

    def look(self, net: Net, weights: Weights, batch: Batch) -> tuple[State, Sequence[Out]]:
        """Return the local model's outputs for labeled images and both views, in training mode: one joint batch."""
        return net.fit(weights, batch.x, batch.u_weak, batch.u_strong)

    def ask_local(self, net: Net, weights: Weights, weak: Out, batch: Batch) -> Tensor:
        """Return p_l, the trained model's prediction: by default the softmax of `weak.logits`, without a gradient."""
        return weak.logits.detach().softmax(-1)

    def meet(self, x: Out, p_l: Tensor, batch: Batch, state: State) -> State:
        """Return the client's state before the votes: by default from `accept.observe`."""
        return {**state, **self.accept.observe(p_l, state)}

    def ask_global(self, net: Net, payload: Payload, state: State, batch: Batch) -> Tensor:
        """Return p_g, the global prediction: by default that of the broadcast model on weak views."""
        return net.infer(payload.weights, batch.u_weak).logits.softmax(-1)

    def vote(self, p_l: Tensor, p_g: Tensor, payload: Payload, state: State, batch: Batch) -> State:
        """Return `p_l`, `p_g`, `sure_l`, `sure_g`, `target` and `mask`; `+sage` needs a call of `self.assign`."""
        sure_l, sure_g = self.accept.sure(p_l, state), self.accept.sure(p_g, state)
        target, mask = self.assign(p_l, p_g, sure_l, sure_g)
        if self.accept.weighs:
            mask = weights_of(self.assign, p_l, p_g, self.accept.weight(p_l, state), self.accept.weight(p_g, state))
        return {"p_l": p_l, "p_g": p_g, "sure_l": sure_l, "sure_g": sure_g, "target": target, "mask": mask}

    def votes_on(self, p_l: Tensor, p_g: Tensor, payload: Payload, state: State, batch: Batch) -> State:
        """Return the result of `vote`, also of an overridden one; an oracle drops the wrong labels."""
        votes = self.vote(p_l, p_g, payload, state, batch)
        if not self.oracle:
            return votes
        is_right = votes["target"].argmax(-1) == batch.truth["u"]
        return {**votes, "mask": votes["mask"] * is_right}  # a mask may weigh images

    def remember(self, votes: State, batch: Batch, state: State) -> State:
        """Return the client's state after the votes: by default from `accept.update`."""
        return {**state, **self.accept.update(votes, batch.u_slot, state)}

    def weight_at(self, clock: Clock) -> Tensor | float:
        """Return the weight of L_u at a step: by default `mu_u`; override it for ramps."""
        return self.mu_u

    def supervised(self, x: Out, batch: Batch) -> Tensor:
        """Return L_s from the trained model's `x.logits` and `x.feature` of labeled images."""
        return supervised_loss(x.logits, batch)

    def extra(self, net: Net, payload: Payload, local: Local, batch: Batch, seen: Seen) -> tuple[Tensor, State]:
        """Return a further term of the loss, 0 by default, and the client's state after it.

        `local.state` already includes the votes. `seen` has the outputs `x`, `weak` and `strong`, and the `votes`.
        """
        return torch.zeros_like(batch.has_labels), local.state

    def step(self, net: Net, payload: Payload, local: Local, batch: Batch) -> tuple[Local, Trace]:
        def loss(weights: Weights, state: State) -> Value:
            buffers, (x, weak, strong) = self.look(net, weights, batch)
            if self.label_bn == "eval":
                weak = net.infer(weights, batch.u_weak)
            p_l = self.ask_local(net, weights, weak, batch)
            state = self.meet(x, p_l, batch, state)
            p_g = self.ask_global(net, payload, state, batch) if self.asks_global else p_l
            votes = counted(self.votes_on(p_l, p_g, payload, state, batch), batch)
            state = self.remember(votes, batch, state)
            l_s = self.supervised(x, batch)
            l_u = soft_cross_entropy(strong.logits, PseudoLabels(votes["target"], votes["mask"]), self.guard)
            seen = Seen(x, weak, strong, votes)
            term, state = self.extra(net, payload, Local(weights, local.velocity, state), batch, seen)
            if batch.has_unlabeled is not None:
                term = term * batch.has_unlabeled
            total = add_terms(l_s + self.weight_at(batch.clock) * l_u + term, self.terms, weights, payload)
            if not self.asks_global:  # p_g only filled an argument that is never read
                del votes["p_g"], votes["sure_g"]
            losses = {"l_s": l_s.detach(), "l_u": l_u.detach()}
            if self.extra_loss:
                losses[self.extra_loss] = term.detach()
            return total, (buffers, state, Trace(losses, votes))

        return descend(loss, self.optimizer.at(batch.clock), local)

    @property
    def asks_global(self) -> bool:
        return self.assign.uses_global or self.watch


def counted(votes: State, batch: Batch) -> State:
    """Return the votes; at a client that trains only on labels, none of them counts."""
    if batch.has_unlabeled is None:
        return votes
    return {**votes, "mask": votes["mask"] * (batch.has_unlabeled > 0)}  # a mask may be of booleans or of weights


@Source("Sohn et al. 2020", "released code", page="fixmatch", label="FixMatch-LPL", look="blue solid square")
def fixmatch_lpl(
    tau: Tau = 0.95,
    mu_u: MuU = 1.0,
    vote: VoteChoice = "hard",
    label_bn: LabelBN = "train",
) -> FixMatch:
    """FixMatch with local pseudo-labels: every client labels with the model it trains."""
    return FixMatch(accept=FixedThreshold(tau), assign=LocalOnly(VOTES[vote]), mu_u=mu_u, label_bn=label_bn)


@Source("Sohn et al. 2020", "paper", page="fixmatch", label="FixMatch-GPL", look="sky solid triangle-up")
def fixmatch_gpl(tau: Tau = 0.95, mu_u: MuU = 1.0, vote: VoteChoice = "hard") -> FixMatch:
    """FixMatch with global pseudo-labels: the broadcast model labels for the whole round."""
    return FixMatch(accept=FixedThreshold(tau), assign=GlobalOnly(VOTES[vote]), mu_u=mu_u)


@Source("Li; Sohn et al. 2020", "paper", page="fixmatch", label="FedProx+FixMatch", look="blue dash cross")
def fedprox_fixmatch(mu_prox: MuProx = 1e-3, tau: Tau = 0.95, mu_u: MuU = 1.0) -> FixMatch:
    """FixMatch-LPL with FedProx's pull towards the broadcast model."""
    return FixMatch(accept=FixedThreshold(tau), mu_u=mu_u, terms=(Proximal(mu_prox),))
