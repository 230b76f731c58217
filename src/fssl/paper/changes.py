"""Changes of fssl that change results of the paper's settings though no setting tells: older records are marked."""

from collections.abc import Callable, Sequence
from typing import NamedTuple

from ..methods.feddb import FedDB
from ..methods.fedlabel_2m import FedLabel2M
from ..methods.fedloke import FedLoKe
from ..methods.fixmatch import FixMatch
from ..methods.names import Method
from ..report.runs import Run
from .setups import PROTOCOLS, method_on


class Change(NamedTuple):
    """What a run that was begun earlier does otherwise, and whom that concerns: a protocol and a method."""

    since: str  # UTC, in the form in which env.json has the start of a run
    what: str
    concerns: Callable[[str, Method], bool]

    def is_after(self, run: Run) -> bool:
        """Whether a run was begun, or begun again, before this change, and would be another one now."""
        began = [s["started"] for s in run.sessions if isinstance(s.get("started"), str)]
        config = run.config
        return (
            bool(began)
            and min(began) < self.since
            and self.concerns(config.protocol, method_on(config.data.name, config.method))
        )

    def remark(self, older: Sequence[Run], runs: Sequence[Run]) -> str:
        """What to say of the older ones of some runs: which seeds they are, unless all runs are older."""
        seeds = sorted({run.config.seed for run in older})
        which = "" if len(older) == len(runs) else f"seed{'s' * (len(seeds) > 1)} {', '.join(map(str, seeds))} "
        return f"{which}begun before {self.what}"


def has_guarded_loss(protocol: str, method: Method) -> bool:
    return protocol == PROTOCOLS[0] and isinstance(method, FixMatch) and type(method).step is FixMatch.step


def has_separate_passes(protocol: str, method: Method) -> bool:
    return isinstance(method, FedDB | FedLabel2M) and method.passes == "separate"


def has_ramp(protocol: str, method: Method) -> bool:
    return isinstance(method, FedLoKe) and method.ramp_rounds > 0


CHANGES = (
    Change(
        "2026-11-16T11:30:51Z", "commit 736bcc5, without the released guard in the logarithm of L_u", has_guarded_loss
    ),
    Change("2026-11-16T15:00:00Z", "views had separate passes: in one joint batch", has_separate_passes),
    Change("2026-11-16T15:00:00Z", "the ramp began at 0: a round ahead of it", has_ramp),
)


def changes_since(runs: tuple[Run, ...]) -> list[str]:
    """A remark for each change that some of these runs are older than."""
    older = {change: [run for run in runs if change.is_after(run)] for change in CHANGES}
    return [change.remark(those, runs) for change, those in older.items() if those]
