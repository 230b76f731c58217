"""Named datasets as arrays: embedded, generated, or read from files."""

import inspect
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np

from ..errors import UserError, unknown
from . import synthetic
from .cache import ALONE, Loading
from .cards import Agreed, Card, Fit, card
from .dataset import Dataset, Split
from .folder.load import load_classes, load_federation
from .idx import SUMS, find_idx, load_idx
from .parquet import lacking_files, load_parquet

__all__ = ["Dataset", "Split", "lacking", "load", "missing"]

DIGITS = Path(__file__).with_name("digits.npz")


def load(name: str, dir: Path | None = None, how: Loading = ALONE, fit: Fit = "resize", **options: Any) -> Dataset:
    """A dataset by name, from files in `dir` if it has some. `options` are those of `synthetic.make` or `Agreed`."""
    facts = replace(card(name), fit=fit)
    if name == "synthetic":
        return _synthetic(options)
    if facts.is_folder:
        if dir is None:
            raise UserError(
                f"data.name = '{name}' needs its folder: give data.dir (or dataset=, in Python)", "data.dir"
            )
        read = load_classes if facts.is_dealt else load_federation
        return read(dir, Agreed(**{"dataset": name, **options}), how)
    if options:
        raise UserError(
            f"dataset '{name}' takes no options, only synthetic and folders do (given: {', '.join(options)})"
        )
    if name == "digits":
        return _digits(facts)
    if name in SUMS and (files := find_idx(facts, dir)):
        return load_idx(facts, files, how)
    return load_parquet(facts, dir, how)


def lacking(name: str, dir: Path | None = None) -> str:
    """What a dataset with files of its own lacks, in one line, looked up without a download; empty if nothing."""
    try:
        return missing(name, dir)
    except UserError as error:
        return str(error)


def missing(name: str, dir: Path | None = None) -> str:
    """Return the source of a download; empty if the files are here. Raise UserError if there is no way to get them."""
    facts = card(name)
    is_here = facts.is_embedded or facts.is_folder or (name in SUMS and find_idx(facts, dir))
    return "" if is_here else lacking_files(facts, dir)


def _synthetic(options: dict[str, Any]) -> Dataset:
    known = inspect.signature(synthetic.make).parameters
    for option in options:
        if option not in known:
            raise unknown("synthetic option", option, known)
    facts, train, test = synthetic.make(**options)
    return Dataset(facts, Split(*train), Split(*test))


def _digits(facts: Card) -> Dataset:
    """The images of scikit-learn's `load_digits`; the file names their authors."""
    with np.load(DIGITS) as stored:
        images = np.rint(stored["images"] * (255 / 16)).astype(np.uint8)[..., None]
        labels = stored["labels"].astype(np.int64)
    random = np.random.RandomState(0)
    rows = [random.permutation(np.flatnonzero(labels == c)) for c in range(facts.num_classes)]
    is_test = np.zeros(len(labels), bool)
    is_test[np.concatenate([r[: facts.num_test // facts.num_classes] for r in rows])] = True
    return Dataset(facts, Split(images[~is_test], labels[~is_test]), Split(images[is_test], labels[is_test]))
