"""Changes of fssl that change results of the paper's settings though no setting tells: older records are marked."""

from collections.abc import Callable, Sequence
from typing import NamedTuple

from ..catalog.facts import registry
from ..config import MethodChoice
from ..report.runs import Run
from .setups import PROTOCOLS, method_on

# Methods of that time that took FixMatch's own step.
OF_FIXMATCH = (
    *("fixmatch-lpl", "fixmatch-gpl", "fedprox+fixmatch", "flexmatch", "freematch", "fedlabel", "feddb", "sage"),
    *("proxyfl", "feddure", "feddure-full"),
)


class Change(NamedTuple):
    """What a run that was begun earlier does otherwise, and whom that concerns: a protocol and a method."""

    since: str  # UTC, in the form in which env.json has the start of a run
    what: str
    concerns: Callable[[str, MethodChoice], bool]

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


def base_of(method: MethodChoice) -> str:
    """Its name without plug-ins."""
    return registry().split(method.name)[0]


def has_guarded_loss(protocol: str, method: MethodChoice) -> bool:
    return protocol == PROTOCOLS[0] and base_of(method) in OF_FIXMATCH


def has_separate_passes(protocol: str, method: MethodChoice) -> bool:
    return base_of(method) in ("feddb", "fedlabel-2m") and dict(method.settings)["passes"] == "separate"


def has_ramp(protocol: str, method: MethodChoice) -> bool:
    return base_of(method) == "fedloke" and dict(method.settings)["ramp_rounds"] > 0


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
