"""Short checksums, and the refusal of what is no longer what was recorded."""

from hashlib import sha256

from ..errors import UserError

SHORT_DIGITS = 16  # hexadecimal: 64 bits are far beyond what accidents hit


def short_sum(data: bytes) -> str:
    return sha256(data).hexdigest()[:SHORT_DIGITS]


def check_unchanged(what: str, now: str, key: str, recorded: str | None, use: str, copy: str = "") -> None:
    """Refuse a file whose checksum is not the recorded one.

    Args:
        what: The file, as a message names it.
        now: Its checksum.
        key: The setting that records the checksum.
        recorded: What that setting says; None if nothing is recorded yet.
        use: What somebody may want to do with the file all the same.
        copy: Where a copy of the recorded file is, if there is one.
    """
    if recorded not in (None, now):
        raise UserError(
            f"{what} has changed: {key} is '{recorded}' in the settings{copy} and '{now}' now;"
            f" leave {key} out to {use} it as it is, in a new run"
        )
