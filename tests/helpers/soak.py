"""The long soak, for `make soak`: thousands of strange inputs, damaged files, kills, and a deployment under faults.

make soak                                            all of it, more than an hour on two cores
make soak SOAK="--only damages --damages 100"        a part
"""

import argparse
import os
import random
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from pathlib import Path

from hypothesis import HealthCheck, Phase, given, seed, settings
from hypothesis.strategies import SearchStrategy

from fssl.records.environment import git_revision
from fssl.system.machine import cores, processor

from . import soak_harness

SHOWN = 20  # of what went wrong


def examples(strategy: SearchStrategy[list[str]], check: Callable[[list[str]], str]) -> "Part":
    """Trials of a property: all of them, also after one that failed."""

    def part(times: int, number: int) -> Iterator[str]:
        wrong: list[str] = []

        @seed(number)
        @settings(
            max_examples=times,
            deadline=None,
            database=None,
            phases=[Phase.generate],
            suppress_health_check=list(HealthCheck),
        )
        @given(strategy)
        def all_of_them(words: list[str]) -> None:
            if found := check(words):
                wrong.append(f"{words}: {found}")

        all_of_them()
        yield from wrong

    return part


def trainings(times: int, number: int) -> Iterator[str]:
    """Settings that are taken, trained with for a step."""
    out = Path("trained").absolute()

    def check(words: list[str]) -> str:
        soak_harness.remove(out)
        return soak_harness.trained(words, out)

    yield from examples(soak_harness.run_words(is_tame=True), check)(times, number)


def damages(times: int, number: int) -> Iterator[str]:
    damage, draw = soak_harness.make_damage(Path.cwd()), random.Random(number)
    for i in range(times):
        if wrong := soak_harness.damaged(damage, draw):
            yield wrong
        show(i + 1, times)


def kills(times: int, number: int) -> Iterator[str]:
    draw, done = random.Random(number), 0
    while done < times:
        kind = draw.choice(list(soak_harness.KILLED))
        folder = Path(kind).absolute()
        folder.mkdir(exist_ok=True)
        soak_harness.remove(folder / "run")
        killed, wrong = soak_harness.killed_until_done(kind, folder / "run", draw, longest=4.0)
        done += killed
        if wrong:
            yield wrong
        show(done, times)


def malicious(times: int, number: int) -> Iterator[str]:
    from .soak_malicious import Malicious

    run, draw = Malicious(Path("sites").absolute()), random.Random(number)
    yield from repeated(times, lambda: run.trial(draw))


def operator(times: int, number: int) -> Iterator[str]:
    from .soak_operator import foreign_app

    draw = random.Random(number)
    yield from repeated(times, lambda: foreign_app(draw))


def images(times: int, number: int) -> Iterator[str]:
    from .soak_malicious import hostile_file, image_files

    files, draw = image_files(), random.Random(number)
    yield from repeated(times, lambda: hostile_file(files, draw))


def weights(times: int, number: int) -> Iterator[str]:
    from .soak_malicious import hostile_weights, weight_files

    files, draw = weight_files(Path.cwd()), random.Random(number)
    yield from repeated(times, lambda: hostile_weights(files, draw))


def repeated(times: int, trial: Callable[[], str]) -> Iterator[str]:
    """Yield what is wrong with each trial, and show the progress."""
    for i in range(times):
        if wrong := trial():
            yield wrong
        show(i + 1, times)


def deployment(minutes: int, number: int) -> Iterator[str]:
    from .soak_faults import under_faults

    yield from under_faults(Path("deployment").absolute(), minutes, random.Random(number), show)


Part = Callable[[int, int], Iterator[str]]
PARTS: dict[str, tuple[Part, int, str]] = {
    "configurations": (examples(soak_harness.run_words(), soak_harness.planned), 10_000, "settings, taken or refused"),
    "command-lines": (examples(soak_harness.command_lines, soak_harness.understood), 5_000, "words after `fssl`"),
    "trainings": (trainings, 500, "settings that are taken, trained with"),
    "damages": (damages, 1_000, "damaged files of a run"),
    "kills": (kills, 200, "SIGKILL at random moments"),
    "malicious": (malicious, 200, "runs in which one of four sites lies"),
    "operator": (operator, 2_000, "runs whose operator ships foreign code"),
    "images": (images, 100_000, "damaged image files"),
    "weights": (weights, 5_000, "damaged files of start weights"),
    "deployment": (deployment, 20, "minutes of a deployment under faults"),
}


def show(done: int, of: int) -> None:
    """Say how far a part has come, at every tenth of it."""
    if done * 10 // of > (done - 1) * 10 // of:
        print(f"  {min(done, of)} of {of}", flush=True)


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--seed", type=int, default=int(time.time()), help="of all that is random (default: the time)")
    parser.add_argument("--only", choices=PARTS, action="append", help="a part (repeatable)")
    for name, (_, times, what) in PARTS.items():
        parser.add_argument(f"--{name}", type=int, default=times, help=f"{what} (default {times})")
    chosen = vars(parser.parse_args())
    print(f"seed {chosen['seed']}, commit {git_revision()}, {processor()}, {cores()} cores")
    table, bad = [], 0
    with tempfile.TemporaryDirectory() as folder:
        for name, (part, _, what) in PARTS.items():
            if chosen["only"] and name not in chosen["only"]:
                continue
            times, begin = chosen[name.replace("-", "_")], time.monotonic()
            print(f"{name}: {times}", flush=True)
            place = Path(folder) / name
            place.mkdir()
            os.chdir(place)
            wrong = list(part(times, chosen["seed"]))
            for text in wrong[:SHOWN]:
                print(f"  WRONG {text}")
            bad += len(wrong)
            table.append(f"{times:>6}  {what:<40} {len(wrong)} wrong, {time.monotonic() - begin:.0f} s")
            os.chdir(folder)
    print("\n".join(table))
    return 1 if bad else 0


if __name__ == "__main__":
    sys.exit(main())
