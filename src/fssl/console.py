"""The progress of runs: live bars on a terminal, plain lines anywhere else."""

import signal
import threading
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, ExitStack, contextmanager
from pathlib import Path
from time import monotonic, perf_counter
from types import TracebackType
from typing import Any, Self

from rich import box
from rich.console import Console
from rich.progress import (
    BarColumn,
    MofNCompleteColumn,
    Progress,
    TaskID,
    TextColumn,
    TimeElapsedColumn,
    TimeRemainingColumn,
)
from rich.table import Table

from .config import Config
from .errors import escape_unprintable, several
from .records.rounds import LAST, MEASURES, Line
from .system.machine import handled
from .system.terminal import Screen

# How tables look: a rule below the head and no other; PLAIN ones are narrower.
RULED: dict[str, Any] = {"box": box.SIMPLE_HEAD, "pad_edge": False}
PLAIN: dict[str, Any] = {**RULED, "padding": (0, 1, 0, 0)}
UNBOUNDED = 10_000  # wider than any table
WIDE = 90  # columns that a long name, a bar, numbers and two times need
SILENCE = 60.0  # seconds without output after which a line reports the round under way, if there are no bars


def percent(value: float | None) -> str:
    return "   –" if value is None else f"{100 * value:4.1f}"


def tested(line: Line, measure: str, form: str) -> str:
    """Return the headline measure of a round's test, with its name unless it is accuracy."""
    value, name = line.get(measure), "test" if measure == "accuracy" else MEASURES[measure]
    return f"{name} {'–' if value is None else format(value, form)} %"


def numbers(
    line: Line, measure: str = "accuracy", form: str = "5.2f", labels: str = "labels ", unit: str = " %"
) -> str:
    """Return the test's number, and pseudo-label accuracy and utilization if they are known."""
    text = tested(line, measure, form)
    if "utilization" in line:
        right = f"right {percent(line['pl_accuracy'])}{unit} · " if knows_truth(line) else ""
        text += f" · {labels}{right}used {percent(line['utilization'])}{unit}"
    return text


def brief(line: Line, measure: str = "accuracy") -> str:
    """Return the same for a bar, which shares its line with a name and times."""
    return numbers(line, measure, "4.1f", labels="", unit="")


def knows_truth(line: Line) -> bool:
    """Return whether correct pseudo-labels were counted, even if none was used."""
    return line["pl_accuracy"] is not None or "correct_valid" in line.get("sums", {})


def round_text(line: Line, total: int, measure: str) -> str:
    """Return the results of a round as text."""
    return f"round {line['round']:>4}/{total}  {numbers(line, measure)}"


def round_line(name: str, line: Line, total: int, measure: str) -> str:
    """Return the results of a round as a line for output without bars, with the run's name and the time taken."""
    seconds = line["timing"]["seconds"]
    left = duration((total - line["round"]) * seconds)
    return f"{name}  {round_text(line, total, measure)}  {seconds:.2f} s  ETA {left}"


def setting_text(value: object) -> str:
    """Return a setting's value as a configuration file has it, but without quotes."""
    return "unset" if value is None else str(value).lower() if isinstance(value, bool) else str(value)


def result_line(folder: Path, summary: Line) -> str:
    """Return the results of a finished run as a line."""
    measure, smooth, stopped = summary["measure"], summary.get("ema_result"), summary.get("stopped")
    what = "" if measure == "accuracy" else f"{MEASURES[measure]}, "
    smoothed = "" if smooth is None else f"smoothed {smooth:.2f} %, "
    ending = f"; stopped after round {stopped['round']}: {stopped['why']}" if stopped else ""
    return (
        f"{folder}: {summary['result']:.2f} % ({what}mean of the last"
        f" {several(min(LAST, summary['rounds']), 'round')}), last {summary['last']:.2f} %, {smoothed}"
        f"{summary['timing']['seconds_per_round']:.2f} s per round{ending}"
    )


def say(console: Console, text: str, style: str = "") -> None:
    """Print one line unchanged: no markup, no wrapping, and one style for all of it."""
    console.print(escape_unprintable(text), style=style, highlight=False, markup=False, emoji=False, soft_wrap=True)


def print_table(console: Console, table: Table) -> None:
    """Print a table as wide as the screen; in a file or a pipe as wide as needed, so that lines stay whole."""
    if not console.is_terminal:
        console = Screen(file=console.file, width=max(console.width, width_of(table)))
    console.print(table)


def width_of(table: Table) -> int:
    """Return the columns of a screen on which no line of a table is folded."""
    return Screen(width=UNBOUNDED).measure(table).maximum


class View(AbstractContextManager["View"]):
    """Progress bars that last as long as the context; without a terminal there are none."""

    def __init__(self, console: Console, transient: bool = False) -> None:
        self.spoke = perf_counter()  # when the last line was printed
        self.is_live = console.is_interactive and console.file.isatty()  # FORCE_COLOR makes any file interactive
        self.bars = Progress(
            TextColumn("{task.description}", style="bold", markup=False),
            BarColumn(bar_width=24),
            MofNCompleteColumn(),
            TextColumn("{task.fields[numbers]}", markup=False),
            *([TimeElapsedColumn()] if console.width >= WIDE else []),
            TimeRemainingColumn(),
            console=console,
            transient=transient,
            disable=not self.is_live,
        )

    def __enter__(self) -> Self:
        if self.is_live:
            self.bars.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if self.is_live:  # rich 14 ends disabled bars with an empty line
            self.bars.stop()

    def say(self, text: str) -> None:
        say(self.bars.console, text)
        self.spoke = perf_counter()


