"""What a model says of images: probabilities, and what follows from them."""

from pathlib import PurePath
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray


class Predictions(NamedTuple):
    """One entry per image; `truth` is there if it is known of all of them."""

    classes: tuple[str, ...]
    names: list[str]
    probabilities: NDArray[np.float32]
    truth: NDArray[np.int64] | None

    @property
    def said(self) -> NDArray[np.int64]:
        return np.asarray(self.probabilities.argmax(-1))

    @property
    def labels(self) -> list[str]:
        """The name of the likeliest class."""
        return [self.classes[c] for c in self.said]

    @property
    def confidence(self) -> NDArray[np.float32]:
        return np.asarray(self.probabilities.max(-1))


def truth_of(names: list[str], classes: tuple[str, ...]) -> NDArray[np.int64] | None:
    """True classes if every image lies in a folder named after a class, or below one; else None."""
    found = [class_above(name, classes) for name in names]
    return np.array([classes.index(c) for c in found if c]) if all(found) else None


def class_above(name: str, classes: tuple[str, ...]) -> str | None:
    """The nearest folder above an image that is called like a class."""
    return next((folder.name for folder in PurePath(name).parents if folder.name in classes), None)


def other_folders(names: list[str], classes: tuple[str, ...]) -> list[str]:
    """Folders that are to blame where only some images have a class: the uppermost without any image of one.

    Plain folders of photographs, where no image has a class, are not to blame.
    """
    with_class = {PurePath(name) for name in names if class_above(name, classes)}
    good = {folder for path in with_class for folder in path.parents}
    others = [path for path in map(PurePath, names) if path not in with_class] if with_class else []
    found = (next((p for p in reversed(path.parents) if p not in good), path.parent) for path in others)
    return sorted({str(folder) for folder in found})
