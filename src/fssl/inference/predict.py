"""Write predictions of a run's model: a file with a line per image, and a table by class."""

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import replace
from pathlib import Path, PurePath
from typing import NamedTuple

import numpy as np
import torch
from numpy.typing import NDArray
from rich.console import Console
from rich.table import Column, Table

from ..console import PLAIN, RunView, print_table, say
from ..core.experiment import with_folder
from ..core.images import load_dataset, rows_for_test
from ..data.cache import Loading, Progress
from ..data.dataset import Dataset
from ..data.folder.listing import list_images
from ..data.folder.load import raise_problems, read_images
from ..errors import ProblemsError, UserError, several, shortened
from ..probes.measures import answers_of
from ..records.store import RunFolder
from ..system.files import as_csv, write_file
from ..system.machine import check_file, check_folder, check_new, cores
from .quality import PAGE, QUALITY_FILES, measures_text, write_measures
from .trained import Predictions, Trained, best_device, class_above, load_trained, model_notes, truth_of

NamedImages = tuple[list[str], NDArray[np.uint8]]  # names and images
BATCH = 1000  # test images between two updates of the progress


class Output(NamedTuple):
    """The file to write, whether it may overwrite another, and whether it has the probability of every class."""

    file: Path
    overwrite: bool = False
    probabilities: bool = False


def predict(
    console: Console,
    run: Path,
    images: Path | None,
    out: Output,
    data_dir: Path | None = None,
    which: str = "",
    measures: Path | None = None,
) -> None:
    """Label the images below a folder, or the run's own test images, and print a summary."""
    check_file("out", out.file, ".csv")
    check_new("out", out.file, out.overwrite)
    if measures:
        check_measures(measures, out.overwrite)
    model = load_trained(run, torch.device("cpu"), which)
    unread: list[str] = []
    skipped: Sequence[str] = ()
    with RunView(console, "images", transient=True) as view:
        if images:
            made, unread, skipped = of_files(model, images, view.loading())
        else:
            made = of_test(model, data_dir, view.loading())
    write_file(out.file, csv_text(made, out.probabilities))
    print_table(console, by_class(made) if made.truth is None else by_truth(made))
    report_measures(console, made, measures, f"{run.resolve().name}: {images or 'test images'}")
    say(console, f"{several(len(made.names), 'image')}{accuracy(made)}: {out.file}")
    for line in (*model_notes(model, run, which), *(f"skipped {file}" for file in skipped)):
        say(console, line)
    if unread:
        them = "it" if len(unread) == 1 else "them"
        headline = f"{several(len(unread), 'file')} could not be read, so {out.file} lacks {them}:"
        raise ProblemsError(headline, unread, most=len(unread), code=1)


def check_measures(folder: Path, overwrite: bool) -> None:
    """Reject, before the work, a folder that cannot take measures, or has files of their names."""
    check_folder("measures", folder)
    if RunFolder(folder).is_of_a_run:  # its measures.json is another file
        raise UserError(f"{folder}: is a run folder; choose another one, such as {folder / 'measures'}", "measures")
    for name in QUALITY_FILES:
        check_new("measures", folder / name, overwrite)


def report_measures(console: Console, made: Predictions, folder: Path | None, title: str) -> None:
    """Print the measures of predictions whose truth is known, and write them into a folder if one is named."""
    if made.truth is None:
        if others := other_folders(made.names, made.classes):
            them = shortened([f"'{name}'" for name in others], 10)
            them = f"folder {them} is" if len(others) == 1 else f"folders {them} are"
            say(console, f"no accuracy: {them} none of the model's classes ({shortened(made.classes, 10)})")
        if folder:
            say(console, f"{folder} is not written, because some images are not in a folder named like a class")
        return
    answers = answers_of(made.probabilities, made.truth)
    say(console, measures_text(answers))
    if folder:
        write_measures(folder, answers, made.classes, title)
        say(console, f"measures: {folder / PAGE}")


def of_files(model: Trained, path: Path, progress: Progress) -> tuple[Predictions, list[str], Sequence[str]]:
    """Return predictions for every readable image, and the other files with the reasons."""
    listing = list_images(path)
    names, p = look_at(model, read_images(listing, model.card, Loading(progress=progress, workers=cores())))
    if not names:
        raise_problems(listing)
    return Predictions(model.classes, names, p, truth_of(names, model.classes)), listing.problems, listing.skipped