class RunView(View):
    """Shows one run; `title` is its name."""

    def __init__(self, console: Console, title: str, transient: bool = False) -> None:
        super().__init__(console, transient)
        self.title, self._total, self._measure = title, 0, "accuracy"
        self._stage, self._began, self._alarm = "preparing", perf_counter(), ExitStack()
        self._task = self.bars.add_task(escape_unprintable(title), total=None, numbers="preparing")

    def __enter__(self) -> Self:
        if not self.is_live and threading.current_thread() is threading.main_thread():
            # A signal, not a thread: lanes are forked, and a process that forks should have one thread.
            self._alarm.enter_context(every(SILENCE / 4, self._remind))
        return super().__enter__()

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._alarm.close()
        super().__exit__(kind, error, trace)

    def _remind(self) -> None:
        if perf_counter() - self.spoke >= 0.75 * SILENCE:  # the next look would be too late
            self.say(f"{self.title}  {self._stage}: {duration(perf_counter() - self._began)} so far")

    def _enter_stage(self, stage: str) -> None:
        if stage != self._stage:
            self._stage, self._began = stage, perf_counter()

    def started(self, config: Config, done: list[Line]) -> None:
        self._total, self._measure = config.rounds, config.records.metrics
        self._enter_stage(f"round {len(done) + 1}")
        latest = brief(done[-1], self._measure) if done else "compiling and warming up"
        if not self.is_live:
            self.say(f"{self.title}  {several(config.rounds, 'round')}" + (f", {len(done)} done" if done else ""))
        self.bars.update(self._task, total=config.rounds, completed=len(done), numbers=latest)

    def round(self, line: Line) -> None:
        self.bars.update(self._task, completed=line["round"], numbers=brief(line, self._measure))
        self._enter_stage(f"round {line['round'] + 1}")
        if not self.is_live:
            self.say(round_line(self.title, line, self._total, self._measure))

    def loading(self) -> Callable[[str, int, int], None]:
        """Return a progress function for decoding a dataset."""

        def show(stage: str, done: int, total: int) -> None:
            self.bars.update(self._task, total=total, completed=done, numbers=stage)
            self._enter_stage(stage)

        return show


class GridView(View):
    """Shows several runs at once, read from their records on disk, and how many are done."""

    def __init__(self, console: Console, num_runs: int) -> None:
        super().__init__(console)
        self._num_runs, self._ended, self._begin = num_runs, 0, monotonic()
        self._all = self.bars.add_task("all runs", total=num_runs, numbers="")
        self._tasks: dict[str, TaskID] = {}
        self._shown: dict[str, list[Line]] = {}

    def running(self, name: str, total: int, lines: list[Line], measure: str = "accuracy") -> None:
        """Update one run's bar, or print its new rounds, leaving out those from before this start."""
        if name not in self._tasks:
            self._tasks[name] = self.bars.add_task(escape_unprintable(name), total=total, numbers="preparing")
            self._shown[name] = lines
            if not self.is_live:
                self.say(f"{name}  preparing" + (f", {len(lines)} of {several(total, 'round')} done" if lines else ""))
        if lines:
            self.bars.update(self._tasks[name], completed=len(lines), numbers=brief(lines[-1], measure))
        if not self.is_live:
            before = self._shown[name]  # some rounds are trained again after an older checkpoint
            for line in (line for i, line in enumerate(lines) if before[i : i + 1] != [line]):
                self.say(round_line(name, line, total, measure))
            if perf_counter() - self.spoke >= SILENCE - 1:
                self.say(f"{name}  round {len(lines) + 1} is under way")
        self._shown[name] = lines

    def ended(self, name: str, said: list[str]) -> None:
        if name in self._tasks:
            self.bars.remove_task(self._tasks.pop(name))
        self.bars.advance(self._all)
        for text in said:
            self.say(text)
        self._ended += 1
        if not self.is_live and (left := self._num_runs - self._ended):
            seconds = (monotonic() - self._begin) * left / self._ended
            self.say(f"{self._ended} of {self._num_runs} runs ended  ETA {duration(seconds)}")


@contextmanager
def every(seconds: float, act: Callable[[], None]) -> Iterator[None]:
    """Call a function repeatedly in the main thread, between two of its instructions."""
    with handled(signal.SIGALRM, lambda *_: act()):
        before = signal.setitimer(signal.ITIMER_REAL, seconds, seconds)
        try:
            yield
        finally:
            signal.setitimer(signal.ITIMER_REAL, *before)


class Quiet:
    """A listener for a run without a screen: keeps the notices."""

    def __init__(self) -> None:
        self.said: list[str] = []

    def started(self, config: Config, done: list[Line]) -> None: ...

    def round(self, line: Line) -> None: ...

    def say(self, text: str) -> None:
        self.said.append(text)


def short_duration(seconds: float) -> str:
    """Return a duration in two digits and one unit: `0.35 s`, `12 min`, `3.2 days`."""
    for unit, length in (("days", 86_400), ("h", 3600), ("min", 60)):
        if seconds >= 2 * length:
            return f"{two_digits(seconds / length)} {unit}"
    return f"{two_digits(seconds)} s"


def size_text(num_bytes: float) -> str:
    """Return a size in two digits and one unit: `920 kB`, `1.4 GB`."""
    for unit, size in (("GB", 1e9), ("MB", 1e6), ("kB", 1e3)):
        if num_bytes >= size:
            return f"{two_digits(num_bytes / size)} {unit}"
    return f"{num_bytes:.0f} bytes"


def two_digits(value: float) -> str:
    """Return an estimate without digits that it does not have."""
    return f"{float(f'{value:.2g}'):,g}"


def duration(seconds: float) -> str:
    minutes, s = divmod(round(seconds), 60)
    hours, m = divmod(minutes, 60)
    return f"{hours}:{m:02d}:{s:02d}" if hours else f"{m}:{s:02d}"
