"""The setup of a run, which decides its cell in the paper's tables, and its differences from the paper."""

from collections import defaultdict
from collections.abc import Callable, Iterable, Mapping
from functools import cache
from math import nan
from pathlib import Path
from typing import Any, Final, NamedTuple

import numpy as np

from ..catalog.facts import same_method
from ..config import Config, MethodChoice, applies, by_card, flatten
from ..config.conditions import changes_results, noted
from ..config.rules import PaperRecipe
from ..console import setting_text
from ..data.cards import card
from ..errors import UserError
from ..report.runs import Run, late_values, number

PROTOCOLS: Final = ("authors", "clean")  # the first is the paper's
# What makes a setup, or is read off the record; all else that changes results is a difference to mention.
OF_SETUP = ("seed", "data.name", "data.label", "partition.kind", "partition.alpha", "train.rounds", "method.")


class Setup(NamedTuple):
    """The settings that the runs of one cell share. Methods are equal if they do the same, whatever they are called."""

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
    """Runs grouped by setup; and the runs that fit no table, with the reason."""
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
    "images that a script gave": lambda config: config.data.digest,
    "a partition from a file": lambda config: config.partition.file is not None,
    # Nor would it be right to run them: reading a record must not run a user's file.
    "a method or a network of one's own": lambda config: config.own_files,
}


def own_recipe(config: Config) -> str | None:
    """The first setting by which a run is trained in another way than any of the paper's."""
    ours, usual = flatten(config), flatten(Config())
    return next(
        (f"{key} = {setting_text(ours[key])}" for key, _ in noted(PaperRecipe) if ours[key] != usual[key]), None
    )


def side_settings(config: Config) -> dict[str, Any]:
    """The settings that are not part of the setup."""
    flat = flatten(by_card(config))
    return {k: v for k, v in flat.items() if changes_results(k) and not k.startswith(OF_SETUP)}


def differences(config: Config, paper: Config) -> list[str]:
    """A run's differences from the paper's settings, as sentences."""
    return unlike(side_settings(config), side_settings(paper))


def unlike(ours: Mapping[str, Any], paper: Mapping[str, Any]) -> list[str]:
    """`train.lr = 0.1 (paper: 0.03)` for each setting that is another one in the paper; one of both may be unset."""
    pairs = {key: (ours.get(key), paper.get(key)) for key in {**ours, **paper} if ours.get(key) != paper.get(key)}
    return [f"{key} = {setting_text(a)} (paper: {setting_text(b)})" for key, (a, b) in pairs.items()]


def result_at(run: Run, rounds: int, *keys: str) -> float:
    """The mean of the last ten rounds up to a given one, of the headline or of another number; nan without any."""
    lines = [line for line in run.lines if line["round"] <= rounds]
    known = late_values(lines, number(*(keys or ("accuracy",))))
    return float(np.mean(known)) if known else nan
