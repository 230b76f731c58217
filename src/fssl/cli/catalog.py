"""Commands that list what fssl offers: `fssl methods`, `fssl datasets`, `fssl presets` and `fssl docs`."""

import shlex
from pathlib import Path
from typing import Annotated

import typer

from ..errors import UserError, several, unknown
from .options import console, say


def methods(
    name: Annotated[str | None, typer.Argument(help="Describe this method, with its settings.")] = None,
) -> None:
    """List the methods: their idea, traffic, state, cost of a step, and source.

    `X+sage` adds the plug-in sage to method X, for any X with pseudo-labels.

    Example: `fssl methods fedloke`: its idea, settings, traffic and costs
    """
    from ..catalog.listings import overview, print_method

    if name is None:
        console.print(*overview(), sep="\n")
    else:
        print_method(console, name)


def datasets(
    check: Annotated[Path | None, typer.Option(help="Count the images in this folder and list all problems.")] = None,
    classes_of: Annotated[
        str | None,
        typer.Option(
            metavar="CONFIG", help="With --check: reject classes that are missing from data.classes of this file."
        ),
    ] = None,
    export_digits: Annotated[Path | None, typer.Option(help="Write the digits here as PNG files of 3 sites.")] = None,
    labels_at_server: Annotated[bool, typer.Option(help="With --export-digits: put the labels at the server.")] = False,
    cache: Annotated[bool, typer.Option("--cache", help="List the decoded images in the cache.")] = False,
    clear_cache: Annotated[
        bool, typer.Option("--clear-cache", help="Remove all decoded images from the cache.")
    ] = False,
) -> None:
    """List the datasets and their sources, or check a folder of your own images.

    `digits` and `synthetic` need no files. `folder` reads your own images by client: `clients/NAME/labeled/CLASS/*`,
    `clients/NAME/unlabeled/*` and `test/CLASS/*`; with partition.labels=server, labeled images are in
    `server/CLASS/*`. `imagefolder` reads your own labeled dataset, `train/CLASS/*` and `test/CLASS/*`, and divides it
    among simulated clients. Images may be PNG, JPEG, WebP, TIFF, BMP or DICOM of any size. The other datasets are
    Parquet files of the Hugging Face hub, decoded once.

    Example: `fssl datasets --check sites`: count the images, and test whether each can be read
    """
    if labels_at_server and not export_digits:
        raise UserError("--labels-at-server has no effect without --export-digits DIR; add it")
    if classes_of is not None and not check:
        raise UserError("--classes-of has no effect without --check FOLDER; add it")
    if export_digits:
        from ..data.folder.example import export_digits as export

        export(export_digits, labels_at_server)
        counting = shlex.join(["fssl", "datasets", "--check", str(export_digits)])
        say(f"{export_digits}: digits of three sites; count them with `{counting}`")
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
    say("fssl reads Parquet files from --data-dir, else from $FSSL_DATA, else from the Hugging Face hub.")
    for card in CARDS.values():
        if official := official_files(card):
            say(f"{card.name}: there may be {official} instead.")


def presets(
    name: Annotated[str | None, typer.Argument(help="Print this preset, to read or to save as your own file.")] = None,
) -> None:
    """List the ready-made configurations, or print one.

    Example: `fssl presets smoke > my.toml`: your own file to change
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
    topic: Annotated[str | None, typer.Argument(help="Print this page; a terminal shows it page by page.")] = None,
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
