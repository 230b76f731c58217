"""The setup of a run, which decides its cell in the paper's tables, its differences from the paper, and its age."""

from collections import defaultdict
from collections.abc import Callable, Iterable, Mapping, Sequence
from functools import cache
from math import nan
from pathlib import Path
from typing import Any, Final, NamedTuple

import numpy as np

from ..catalog.facts import registry, same_method
from ..config import Config, MethodChoice, applies, by_card, flatten
from ..config.conditions import changes_results, noted
from ..config.rules import PaperRecipe
from ..console import setting_text
from ..data.cards import card
from ..errors import UserError
from ..reports.runs import Run, late_values, number

PROTOCOLS: Final = ("authors", "clean")  # the first is the paper's
# A setup, or numbers read from the record; other settings that change results are reported as differences.
OF_SETUP = ("seed", "data.name", "data.label", "partition.kind", "partition.alpha", "train.rounds", "method.")


class Setup(NamedTuple):
    """The settings that the runs of one cell share. Methods that differ only in name are equal."""

    dataset: str
    labels_per_class: int
    partition: str
    alpha: float
    method: MethodChoice


@cache
def method_on(dataset: str, choice: MethodChoice) -> MethodChoice:
    """Return a method under one name, with all settings; some defaults depend on the dataset."""
    return same_method(choice, card(dataset))


def setup_of(config: Config) -> Setup:
    part, method = config.partition, method_on(config.data.name, config.method)
    alpha = part.alpha if applies(config, "partition.alpha") else 0.0
    some = "" if part.labeled_clients is None else f" with labeled_clients = {part.labeled_clients}"
    some += f" and first_clients = {list(part.first_clients)}" if part.first_clients else ""
    is_told = part.labels == "server" or (some and part.labels != "few-clients")
    deal = part.kind + some + (f" and labels = {part.labels}" if is_told else "")
    deal += " and train.draw = labeled" if config.train.draw == "labeled" else ""
    return Setup(config.data.name, config.labels_per_class, deal, alpha, method)


def by_setup(runs: Iterable[Run]) -> tuple[dict[Setup, list[Run]], dict[Path, str]]:
    """Return runs grouped by setup; and the runs that fit no table, with the reason."""
    known: dict[Setup, list[Run]] = defaultdict(list)
    strange: dict[Path, str] = {}
    for run in runs:
        if what := next((what for what, is_so in STRANGE.items() if is_so(run.config)), ""):
            strange[run.path] = f"no table has {what}"
            continue
        try:
            known[setup_of(run.config)].append(run)
        except UserError as error:
            strange[run.path] = str(error)
    return known, strange


STRANGE: dict[str, Callable[[Config], object]] = {
    "a folder of images": lambda config: config.card.is_folder,
    "images passed in Python": lambda config: config.data.digest,
    "a partition from a file": lambda config: config.partition.file is not None,
    # Running them would also be wrong: reading a record must not execute a user's file.
    "a custom method or network": lambda config: config.own_files,
}


def own_recipe(config: Config) -> str | None:
    """Return the first setting that changes the training from all of the paper's runs."""
    ours, usual = flatten(config), flatten(Config())
    return next(
        (f"{key} = {setting_text(ours[key])}" for key, _ in noted(PaperRecipe) if ours.get(key) != usual.get(key)), None
    )


def side_settings(config: Config) -> dict[str, Any]:
    """Return the settings that are not part of the setup."""
    flat = flatten(by_card(config))
    return {k: v for k, v in flat.items() if changes_results(k) and not k.startswith(OF_SETUP)}


def differences(config: Config, paper: Config) -> list[str]:
    """Return a run's differences from the paper's settings, as sentences."""
    return unlike(side_settings(config), side_settings(paper))


def unlike(ours: Mapping[str, Any], paper: Mapping[str, Any]) -> list[str]:
    """Return `train.lr = 0.1 (paper: 0.03)` for each setting that differs from the paper; one of both may be unset."""
    pairs = {key: (ours.get(key), paper.get(key)) for key in {**ours, **paper} if ours.get(key) != paper.get(key)}
    return [f"{key} = {setting_text(a)} (paper: {setting_text(b)})" for key, (a, b) in pairs.items()]


def result_at(run: Run, rounds: int, *keys: str) -> float:
    """Return the mean of the last ten rounds up to a given one, of the headline or another number; nan without any."""
    lines = [line for line in run.lines if line["round"] <= rounds]
    known = late_values(lines, number(*(keys or ("accuracy",))))
    return float(np.mean(known)) if known else nan


# Changes of fssl that changed results of the paper's settings without a new setting: older records are marked.

# Methods of that time that took FixMatch's own step.
OF_FIXMATCH = (
    *("fixmatch-lpl", "fixmatch-gpl", "fedprox+fixmatch", "flexmatch", "freematch", "fedlabel", "feddb", "sage"),
    *("proxyfl", "feddure", "feddure-full"),
)


class Change(NamedTuple):
    """A difference in runs started before a change, with the protocol and the methods concerned."""

    since: str  # UTC, in the form in which env.json has the start of a run
    what: str
    concerns: Callable[[str, MethodChoice], bool]

    def is_after(self, run: Run) -> bool:
        """Return whether this change came after the run's first start, and concerns it."""
        began = [s["started"] for s in run.sessions if isinstance(s.get("started"), str)]
        config = run.config
        return (
            bool(began)
            and min(began) < self.since
            and self.concerns(config.protocol, method_on(config.data.name, config.method))
        )

    def remark(self, older: Sequence[Run], runs: Sequence[Run]) -> str:
        """Return a remark on the older ones of some runs: their seeds, unless all runs are older."""
        seeds = sorted({run.config.seed for run in older})
        which = "" if len(older) == len(runs) else f"seed{'s' * (len(seeds) > 1)} {', '.join(map(str, seeds))} "
        return f"{which}begun before {self.what}"


def base_of(method: MethodChoice) -> str:
    """Return a method's name without plug-ins."""
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
    """Return a remark for each change that came after some of these runs."""
    older = {change: [run for run in runs if change.is_after(run)] for change in CHANGES}
    return [change.remark(those, runs) for change, those in older.items() if those]
