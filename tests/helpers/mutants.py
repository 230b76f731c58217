"""Would the tests notice a mistake? Change one point of a changed line at a time, and run the tests of that line.

A mutant is a copy of the project with one point of its source changed: another comparison, `or` for `and`, `max` for
`min`, a number that is one larger, a condition turned around, a call left out. If all tests pass, they would not notice
this mistake: add an assertion that fails, or simplify the line if it makes no difference. The working tree stays as it
is.

make mutants                                         lines changed since the branch left main, committed or not
make mutants MUTANTS="--base HEAD --most 20"         20 mutants of what is not committed
make mutants MUTANTS="src/fssl/core/static_norm.py"       changed lines of one file
make mutants MUTANTS="src/fssl/core/static_norm.py:17-30" lines of a file, changed or not
make mutants MUTANTS="--tests tests/core"            against some tests, slow ones included

First all tests run once without a mutant, to see which of them run the lines. Only what a test runs in its own process
counts. Then each mutant meets the tests of its line, the fastest first, and gets a line:

killed     a test fails: the first one is named
survived   all of them pass
uncovered  no test runs the line
timed out  they did not end in time: an endless loop, perhaps

The exit code is 1 if a mutant survived.
"""

import argparse
import json
import os
import random
import re
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from itertools import accumulate
from pathlib import Path
from queue import SimpleQueue
from typing import NamedTuple

from . import mutants_seen
from .mutants_points import Mutant, mutants

SHOWN = 60  # characters of a change
KILLED, SURVIVED, UNCOVERED, LATE = OUTCOMES = ("killed", "survived", "uncovered", "timed out")
PLUGINS = ("-p", mutants_seen.__name__, "-p", "no:cacheprovider")
PYTEST = (sys.executable, "-m", "pytest", "-q", "--no-header", "--disable-warnings", "--tb=no", "--rootdir=.", *PLUGINS)
USUAL = ("tests", "-m", "not slow and not deploy and not gpu")


class InputError(Exception):
    """Wrong input, explained in one line."""


class Point(NamedTuple):
    """A mutant of a file of the project."""

    file: str
    source: bytes
    mutant: Mutant

    def __str__(self) -> str:
        old, new = (" ".join(text.split()) or "nothing" for text in (self.mutant.old, self.mutant.new))
        short = (text if len(text) <= SHOWN else f"{text[: SHOWN - 3]}..." for text in (old, new))
        return f"{self.file}:{self.mutant.lines.start}: {' -> '.join(short)}"


class Ran(NamedTuple):
    """A test: how long it takes, and which lines it runs, by file."""

    name: str
    seconds: float
    lines: dict[str, set[int]]


def git(*words: str) -> list[str]:
    """Return the lines that git prints; with `-z`, the names."""
    done = subprocess.run(["git", *words], capture_output=True, text=True)
    if done.returncode:
        raise InputError(done.stderr.partition("\n")[0] or f"git {words[0]} failed")
    return [part for part in done.stdout.split("\0" if "-z" in words else "\n") if part]


def base_of(given: str | None) -> str:
    """Return the commit to compare with: the given one, else where the branch left main; HEAD if there is no main."""
    for name in [given] if given else ["main", "origin/main", "HEAD"]:
        with suppress(InputError):
            (commit,) = git("rev-parse", "--verify", "--quiet", f"{name}^{{commit}}")
            return commit if given else git("merge-base", commit, "HEAD")[0]
    raise InputError(f"--base {given}: no such commit" if given else "there is no commit yet")


def changed_lines(base: str, file: str) -> set[int]:
    """Return the lines of a file that are new since a commit."""
    if not git("ls-files", "-z", "--", file):
        return {*range(1, Path(file).read_bytes().count(b"\n") + 2)}
    said = git("diff", "-U0", "--no-ext-diff", "--no-color", base, "--", file)
    hunks = [found.groups("1") for line in said if (found := re.match(r"@@ \S+ \+(\d+)(?:,(\d+))? @@", line))]
    return {line for first, number in hunks for line in range(int(first), int(first) + int(number))}


def lines_to_change(base: str, given: Sequence[str]) -> dict[str, set[int]]:
    """Return the lines by file: of the given files and lines, else of all files."""
    found: dict[str, set[int]] = {}
    for word in given:
        name, first, last = re.findall(r"(.+?)(?::(\d+)(?:-(\d+))?)?$", word)[0]
        file = os.path.relpath(os.path.realpath(name))
        if not Path(file).is_file():
            raise InputError(f"{file}: no such file")
        if not file.startswith("src/") or not file.endswith(".py"):
            raise InputError(f"{file}: expected a Python file in src")
        lines = {*range(int(first), int(last or first) + 1)} if first else changed_lines(base, file)
        found[file] = found.get(file, set()) | lines
    if not given:
        changed = git("diff", "-z", "--name-only", "--diff-filter=d", base, "--", "src/*.py")
        changed += git("ls-files", "-z", "--others", "--exclude-standard", "--", "src/*.py")
        found = {file: changed_lines(base, file) for file in changed}
    if not any(found.values()):
        where = ", ".join(found) or "src"
        raise InputError(f"nothing changed in {where} since {base[:7]}; FILE:LINE takes a line that did not")
    return {file: lines for file, lines in sorted(found.items()) if lines}


