"""Load images from the hub's Parquet files: find or download them, check, decode once and cache."""

import io
import re
from collections.abc import Iterator
from contextlib import contextmanager
from functools import partial
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
from numpy.typing import NDArray
from PIL import Image

from ..errors import UserError
from ..system.workers import forked, map_pieces
from .cache import ALONE, SPLITS, Loading, cached_split, fit_images, from_environment, num_images
from .cards import Card
from .dataset import Dataset, Split
from .folder.pictures import IMAGE_FORMATS
from .idx import official_files

ParquetRows = tuple[Path, int, list[bytes | None]]  # file, number of the first row, encoded images

BATCH = 2048  # rows read at a time: about 6 MB decoded
PIECE = 128  # rows per task of a decoding process
SNAPSHOT = re.compile(r"/snapshots/([0-9a-f]{40})/")  # the folder of a download, named by its commit
SHARD = re.compile(r"-(\d+)-of-(\d+)(?:-[0-9a-f]+)?\.parquet$")


def load_parquet(facts: Card, dir: Path | None = None, how: Loading = ALONE, revision: str | None = None) -> Dataset:
    """Load images from Parquet files in `dir`, otherwise $FSSL_DATA, otherwise the hub; decoded once into the cache."""
    files = find_files(facts, dir, revision)
    commit = SNAPSHOT.search(files[SPLITS[0]][0].as_posix())

    def decoded(split: str) -> Iterator[Split]:
        _check_files(facts, split, files[split])
        return _decoded(facts, files[split], how.workers)

    train, test = (cached_split(facts, split, files[split], decoded, how) for split in SPLITS)
    return Dataset(facts, train, test, revision=commit[1] if commit else None)


def find_files(facts: Card, dir: Path | None = None, revision: str | None = None) -> dict[str, list[Path]]:
    """Return the complete list of Parquet files of each split, downloaded if no folder has them."""
    given = dir or from_environment("FSSL_DATA")
    folder = _folder(facts, given) if given else None
    if folder is None:
        where = "is no such folder" if given and not given.is_dir() else "has no train-*.parquet files"
        lead = f"{facts.name}: '{given}' {where}" if given else f"{facts.name}: no data folder is given"
        if dir:
            raise UserError(f"{lead}; {_remedy(facts)}", "data.dir")
        snapshot = _download(facts, lead, revision)
        folder = _folder(facts, snapshot) or snapshot
    return {split: _shards(facts, folder, split) for split in SPLITS}


def lacking_files(facts: Card, dir: Path | None = None) -> str:
    """Return the source of a download; empty if the files are here. Raise UserError if they cannot be downloaded."""
    given = dir or from_environment("FSSL_DATA")
    is_here = given is not None and _folder(facts, given) is not None
    if not is_here and dir is None and find_spec("huggingface_hub"):
        return f"{facts.name}: not in a data folder; a run downloads it from the Hugging Face hub, {facts.hub_repo}"
    find_files(facts, dir)  # raises, since nothing can download
    return ""


def _remedy(facts: Card) -> str:
    """Return advice for a named folder without files, for which nothing is downloaded."""
    first = "" if find_spec("huggingface_hub") else "`pip install 'fssl[hub]'` and "
    return f"put {_wanted(facts)} there; or {first}remove data.dir to download {facts.hub_repo}"


def _place(facts: Card) -> str:
    return f"point data.dir or FSSL_DATA at a folder with {_wanted(facts)}"


def _wanted(facts: Card) -> str:
    files = " and ".join(f"{facts.name}/{split}-*.parquet" for split in SPLITS)
    official = official_files(facts)
    return f"{files}{f', or {official}' if official else ''}"


def _again(facts: Card) -> str:
    return f"download it again from hub repository {facts.hub_repo}"


def _folder(facts: Card, root: Path) -> Path | None:
    """Return the folder with the files: with or without the dataset's name and the hub's inner folder."""
    for base in (root / facts.name, root):
        for folder in (base, base / (facts.hub_config or "data"), base / "data"):
            if any(any(folder.glob(f"{split}-*.parquet")) for split in SPLITS):
                return folder
    return None


def _shards(facts: Card, folder: Path, split: str) -> list[Path]:
    files = sorted(folder.glob(f"{split}-*.parquet"))
    if not files:
        raise UserError(f"{facts.name}: no {split}-*.parquet in '{folder}'; {_again(facts)}")
    marks = [mark for file in files if (mark := SHARD.search(file.name))]
    if not marks:
        return files
    total = int(marks[0][2])
    present = [int(mark[1]) for mark in marks]
    for i in range(total):
        if i not in present:
            lost = f"{split}-{i:05d}-of-{total:05d}.parquet"
            raise UserError(f"{facts.name}: '{folder / lost}' is missing; {_again(facts)}")
    if len(files) != total:
        raise UserError(
            f"{facts.name}: {len(files)} {split} files in '{folder}', expected {total}:"
            f" remove the others ({', '.join(file.name for file in files)})"
        )
    return files


