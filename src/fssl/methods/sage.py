"""SAGE (Liu et al., CVPR 2025): FixMatch labeled by the local and the global model together."""

from dataclasses import fields, replace
from typing import Annotated

from ..config import Range
from ..errors import UserError
from ..label.accept import FixedThreshold
from ..label.assign import KAPPA_STAR, VOTES, ConfidenceGap, Constant, Order, Sage
from .base import Method, Source
from .fixmatch import FixMatch, fixmatch_lpl
from .shared_settings import LabelBN, MuU, Share, Tau, VoteChoice

Kappa = Annotated[float, Range(0.0, 1e9), "how fast the local vote's weight falls with the confidence gap"]
Cpg = Annotated[bool, "use global labels where the local model is unsure"]
Cdsc = Annotated[bool, "weight the votes by the confidence gap"]
Lam = Annotated[Share | None, "a fixed weight of the local vote"]
Whose = Annotated[Order, "which model comes first"]


@Source("Liu et al. 2025", "released code", label="SAGE", look="vermilion solid circle")
def sage(
    tau: Tau = 0.95,
    kappa: Kappa = KAPPA_STAR,
    mu_u: MuU = 1.0,
    cpg: Cpg = True,
    cdsc: Cdsc = True,
    lam: Lam = None,
    vote: VoteChoice = "hard",
    label_bn: LabelBN = "train",
    order: Whose = "local-first",
) -> FixMatch:
    """Local labels mixed with global ones by their confidence gap (CDSC); where unsure, global ones (CPG).

    Ablations: cpg=false or cdsc=false switches one idea off, lam=0.3 fixes the weight of the local vote,
    vote='soft' keeps whole probabilities, label_bn='eval' labels with running statistics. order='global-first': the
    models change places, for clients without labels.
    """
    return with_sage(fixmatch_lpl(tau, mu_u, "hard", label_bn), kappa, cpg, cdsc, lam, vote, order)


@Source("Liu et al. 2025", "reconstruction", page="sage", label="SAGE", look="dashdot")
def with_sage(
    base: Method,
    kappa: Kappa = KAPPA_STAR,
    cpg: Cpg = True,
    cdsc: Cdsc = True,
    lam: Lam = None,
    vote: VoteChoice = "hard",
    order: Whose = "local-first",
) -> FixMatch:
    """SAGE as a plug-in (Tab. 4): the base keeps its thresholds, terms and aggregation."""
    if not isinstance(base, FixMatch):
        raise UserError("the plug-in 'sage' needs a method with pseudo-labels that it can replace, such as flexmatch")
    if lam is not None and (not cdsc or kappa != KAPPA_STAR):
        raise UserError("method.lam fixes the weight of the local vote, so it excludes cdsc=false and kappa: give one")
    fixed = lam if cdsc else 1.0
    weigh = ConfidenceGap(kappa) if fixed is None else Constant(fixed)
    return base.relabeled(Sage(weigh, cpg, VOTES[vote], order))


def is_sage(method: Method) -> bool:
    """Return whether a method is SAGE, with no settings but SAGE's."""
    if type(method) is not FixMatch or not isinstance(method.assign, Sage) or type(method.accept) is not FixedThreshold:
        return False
    own = ("accept", "assign", "mu_u", "label_bn", "oracle", *(field.name for field in fields(Method)))
    return method == FixMatch(**{name: getattr(method, name) for name in own})


@Source("Liu et al. 2025", "paper", page="sage", label="oracle", look="longdash")
def with_oracle(base: Method) -> FixMatch:
    """Oracle: drops every wrong pseudo-label (Fig. 1b)."""
    if not isinstance(base, FixMatch):
        raise UserError("the plug-in 'oracle' needs a method with pseudo-labels that it can drop, such as flexmatch")
    return replace(base, oracle=True)