def of_test(model: Trained, data_dir: Path | None, progress: Progress) -> Predictions:
    data = replace(model.config.data, dir=str(data_dir)) if data_dir else model.config.data
    if data_dir and model.card.is_embedded:
        raise UserError(f"data.dir = '{data_dir}': {model.card.name} needs no files; leave it out", "data.dir")
    dataset = load_dataset(replace(model.config, data=data), progress)
    with_folder(model.config, dataset)  # reject a folder whose files changed
    rows = rows_for_test(model.config, dataset)
    names, p = look_at(model, named(dataset, rows, progress))
    return Predictions(model.classes, names, p, dataset.test.labels[rows])


def look_at(model: Trained, batches: Iterable[NamedImages]) -> tuple[list[str], NDArray[np.float32]]:
    looked = []
    for names, images in batches:
        model = model.on(best_device())  # only now: decoding forks processes, which a GPU in use forbids
        looked.append((names, model.probabilities(images)))
    nothing = np.zeros((0, len(model.classes)), np.float32)
    return [name for names, _ in looked for name in names], np.concatenate([nothing, *(p for _, p in looked)])


def named(dataset: Dataset, rows: NDArray[np.int64], progress: Progress) -> Iterator[NamedImages]:
    """Yield test images in the dataset's order, named by their files or else numbered from 0."""
    names = dataset.test_names or range(len(dataset.test.labels))
    for first in range(0, len(rows), BATCH):
        batch = rows[first : first + BATCH]
        yield [str(names[row]) for row in batch], dataset.test.images[batch]
        progress("looking at images", first + len(batch), len(rows))


def csv_text(made: Predictions, probabilities: bool = False) -> str:
    columns: dict[str, Iterable[str]] = {
        "image": made.names,
        "class": made.labels,
        "confidence": (f"{c:.4f}" for c in made.confidence),
    }
    if made.truth is not None:
        columns["truth"] = (made.classes[c] for c in made.truth)
    if probabilities:
        columns |= {f"p_{name}": (f"{p:.6f}" for p in made.probabilities[:, c]) for c, name in enumerate(made.classes)}
    rows = (dict(zip(columns, row, strict=True)) for row in zip(*columns.values(), strict=True))
    return as_csv(list(columns), rows)


def accuracy(made: Predictions) -> str:
    return "" if made.truth is None else f", {100 * np.mean(made.said == made.truth):.2f} % right"


def by_class(made: Predictions) -> Table:
    table = Table("class", Column("images", justify="right"), Column("mean confidence", justify="right"), **PLAIN)
    for c, name in enumerate(made.classes):
        mine = made.said == c
        if mine.any():
            table.add_row(name, str(mine.sum()), f"{made.confidence[mine].mean():.3f}")
    return table


def by_truth(made: Predictions) -> Table:
    """Return a table with the number of correct images of each class, and its most frequent confusion."""
    assert made.truth is not None
    numbers = (Column(name, justify="right") for name in ("images", "right"))
    table = Table("class", *numbers, "most often taken for", **PLAIN)
    for c, name in enumerate(made.classes):
        said = np.bincount(made.said[made.truth == c], minlength=len(made.classes))
        total, right, said[c] = said.sum(), said[c], 0
        if total:
            wrong = f"{made.classes[said.argmax()]} ({said.max()})" if said.any() else "–"
            table.add_row(name, str(total), f"{100 * right / total:.1f} %", wrong)
    return table


def other_folders(names: list[str], classes: tuple[str, ...]) -> list[str]:
    """Return the uppermost folders without an image of a class, if only some images have one.

    If no image has a class, as in plain folders of photographs, return none.
    """
    with_class = {PurePath(name) for name in names if class_above(name, classes)}
    good = {folder for path in with_class for folder in path.parents}
    others = [path for path in map(PurePath, names) if path not in with_class] if with_class else []
    found = (next((p for p in reversed(path.parents) if p not in good), path.parent) for path in others)
    return sorted({str(folder) for folder in found})
