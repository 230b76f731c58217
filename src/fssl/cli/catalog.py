"""Commands that list what there is: `fssl methods`, `fssl datasets`, `fssl presets` and `fssl docs`."""

import shlex
from pathlib import Path
from typing import Annotated

import typer

from ..errors import UserError, several, unknown
from .options import console, say


def methods(
    name: Annotated[str | None, typer.Argument(help="One method, with plug-ins or without: its settings too.")] = None,
) -> None:
    """List the methods: what each does, sends and keeps, what a step costs, and which source it follows.

    `X+sage` is method X with the plug-in sage on it, for any X with pseudo-labels.

    Example: `fssl methods fedloke`: what it does, its settings, bytes and costs in full
    """
    from ..catalog.listings import overview, print_method

    if name is None:
        console.print(*overview(), sep="\n")
    else:
        print_method(console, name)


def datasets(
    check: Annotated[Path | None, typer.Option(help="Count the images in this folder and name every problem.")] = None,
    classes_of: Annotated[
        str | None,
        typer.Option(metavar="CONFIG", help="With --check: reject classes that data.classes of this file lacks."),
    ] = None,
    export_digits: Annotated[Path | None, typer.Option(help="Write the digits here as PNG files of 3 sites.")] = None,
    labels_at_server: Annotated[bool, typer.Option(help="With --export-digits: the server has the labels.")] = False,
    cache: Annotated[bool, typer.Option("--cache", help="List the decoded images in the cache.")] = False,
    clear_cache: Annotated[
        bool, typer.Option("--clear-cache", help="Remove all decoded images from the cache.")
    ] = False,
) -> None:
    """List the datasets and where each comes from, or look at a folder of your own images.

    `digits` and `synthetic` need no files. `folder` is your own images: `clients/NAME/labeled/CLASS/*`,
    `clients/NAME/unlabeled/*` and `test/CLASS/*`, PNG, JPEG, WebP, TIFF, BMP or DICOM of any size; with
    partition.labels=server the labeled ones are in `server/CLASS/*`. `imagefolder` is a labeled dataset of your own,
    `train/CLASS/*` and `test/CLASS/*`, dealt out by [partition]. The others are read from the hub's Parquet files,
    decoded once.

    Example: `fssl datasets --check sites`: what a folder holds, and whether every image can be read
    """
    if labels_at_server and not export_digits:
        raise UserError("--labels-at-server goes with --export-digits DIR: give both")
    if classes_of is not None and not check:
        raise UserError("--classes-of goes with --check FOLDER: give both")
    if export_digits:
        from ..data.folder.example import export_digits as export

        export(export_digits, labels_at_server)
        counting = shlex.join(["fssl", "datasets", "--check", str(export_digits)])
        say(f"{export_digits}: the digits of three sites; `{counting}` counts them")
    if check:
        from ..catalog.listings import agreed_classes, print_folder

        print_folder(console, check, () if classes_of is None else agreed_classes(classes_of))
    if cache:
        from ..data.cache import cache_folder, cached_files

        files = cached_files()
        for path, size in files:
            say(f"{path.name}  {size / 1e6:.1f} MB")
        total = sum(size for _, size in files) / 1e6
        say(f"{cache_folder()}: {several(len(files), 'file')} of decoded images, {total:.1f} MB")
    if clear_cache:
        from ..data.cache import clear_cache as clear

        number, size = clear()
        say(f"removed {several(number, 'file')} of decoded images, {size / 1e6:.1f} MB")
    if not (check or export_digits or cache or clear_cache):
        list_datasets()


def list_datasets() -> None:
    from ..catalog import listings
    from ..data.cards import CARDS
    from ..data.idx import official_files

    console.print(listings.datasets())
    say("10 %: labeled images per class at the paper's 10 %, the default.")
    say("Parquet files are looked for in --data-dir, then $FSSL_DATA, then on the Hugging Face hub.")
    for card in CARDS.values():
        if official := official_files(card):
            say(f"{card.name}: there may be {official} instead.")


def presets(
    name: Annotated[str | None, typer.Argument(help="One preset: print it, to read or to start a file from.")] = None,
) -> None:
    """List the ready-made configurations, or print one.

    Example: `fssl presets smoke > my.toml`: a file of your own to change
    """
    from ..catalog.listings import preset_table
    from ..config import PRESETS
    from ..config import presets as names

    if not name:
        return console.print(preset_table())
    if name not in names():
        raise unknown("preset", name, names())
    print_lines((PRESETS / f"{name}.toml").read_text())


def docs(
    topic: Annotated[str | None, typer.Argument(help="One page: print it, in a terminal page by page.")] = None,
) -> None:
    """List the pages of the documentation, or print one.

    Example: `fssl docs sage`: a method's idea, equation and settings
    """
    from ..catalog.listings import page_table, pages

    if not topic:
        return console.print(page_table())
    found = pages()
    if topic not in found:
        raise unknown("topic", topic, found)
    text = found[topic].read_text(encoding="utf-8")
    if not console.is_terminal:
        return print_lines(text)
    from pydoc import pager

    pager(text)


def print_lines(text: str) -> None:
    for line in text.rstrip().splitlines():
        say(line)
