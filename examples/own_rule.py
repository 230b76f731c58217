"""Train with a rule for pseudo-labels of your own, and compare it with SAGE.

fssl run smoke --set 'grid.method.name=["sage", "examples/own_rule.py:agree"]' --out runs/rules
fssl compare runs/rules
"""

from dataclasses import dataclass
from typing import Annotated, ClassVar

from torch import Tensor

from fssl.config import Range
from fssl.label.assign import hard
from fssl.methods.fixmatch import FixMatch
from fssl.types import PseudoLabels


@dataclass(frozen=True)
class Agree:
    """Label an image where both models vote for the same class, weighed by their mean probability of it."""

    floor: float
    uses_global: ClassVar[bool] = True  # ask the global model, too

    def __call__(self, p_l: Tensor, p_g: Tensor, sure_l: Tensor, sure_g: Tensor) -> PseudoLabels:
        """Return targets [B, C] and weights [B], given probabilities [B, C] of the local and the global model."""
        p = (p_l + p_g) / 2
        weight = p.amax(-1) * (p_l.argmax(-1) == p_g.argmax(-1)) * (p.amax(-1) >= self.floor)
        return PseudoLabels(hard(p), weight)


def agree(floor: Annotated[float, Range(0, 1), "least mean probability"] = 0.7, mu_u: float = 1.0) -> FixMatch:
    """FixMatch where both models agree; its arguments are the method's settings, such as `method.floor`."""
    return FixMatch(assign=Agree(floor), mu_u=mu_u)
