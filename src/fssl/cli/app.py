"""The `fssl` command: its options, its commands in order, and exit codes for errors."""

import os
import signal
import sys
import traceback
from io import TextIOWrapper
from typing import Annotated, Any

import typer
from typer.core import TyperGroup

from ..errors import ProblemsError, RunError, UserError, complain, is_out_of_memory
from ..system.machine import handled
from ..system.terminal import by_line
from .benchmark import reproduce, submit, verify
from .catalog import datasets, docs, methods, presets
from .deploy import app as deploy
from .options import SettingsCommand, console, options_for
from .results import compare, export, figures, pack, predict, records, report, show, tables
from .running import bench, replay, run


class CommandList(TyperGroup):
    """All commands, listed without boxes: to draw boxes, typer imports a Markdown reader, which takes 0.1 s."""

    def format_help(self, ctx: Any, formatter: Any) -> None:
        super(TyperGroup, self).format_help(ctx, formatter)
        typer.echo(formatter.getvalue(), nl=False)  # print here, as typer does: without a command, an error follows
        formatter.buffer.clear()

    def format_commands(self, ctx: Any, formatter: Any) -> None:
        with formatter.section("Commands"):
            formatter.write_dl(
                [(name, command.get_short_help_str(limit=1000)) for name, command in self.commands.items()]
            )


app = typer.Typer(
    cls=CommandList,
    help="Federated semi-supervised learning: run, compare and extend methods such as SAGE.\n\n"
    "Start with `fssl run smoke`, then `fssl show runs/smoke`; `fssl presets` lists what is ready to run.",
    no_args_is_help=True,
    pretty_exceptions_enable=False,
    rich_markup_mode="markdown",
    context_settings={"help_option_names": ["--help", "-h"]},
)
COMMANDS = (
    run,
    replay,
    methods,
    datasets,
    presets,
    show,
    predict,
    export,
    compare,
    tables,
    figures,
    report,
    pack,
    submit,
    verify,
    reproduce,
    bench,
    docs,
)
for command in COMMANDS:  # `fssl --help` lists them in this order
    app.command(cls=SettingsCommand if "settings" in command.__annotations__ else None)(command)
app.add_typer(records, name="records")
app.add_typer(deploy, name="deploy")
INTERRUPTED = 130  # exit code after Ctrl-C, or SIGTERM, which schedulers send


def show_version(wanted: bool) -> None:
    if wanted:
        from .. import __version__

        console.print(f"fssl {__version__}", highlight=False)
        raise typer.Exit


@app.callback()
def options(
    version: Annotated[
        bool, typer.Option("--version", callback=show_version, is_eager=True, help="Show the version and exit.")
    ] = False,
) -> None: ...


def reject_null(words: list[str]) -> None:
    """Reject null characters: a shell cannot pass one, but a script can, and names and settings cannot hold it."""
    for word in words:
        if "\0" in word:
            raise UserError(f"{word}: a null character cannot be part of a name or a setting")


def once(said: str) -> str:
    """Return click's message about a wrong command line with one guess: typer 0.20 repeats that of click 8.4."""
    start, mark, guess = said.rpartition(" Did you mean ")
    return start if mark and start.endswith(mark + guess) else said


def main() -> None:
    """Entry point: bad input ends in one line and exit code 2."""
    for stream in (sys.stdout, sys.stderr):
        if isinstance(stream, TextIOWrapper):
            stream.reconfigure(errors="replace")  # a terminal that lacks these characters must not stop a run
    try:
        reject_null(sys.argv[1:])
        with handled(signal.SIGTERM, signal.default_int_handler):  # the same as Ctrl-C, from a scheduler
            code = app(standalone_mode=False) or 0  # an exit inside a command is returned as a number
    except (KeyboardInterrupt, typer.Abort):
        code = INTERRUPTED
    except (UserError, RunError) as error:
        code = error.code
        first, *others = str(error).split("\n") if isinstance(error, ProblemsError) else [str(error)]
        for line in (first + options_for(error.args[1:]), *others):
            complain(line)
    except OSError as error:
        code = 2
        complain(f"{error.filename or 'a file or the output'}: {error.strerror or error}")
    except Exception as error:
        usage = getattr(error, "format_message", None)  # click's error: unknown option or missing argument
        code = 2 if usage else 1
        if is_out_of_memory(error):
            complain("not enough memory")
        elif usage:
            complain(once(usage()) or "no command is given")
        else:  # unexpected error
            sys.stderr.write(by_line(traceback.format_exc()))
    if code == INTERRUPTED:
        sys.stdout.flush()
        os._exit(code)  # clients may still train in threads, and files are complete at any moment
    sys.exit(code)