def points_of(lines: Mapping[str, set[int]]) -> Iterator[Point]:
    """Return every mutant of the lines."""
    for file, own in lines.items():
        source = Path(file).read_bytes()
        try:
            yield from (Point(file, source, mutant) for mutant in mutants(source, own))
        except SyntaxError as error:
            raise InputError(f"{file}:{error.lineno}: {error.msg}") from None


def some(points: Sequence[Point], most: int, seed: int) -> list[Point]:
    """Return so many points at most, drawn by the seed, in their order; all for 0."""
    number = len(points)
    kept = {*random.Random(seed).sample(range(number), min(most or number, number))}
    return [point for i, point in enumerate(points) if i in kept]


def copied(place: Path) -> Path:
    """Copy what git has of the project or would add."""
    for file in git("ls-files", "-z", "--cached", "--others", "--exclude-standard"):
        if os.path.lexists(file):
            (place / file).parent.mkdir(parents=True, exist_ok=True)
            shutil.copy2(file, place / file, follow_symlinks=False)
    return place


def environment(place: Path, **more: str) -> dict[str, str]:
    """Return the variables with which a copy is tested, and not the installed project."""
    own = [place / "src", place / "tests", Path(__file__).parents[1]]
    return {**os.environ, "PYTHONPATH": os.pathsep.join(map(str, own)), **more}


class Tests:
    """The tests that pass without a mutant, and the lines that each of them runs."""

    def __init__(self, place: Path, files: Iterable[str], chosen: Sequence[str], jobs: int) -> None:
        out = Path(tempfile.mkdtemp(dir=place.parent))
        self.files = {str(place / file): file for file in files}
        names = {mutants_seen.FILES: os.pathsep.join(self.files), mutants_seen.OUT: str(out)}
        spread = ["-n", str(jobs)] * (jobs > 1)
        subprocess.run([*PYTEST, *spread, *(chosen or USUAL)], cwd=place, env=environment(place, **names), stdout=2)
        found = [json.loads(file.read_text()) for file in out.iterdir()]
        self.failed = sorted({name for each in found for name in each["failed"]})
        passed = {name: test for each in found for name, test in each["tests"].items() if name not in self.failed}
        ran = [Ran(name, test["seconds"], self.by_file(test["lines"])) for name, test in passed.items()]
        self.passed = sorted(ran, key=lambda test: test.seconds)

    def by_file(self, ran: Iterable[tuple[str, int]]) -> dict[str, set[int]]:
        found: dict[str, set[int]] = {file: set() for file in self.files.values()}
        for path, line in ran:
            found[self.files[path]].add(line)
        return found

    def of(self, point: Point) -> list[Ran]:
        """Return the tests that run a line, the fastest first; of one that runs at import, those that run its file."""
        head, lines = {*point.mutant.head}, [(test, test.lines[point.file]) for test in self.passed]
        return [test for test, own in lines if (own if point.mutant.at_import else own & head)]


class Trials:
    """Runs tests on mutants, one at a time in each of several copies."""

    def __init__(self, places: Iterable[Path], limit: float) -> None:
        self.limit, self.places = limit, SimpleQueue[Path]()
        self.running: set[subprocess.Popen[str]] = set()
        for place in places:
            self.places.put(place)

    def outcome(self, point: Point, tests: Sequence[Ran]) -> tuple[str, str]:
        """Return what becomes of a mutant, and a remark."""
        seconds = accumulate(test.seconds for test in tests)
        names = [test.name for test, total in zip(tests, seconds, strict=True) if total <= self.limit / 2]
        if not names:
            return UNCOVERED, f"in less than {self.limit / 2:g} s" if tests else "no test runs it"
        place = self.places.get()
        try:
            write(place / point.file, point.mutant.applied(point.source))
            return self.trial(place, names)
        finally:
            write(place / point.file, point.source)
            self.places.put(place)

    def trial(self, place: Path, names: Sequence[str]) -> tuple[str, str]:
        listed = place.with_suffix(".txt")
        listed.write_text("\n".join(names))
        process = subprocess.Popen(
            [*PYTEST, "-x", "-rfE", f"@{listed}"],
            cwd=place,
            env=environment(place, PYTHONDONTWRITEBYTECODE="1"),
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            start_new_session=True,
        )
        self.running.add(process)
        try:
            said, _ = process.communicate(timeout=self.limit)
        except subprocess.TimeoutExpired:
            return LATE, f"after {self.limit:g} s"
        finally:
            self.end(process)
        if process.returncode == 0:
            return SURVIVED, several(len(names), "test")
        killer = re.search(r"^(?:FAILED|ERROR) (.+?)(?: - .*)?$", said, re.MULTILINE)
        return KILLED, killer[1] if killer else [*said.split("\n"), "by a crash"][-1]

    def end(self, process: "subprocess.Popen[str]") -> None:
        """End a process with all that it started, if it still runs."""
        if process.poll() is None:
            os.killpg(process.pid, signal.SIGKILL)
            process.wait()
        self.running.discard(process)


