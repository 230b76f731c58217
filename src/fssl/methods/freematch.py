"""FreeMatch (Wang et al., ICLR 2023) in a federation: self-adaptive thresholds from means that stay with the client."""

from dataclasses import dataclass
from typing import Annotated, ClassVar

from torch import Tensor

from ..config import ByDataset
from ..label.adaptive import FreeThreshold, fairness
from ..models import Net
from ..types import Batch, Local, Payload, State
from .base import Source
from .fixmatch import FixMatch, Seen
from .shared_settings import Ema, MuU, Share, Weight


@dataclass(frozen=True)
class FreeMatch(FixMatch):
    """FixMatch with FreeMatch's thresholds (SAT), and its term against favored classes (SAF)."""

    accept: FreeThreshold = FreeThreshold()  # noqa: RUF009
    saf: float = 0.05
    extra_loss: ClassVar[str] = "l_f"

    def extra(self, net: Net, payload: Payload, local: Local, batch: Batch, seen: Seen) -> tuple[Tensor, State]:
        if self.saf == 0:
            return super().extra(net, payload, local, batch, seen)
        return self.saf * fairness(seen.strong.logits, seen.votes["mask"], local.state), local.state


@Source("Wang et al. 2023", "reconstruction", client="running means", label="FreeMatch", look="sky dash diamond")
def freematch(
    mu_u: MuU = 1.0,
    saf: Annotated[Weight, "weight of the fairness term; 0: off"] = 0.05,
    ema: Ema = 0.999,
    lowest: Annotated[Share, ByDataset(lambda card: 0.9 if card.name == "svhn" else 0.0), "lowest threshold"] = 0.0,
    highest: Annotated[Share, ByDataset(lambda card: 0.95 if card.name == "svhn" else 1.0), "highest threshold"] = 1.0,
) -> FreeMatch:
    """FixMatch-LPL whose threshold follows the client's confidence, class by class; no threshold is set.

    Its authors call mu_u the SAT ratio, and limit thresholds on SVHN alone.
    """
    return FreeMatch(accept=FreeThreshold(ema, lowest, highest), mu_u=mu_u, saf=saf)
