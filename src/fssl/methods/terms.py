"""Extra terms for the loss of any method."""

from collections.abc import Callable
from dataclasses import dataclass

from torch import Tensor

from ..label.losses import squared_distance
from ..types import Payload, Weights

Term = Callable[[Weights, Payload], Tensor]


@dataclass(frozen=True)
class Proximal:
    """FedProx (Li et al., 2020): mu / 2 ||theta - theta_g||^2, whose gradient is mu (theta - theta_g)."""

    mu_prox: float = 1e-3

    def __call__(self, weights: Weights, payload: Payload) -> Tensor:
        return 0.5 * self.mu_prox * squared_distance(weights.params, payload.weights.params)


def add_terms(loss: Tensor, terms: tuple[Term, ...], weights: Weights, payload: Payload) -> Tensor:
    for term in terms:
        loss = loss + term(weights, payload)
    return loss