def write(file: Path, source: bytes) -> None:
    """Write a file that Python takes for older than what it compiled of it, whatever its size."""
    file.write_bytes(source)
    os.utime(file, (0, 0))


def trials(points: Sequence[Point], tests: Tests, runs: Trials, jobs: int) -> Iterator[str]:
    """Try every mutant, and print a line for it."""
    with ThreadPoolExecutor(jobs) as pool:
        try:
            outcomes = pool.map(lambda point: runs.outcome(point, tests.of(point)), points)
            for number, (point, (outcome, remark)) in enumerate(zip(points, outcomes, strict=True), 1):
                show(f"[{number}/{len(points)}] {outcome:9} {point}  ({remark})")
                yield outcome
        finally:
            pool.shutdown(wait=False, cancel_futures=True)
            for process in [*runs.running]:
                runs.end(process)


def several(number: int, what: str) -> str:
    return f"{number} {what}{'s' * (number != 1)}"


def show(text: str) -> None:
    print(text, flush=True)


def tried(points: Sequence[Point], chosen: Sequence[str], jobs: int, limit: float) -> Counter[str]:
    """Return how many mutants there are of each outcome."""
    with tempfile.TemporaryDirectory(prefix="mutants-") as folder:
        first = copied(Path(folder).resolve() / "0")
        show("all tests once without a mutant, to see which lines each of them runs:")
        tests = Tests(first, {point.file for point in points}, chosen, jobs)
        if not tests.passed:
            raise InputError("no test passes without a mutant")
        if tests.failed:
            show(f"left out, because they fail without a mutant: {', '.join(tests.failed)}")
        others = [shutil.copytree(first, first.with_name(str(i)), symlinks=True) for i in range(1, jobs)]
        return Counter(trials(points, tests, Trials([first, *others], limit), jobs))


def options() -> argparse.ArgumentParser:
    form = argparse.RawDescriptionHelpFormatter
    parser = argparse.ArgumentParser("mutants", description=__doc__, formatter_class=form)
    parser.add_argument("files", nargs="*", metavar="FILE[:LINE[-LINE]]", help="only these files or lines of src")
    parser.add_argument("--base", metavar="REV", help="the commit to compare with (where the branch left main)")
    parser.add_argument("--most", type=int, default=50, metavar="N", help="try so many mutants at most (50; 0: all)")
    parser.add_argument("--seed", type=int, default=0, metavar="S", help="which of more mutants are tried (0)")
    parser.add_argument("--limit", type=float, default=120, metavar="S", help="seconds for a mutant's tests (120)")
    cores = len(os.sched_getaffinity(0))
    parser.add_argument("--jobs", type=int, default=cores, metavar="N", help=f"so many at a time (cores: {cores})")
    parser.add_argument("--tests", nargs="+", default=[], metavar="PATH", help="run only these (all but slow ones)")
    return parser


def main(words: Sequence[str] | None = None) -> int:
    parser = options()
    args, begin = parser.parse_args(words), time.monotonic()
    for key, least in (("most", 0), ("limit", 1), ("jobs", 1)):
        if getattr(args, key) < least:
            parser.error(f"--{key} {getattr(args, key):g}: expected {least} or more")
    try:
        given = [os.path.abspath(file) for file in args.files]
        os.chdir(git("rev-parse", "--show-toplevel")[0])
        lines = lines_to_change(base_of(args.base), given)
        points = [*points_of(lines)]
        chosen = some(points, args.most, args.seed)
        of = f"{several(sum(map(len, lines.values())), 'line')} in {several(len(lines), 'file')}"
        few = f", of which {len(chosen)} are tried" if len(chosen) < len(points) else ""
        show(f"{several(len(points), 'mutant')} of {of}{few}")
        counts = tried(chosen, args.tests, args.jobs, args.limit) if chosen else Counter[str]()
    except InputError as error:
        print(f"mutants: {error}", file=sys.stderr)
        return 2
    except KeyboardInterrupt:
        return 130
    show(f"{', '.join(f'{counts[kind]} {kind}' for kind in OUTCOMES)}; {time.monotonic() - begin:.0f} s")
    return int(counts[SURVIVED] > 0)


if __name__ == "__main__":
    sys.exit(main())
