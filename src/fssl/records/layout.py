"""The number of a run folder's layout, so that a version of fssl tells what it cannot know; names of files in it."""

from pathlib import Path

from ..errors import UserError
from ..system.files import read_json

FORMAT = 1  # one more when an earlier version would misread a folder; a folder without a number is of format 1
ENVIRONMENT = "env.json"
SPLIT = "split.json"  # a copy of the file that `partition.file` names


def check_format(folder: Path) -> None:
    """Refuse a run folder of a later version, before anything else in it is read."""
    found = read_json(folder / ENVIRONMENT).get("format")
    if isinstance(found, int) and found > FORMAT:
        raise UserError(
            f"{folder} was written by a newer fssl: its format is {found}, and this version reads up to {FORMAT};"
            " install the newer one"
        )
