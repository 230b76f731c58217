"""Curves of the page: mean and spread by round over the seeds of a line."""

import math
from collections.abc import Sequence
from typing import Any

import numpy as np

from ...probes.host import divided
from ..runs import Numbers
from .reading import QUANTITIES, Quantity, Reading

Json = dict[str, Any]
SHOWN = 3  # significant digits of a standard deviation where one points at a curve


def curves_of(runs: Sequence[Reading]) -> Json:
    """Every quantity that a run of a line has, over its seeds, by round from 1 with gaps as null."""
    known = {q: [by_round(run, q) for run in runs if has(run, q)] for q in QUANTITIES}
    return {q.key: over_seeds(series, q.digits) for q, series in known.items() if series}


def has(run: Reading, quantity: Quantity) -> bool:
    return not np.isnan(run.values(quantity.key)).all()


def by_round(run: Reading, quantity: Quantity) -> Numbers:
    """A quantity at its round less one; nan where nothing was counted."""
    values = np.full(run.last_round, np.nan)
    values[np.array(run.rounds) - 1] = run.values(quantity.key)
    return values


def over_seeds(series: Sequence[Numbers], digits: int) -> Json:
    """Mean and sample standard deviation over the seeds that have a round, and how many have it."""
    values = np.full((len(series), max(map(len, series))), np.nan)
    for row, each in zip(values, series, strict=True):
        row[: len(each)] = each
    seeds = (~np.isnan(values)).sum(0)
    mean = divided(np.nansum(values, 0), seeds)
    std = np.sqrt(divided(np.nansum((values - mean) ** 2, 0), seeds - 1))
    return {"mean": plain(mean, digits), "std": plain(significant(std), digits + SHOWN), "seeds": seeds.tolist()}


def significant(values: Numbers) -> Numbers:
    """Numbers from 0 as they are shown: more digits would only make the page larger."""
    size = np.floor(np.log10(values, out=np.zeros(len(values)), where=values > 0))
    scale = 10.0 ** (SHOWN - 1 - size)
    return np.round(values * scale) / scale


def plain(values: Numbers, digits: int) -> list[Any]:
    """Numbers as JSON has them: rounded, and null for nan."""
    rounded: list[float] = np.round(values, digits).tolist()
    return [None if math.isnan(value) else value for value in rounded] if np.isnan(values).any() else rounded
