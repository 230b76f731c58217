"""What commands share: the console, options, and hints for misspelt options."""

from itertools import pairwise
from operator import attrgetter
from typing import Annotated, Any

import typer
from typer.core import TyperCommand

from ..errors import UserError
from ..system.terminal import Screen

console = Screen()  # all commands print to it

Sets = Annotated[
    list[str] | None, typer.Option("--set", help="Change a setting, e.g. --set train.lr=0.05 (repeatable).")
]
Resume = Annotated[bool, typer.Option("--resume", help="Resume from the newest checkpoint in --out.")]
Overwrite = Annotated[bool, typer.Option("--overwrite", help="Replace a file of that name.")]

# Python's names of these options' arguments. Any other argument has an option of the same name.
OPTION_NAMES = {"data.dir": "--data-dir", "compute.device": "--device", "which": "--model", "file": "--out"}
GPU = ("--gpu", "--cuda")


def say(text: str) -> None:
    """Print a line without markup, colors or wrapping."""
    from ..console import say as show

    show(console, text)


def options_for(names: tuple[str, ...]) -> str:
    """Return ` (--resume, --out)`, the options of arguments that an error names; empty without any."""
    options = [OPTION_NAMES.get(name) or f"--{name.replace('_', '-')}" for name in names]
    return f" ({', '.join(options)})" if options else ""


class SettingsCommand(TyperCommand):
    """A command with `--set`. It explains words that are settings without it."""

    allow_extra_args = True  # `explain_extra` explains them

    def parse_args(self, ctx: Any, args: list[str]) -> list[str]:
        words = [*args]
        try:
            rest = super().parse_args(ctx, args)
        except Exception as error:  # click's error; typer may include its own copy of click
            if hint := setting_hint(getattr(error, "option_name", ""), words):
                raise UserError(hint) from None
            raise
        if ctx.args and not ctx.resilient_parsing:
            raise UserError(explain_extra(ctx.args, ctx.params.get("settings") or []))
        return rest


def setting_hint(option: str, words: list[str]) -> str:
    """Return a hint for an unknown option that is a setting; empty if it is none."""
    from ..config import Config, keys_like

    keys = keys_like("train", option.lstrip("-").replace("-", "_")) if option else []
    parts = [part for word in words for part in word.split("=", 1)]
    value = next((b for a, b in pairwise(parts) if a == option and not b.startswith("-")), "VALUE")
    if option in GPU:
        keys, value = ["compute.device"], "cuda"
    elif all(isinstance(attrgetter(key)(Config()), bool) for key in keys):
        value = "true"
    hint = " or ".join(f"--set {key}={value}" for key in keys)
    return f"No such option '{option}'; it is a setting: {hint}" if hint else ""


def explain_extra(words: list[str], settings: list[str]) -> str:
    """Explain words without an option: settings without `--set`, or the value of one after a space."""
    said = f"Got unexpected extra argument{'s' * (len(words) > 1)} ({' '.join(words)})"
    if cut := [setting for setting in settings if "=" not in setting]:
        return f"{said}; expected an equals sign: --set {cut[0]}={words[0]}"
    if all("=" in word for word in words):
        return f"{said}; put --set before each setting: {' '.join(f'--set {word}' for word in words)}"
    return said
