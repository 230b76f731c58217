"""Extra terms that any method's loss can carry."""

from collections.abc import Callable
from dataclasses import dataclass

from torch import Tensor

from ..label.losses import squared_distance
from ..types import Server, Weights

Term = Callable[[Weights, Server], Tensor]


@dataclass(frozen=True)
class Proximal:
    """FedProx (Li et al., 2020): mu / 2 ||theta - theta_g||^2, whose gradient is mu (theta - theta_g)."""

    mu_prox: float = 1e-3

    def __call__(self, weights: Weights, server: Server) -> Tensor:
        return 0.5 * self.mu_prox * squared_distance(weights.params, server.weights.params)


def add_terms(loss: Tensor, terms: tuple[Term, ...], weights: Weights, server: Server) -> Tensor:
    for term in terms:
        loss = loss + term(weights, server)
    return loss
