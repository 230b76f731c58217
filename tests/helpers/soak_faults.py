"""A deployment of real processes that is hurt again and again: sites, server and command, stopped and killed."""

import random
import signal
import time
from collections.abc import Callable, Iterator
from pathlib import Path

from fssl.errors import UserError
from fssl.records.store import RunFolder

from .trial import Trial

SETTINGS = ("method.name=flexmatch", "train.rounds=9999")
PATIENCE = 400  # seconds until a round must be over, whatever happened before


def rounds(run: Path) -> int:
    return len(RunFolder(run).rounds()) if (run / "rounds.jsonl").is_file() else 0


class Hurt:
    """The deployment, with one run that never ends by itself."""

    def __init__(self, folder: Path, draw: random.Random) -> None:
        self.trial, self.draw, self.run = Trial(folder), draw, folder / "run"
        self.trial.server()
        for number in (1, 2, 3):
            self.trial.site(number)
        self.trial.connected(3, 300)
        self.command = self.trial.start("run", *SETTINGS)

    def stop_a_site(self) -> None:
        number = self.draw.choice((1, 2, 3))
        self.trial.programs[f"site-{number}"].stop(signal.SIGTERM)
        time.sleep(self.draw.uniform(0, 20))
        self.trial.site(number)

    def kill_a_site(self) -> None:
        number = self.draw.choice((1, 2, 3))
        self.trial.programs[f"site-{number}"].kill_flower()
        time.sleep(self.draw.uniform(0, 20))
        self.trial.site(number)

    def kill_the_server(self) -> None:
        self.trial.programs["server"].kill_flower()
        self.command.ends(PATIENCE)
        self.trial.server()
        self.trial.connected(3, PATIENCE)
        self.go_on()

    def kill_the_command(self) -> None:
        """The run continues at the server, and the resumed one waits for its end, so the server is stopped as well."""
        self.command.stop(signal.SIGKILL)
        self.trial.programs["server"].stop(signal.SIGTERM)
        self.trial.server()
        self.trial.connected(3, PATIENCE)
        self.go_on()

    def go_on(self) -> None:
        self.command = self.trial.start("run", *SETTINGS, resume=True)

    def faults(self) -> dict[str, Callable[[], None]]:
        return {
            "a site is stopped": self.stop_a_site,
            "a site is killed": self.kill_a_site,
            "the server is killed": self.kill_the_server,
            "the command is killed": self.kill_the_command,
        }

    def advances(self, before: int) -> bool:
        """Whether a round is over in time."""
        end = time.monotonic() + PATIENCE
        while time.monotonic() < end:
            if rounds(self.run) > before:
                return True
            if self.command.process.poll() is not None:  # a run that gave up is resumed, as its message asks
                self.go_on()
            time.sleep(1)
        return False


def under_faults(folder: Path, minutes: int, draw: random.Random, show: Callable[[int, int], None]) -> Iterator[str]:
    """Hurt a deployment for so many minutes; yields what is wrong."""
    hurt, begin, most, counts = Hurt(folder, draw), time.monotonic(), 0, dict[str, int]()
    minute = 0
    try:
        while (passed := time.monotonic() - begin) < 60 * minutes:
            while minute < int(passed / 60):  # a fault may take several
                show(minute := minute + 1, minutes)
            if not hurt.advances(rounds(hurt.run)):
                yield f"no round in {PATIENCE} s after {counts}: {hurt.command.said[-2000:]}"
                return
            most = max(most, rounds(hurt.run))
            what = draw.choice(list(hurt.faults()))
            counts[what] = counts.get(what, 0) + 1
            hurt.faults()[what]()
            if rounds(hurt.run) < most - 1:  # a line is written before its checkpoint
                yield f"{what}: {most} rounds before, {rounds(hurt.run)} after"
    except (AssertionError, UserError) as error:
        yield f"after {counts}: {error}"
    finally:
        hurt.trial.end()
    print(f"  {rounds(hurt.run)} rounds; {', '.join(f'{what}: {n}' for what, n in counts.items())}")
    for log in sorted(folder.rglob("*.out")):
        if "Traceback" in log.read_text(errors="replace"):
            yield f"a traceback in {log.name}"
