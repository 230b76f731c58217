"""SoftMatch (Chen et al., ICLR 2023) in a federation: labels weigh by confidence, from means of the client."""

from typing import Annotated

from ..config import Range
from ..label.adaptive import SoftWeight
from .base import Source
from .fixmatch import FixMatch
from .shared_settings import Ema, MuU


@Source("Chen et al. 2023", "released code", client="running means", label="SoftMatch")
def softmatch(
    mu_u: MuU = 1.0,
    ema: Ema = 0.999,
    n_sigma: Annotated[float, Range(0.0, 1e3), "how fast weights fall, in units of 1 / sigma"] = 2.0,
    align: Annotated[bool, "divide probabilities by their running mean before comparing confidences"] = True,
) -> FixMatch:
    """FixMatch-LPL in which every label counts, less the further its confidence is below the client's mean."""
    return FixMatch(accept=SoftWeight(ema, n_sigma, align), mu_u=mu_u)