def _download(facts: Card, lead: str, revision: str | None) -> Path:
    try:
        from huggingface_hub import snapshot_download
    except ImportError as error:
        remedy = f"{_place(facts)}, or `pip install 'fssl[hub]'` to download {facts.hub_repo}"
        raise UserError(f"{lead}, and huggingface_hub is not installed; {remedy}", "data.dir") from error
    assert facts.hub_repo is not None  # only embedded datasets and folders have none
    patterns = [f"{facts.hub_config or 'data'}/{split}-*.parquet" for split in SPLITS]
    try:
        place = snapshot_download(facts.hub_repo, repo_type="dataset", revision=revision, allow_patterns=patterns)
        return Path(place)
    except Exception as error:  # the hub client raises errors of several libraries
        reason = (str(error).strip() or type(error).__name__).splitlines()[0]
        at = f" at data.revision = '{revision}'" if revision else ""
        raise UserError(
            f"{lead}, and the download of {facts.hub_repo}{at} failed ({reason}); {_place(facts)}", "data.dir"
        ) from error


def _check_files(facts: Card, split: str, files: list[Path]) -> None:
    """Check columns and row counts, which Parquet gives without reading any image."""
    found, num_rows = 0, num_images(facts, split)
    for file in files:
        with _parquet(facts, file) as parquet:
            _check_columns(facts, file, parquet.schema_arrow)
            found += parquet.metadata.num_rows
    if found != num_rows:
        names = ", ".join(file.name for file in files)
        raise UserError(
            f"{facts.name} {split}: {found} images in '{files[0].parent}' ({names}),"
            f" expected {num_rows}; {_again(facts)}"
        )


def _check_columns(facts: Card, file: Path, schema: pa.Schema) -> None:
    for column in (facts.image_column, facts.label_column):
        if (number := schema.names.count(column)) != 1:
            found, names = f"{number} columns" if number else "no column", ", ".join(schema.names)
            raise UserError(f"'{file}' has {found} '{column}', expected one for {facts.name} (columns: {names})")
    kind = schema.field(facts.image_column).type
    if not (pa.types.is_struct(kind) and kind.get_field_index("bytes") >= 0):
        raise UserError(f"'{file}': column '{facts.image_column}' is {kind}, expected struct<bytes, path>")
    kind = schema.field(facts.label_column).type
    if not pa.types.is_integer(kind):
        raise UserError(f"'{file}': column '{facts.label_column}' is {kind}, expected whole numbers")


@contextmanager
def _parquet(facts: Card, file: Path) -> Iterator[Any]:
    try:
        with pq.ParquetFile(file) as parquet:
            yield parquet
    except (pa.ArrowException, OSError) as error:
        size = file.stat().st_size if file.exists() else 0
        reason = str(error).splitlines()[0]
        raise UserError(
            f"'{file}' ({size} bytes) is not a readable Parquet file; {_again(facts)} [{reason}]"
        ) from error


def _decoded(facts: Card, files: list[Path], workers: int) -> Iterator[Split]:
    """Yield batches of decoded images, in file order."""
    decode = partial(_decode, facts)
    with forked(workers) as pool:
        for (file, first, encoded), labels in _read(facts, files):
            pieces = [(file, first + i, encoded[i : i + PIECE]) for i in range(0, len(encoded), PIECE)]
            yield Split(np.concatenate(map_pieces(pool, decode, pieces)), labels)


def _read(facts: Card, files: list[Path]) -> Iterator[tuple[ParquetRows, NDArray[np.int64]]]:
    columns = [facts.image_column, facts.label_column]
    for file in files:
        first = 0
        with _parquet(facts, file) as parquet:
            # One thread: decoding dominates, and forking is safest before there are other threads.
            for batch in parquet.iter_batches(BATCH, columns=columns, use_threads=False):
                encoded = batch.column(facts.image_column).field("bytes").to_pylist()
                labels = _labels(facts, file, first, batch.column(facts.label_column))
                yield (file, first, encoded), labels
                first += len(labels)


def _labels(facts: Card, file: Path, first: int, column: pa.Array) -> NDArray[np.int64]:
    signed = column.cast(pa.int64(), safe=False).fill_null(-1)  # unsigned values beyond its range become negative
    labels: NDArray[np.int64] = signed.to_numpy(zero_copy_only=False)
    wrong = np.flatnonzero((labels < 0) | (labels >= facts.num_classes))
    if len(wrong):
        row = int(wrong[0])
        raise UserError(
            f"'{file}', row {first + row}: {facts.label_column} is {column[row]}, expected 0 to {facts.num_classes - 1}"
        )
    return labels


def _decode(facts: Card, rows: ParquetRows) -> NDArray[np.uint8]:
    file, first, encoded = rows
    size = facts.file_size or facts.size
    shape = (size, size, facts.channels)
    mode = "RGB" if facts.channels == 3 else "L"
    images = np.empty((len(encoded), *shape), np.uint8)
    for i, data in enumerate(encoded):
        try:
            with Image.open(io.BytesIO(data or b""), formats=IMAGE_FORMATS) as image:
                pixels = np.asarray(image if image.mode == mode else image.convert(mode))
        except Exception as error:  # a damaged image makes Pillow raise almost anything
            raise UserError(
                f"'{file}', row {first + i}: no readable image ({type(error).__name__}),"
                f" expected {', '.join(IMAGE_FORMATS)}; {_again(facts)}"
            ) from error
        if pixels.shape[:2] != shape[:2]:
            height, width = pixels.shape[:2]
            wanted = f"expected {size}x{size}"
            raise UserError(f"'{file}', row {first + i}: the image is {width}x{height}, {wanted}")
        images[i] = pixels.reshape(shape)
    return fit_images(images, facts)
