"""Loggers of other tools: TensorBoard and Weights & Biases. Their errors never stop a run."""

from collections.abc import Callable
from pathlib import Path
from secrets import token_hex
from typing import Any, Protocol, TypeVar

from ..config import Config, flatten
from ..errors import UserError
from ..records.rounds import ALL_MEASURES, Line
from ..system.files import write_atomic

T = TypeVar("T")


class Listener(Protocol):
    """An object that a run reports its progress to."""

    def started(self, config: Config, done: list[Line]) -> None: ...
    def round(self, line: Line) -> None: ...
    def say(self, text: str) -> None: ...


def check_listener(listener: object) -> None:
    """Reject an object without the methods of a listener, before the first round."""
    methods = ("started", "round", "say")
    if isinstance(listener, type) or not all(callable(getattr(listener, name, None)) for name in methods):
        raise UserError(f"listener = {listener!r:.60}: expected an object with the methods {', '.join(methods)}")


class Logger(Protocol):
    """An object that takes the numbers of a round."""

    def log(self, round: int, values: dict[str, float]) -> None: ...
    def close(self) -> None: ...


VALIDATIONS = {"validation": "plain", "ema_validation": "ema"}  # keys of a line, and the model that each tests
Opener = Callable[[Config, Path, int], Logger]  # settings, run folder, rounds done


def logged_values(line: Line) -> dict[str, float]:
    """Return the numbers of a line for loggers, by tag: tests, the validation part, training and time."""
    tests = {**line["test"], **{f"ema_{norm}": test for norm, test in line.get("ema_test", {}).items()}}
    validations = {name: line[key] for key, name in VALIDATIONS.items() if key in line}
    measured = {
        f"{part}_{measure}/{name}": found[measure]
        for part, parts in (("test", tests), ("validation", validations))
        for measure in (*ALL_MEASURES, "loss")
        for name, found in parts.items()
        if found.get(measure) is not None
    }
    aside = {*ALL_MEASURES, *(f"ema_{measure}" for measure in ALL_MEASURES)}
    numbers = {name: value for name, value in line.items() if isinstance(value, float) and name not in aside}
    own = {f"metrics/{name}": value for name, value in line.get("metrics", {}).items()}
    time = {"time/seconds_per_round": line["timing"]["seconds"]} if "timing" in line else {}
    return measured | own | {f"training/{name}": value for name, value in numbers.items()} | time


class TensorBoard:
    """Writes event files into the run folder."""

    def __init__(self, config: Config, folder: Path, done: int) -> None:
        self._writer = summary_writer()(str(folder / "tensorboard"), purge_step=done + 1)

    def log(self, round: int, values: dict[str, float]) -> None:
        for name, value in values.items():
            self._writer.add_scalar(name, value, round)
        self._writer.flush()

    def close(self) -> None:
        self._writer.close()


class Wandb:
    """Logs to a run of Weights & Biases, named after the folder; a resumed run continues the same one."""

    def __init__(self, config: Config, folder: Path, done: int) -> None:
        wandb = wandb_package()
        self._run = wandb.init(
            project="fssl",
            name="/".join(folder.resolve().parts[-3:]),
            id=wandb_id(folder),
            resume="allow",
            mode=config.records.wandb,
            config=flatten(config),
            dir=str(folder.resolve()),
            settings=wandb.Settings(silent=True, console="off", save_code=False, disable_git=True),
        )
        self._run.define_metric("*", step_metric="round")

    def log(self, round: int, values: dict[str, float]) -> None:
        self._run.log({"round": round, **values})

    def close(self) -> None:
        self._run.finish()


def wandb_id(folder: Path) -> str:
    """Return the run's random id at Weights & Biases; folder names of two machines could be equal."""
    path = folder / "wandb-id"
    if not path.is_file():
        write_atomic(path, token_hex(8))
    return path.read_text()


def summary_writer() -> Any:
    """Return TensorBoard's writer; reject the setting if it is not installed."""
    try:
        from torch.utils.tensorboard import SummaryWriter
    except ImportError:
        raise UserError("records.tensorboard needs a package: pip install 'fssl[tensorboard]'") from None
    return SummaryWriter


def wandb_package() -> Any:
    try:
        import wandb
    except ImportError:
        raise UserError("records.wandb needs a package: pip install 'fssl[wandb]'") from None
    return wandb


def check_loggers(config: Config) -> None:
    """Reject loggers that are not installed or not logged in, before any compute."""
    if config.records.tensorboard:
        summary_writer()
    if config.records.wandb != "off":
        wandb = wandb_package()
        if config.records.wandb == "online" and not wandb.login(prompt=False, verify=False):
            raise UserError("records.wandb = 'online' needs a login: `wandb login`, or WANDB_API_KEY; or use 'offline'")


class Logged:
    """A listener that also feeds the loggers of the settings; a logger that fails is dropped."""

    def __init__(self, inner: Listener, config: Config, folder: Path) -> None:
        self.inner, self._folder = inner, folder
        self._waiting: dict[str, Opener] = {"TensorBoard": TensorBoard} if config.records.tensorboard else {}
        self._waiting |= {"Weights & Biases": Wandb} if config.records.wandb != "off" else {}
        self._open: dict[str, Logger] = {}

    def started(self, config: Config, done: list[Line]) -> None:
        for name, opener in self._waiting.items():
            logger = self._tried(name, opener, config, self._folder, len(done))
            if logger:
                self._open[name] = logger
        self.inner.started(config, done)

    def round(self, line: Line) -> None:
        for name, logger in [*self._open.items()]:
            self._tried(name, logger.log, line["round"], logged_values(line))
        self.inner.round(line)

    def say(self, text: str) -> None:
        self.inner.say(text)

    def close(self) -> None:
        """Close the loggers, also after a failed run."""
        for name, logger in [*self._open.items()]:
            self._tried(name, logger.close)

    def _tried(self, name: str, act: Callable[..., T], *words: Any) -> T | None:
        try:
            return act(*words)
        except Exception as error:
            self._open.pop(name, None)
            self.inner.say(f"{name} stopped: {str(error) or type(error).__name__}; the run and its record continue")
            return None
