"""The functions for scripts and notebooks: prepare runs, train them, load and export their models."""

import math
from collections.abc import Callable, Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

from torch import nn

from .config import Config, expand, only_run, override, read_toml
from .console import Quiet
from .core.assembly import make_net
from .core.experiment import Experiment, prepare
from .core.images import Datasets, given_dataset
from .data.dataset import card_settings, own_dataset
from .data.sources import Dataset
from .errors import UserError, error_text
from .inference.export import export_model
from .inference.trained import Trained, as_trained, load_trained
from .methods.names import Method, check_effect, know_method
from .models.net import make_known
from .records.store import RunFolder
from .runner.checks import check_settings, check_tools
from .runner.conduct import run_experiment
from .runner.costs import Cost
from .runner.costs import estimate as estimated
from .runner.loggers import Listener, check_listener
from .runner.planned import check_compiler, plan_runs
from .runner.record import Measure
from .system.machine import as_path, check_name
from .system.user_code import PYTHON
from .types import Weights

__all__ = ["dataset", "experiment", "experiments", "export", "load", "run"]

Metric = Callable[[Trained], float]
NO_METRICS: Mapping[str, Metric] = {}
Network = nn.Module | Callable[..., nn.Module]
Pair = tuple[Any, Any]  # of images and their labels
SettingsSource = str | Path | Mapping[str, Any]  # a preset, a TOML file, or tables like those of one


def experiment(
    source: SettingsSource,
    *settings: str,
    dataset: Dataset | None = None,
    method: Method | Callable[..., Method] | None = None,
    network: Network | None = None,
) -> Experiment:
    """Prepare one run: complete its settings, build its method, and reject settings that do not fit.

    Args:
        source: The name of a preset, a TOML file, or tables like those of one.
        settings: Changes, such as "seed=7" or "train.lr=0.05".
        dataset: Images in memory, instead of files: from `fssl.dataset`.
        method: A custom method, instead of the one in `method.name`: a `fssl.methods.Method`, or the function that
            builds it, whose arguments are settings such as "method.tau=0.9".
        network: A custom network, instead of the one in `model.name`: a `torch.nn.Module`, whose weights the run starts
            with, or a function or class that takes channels, classes and width.

    Returns:
        The experiment, for `fssl.run`; its complete settings are `experiment.config`.

    Raises:
        UserError: The settings are wrong or do not fit together; nothing has been computed.

    Examples:
        >>> fssl.experiment("smoke", "method.name=flexmatch+sage", "seed=8").config.rounds
        8
    """
    if method is not None:
        settings = name_object("method.name", "method", know_method(method), settings)
    if network is not None:
        settings = name_object("model.name", "network", make_known(network), settings)
    if isinstance(dataset, Dataset):
        settings = (*card_settings(dataset.card), *settings)
    config = only_run(tables_of(source, settings))
    if dataset is not None:
        check_tools(config, debug=False)
        check_compiler(config)
        prepared = prepare(config, given_dataset(config, dataset))
        check_effect([(config, prepared.method)])
        return prepared
    return planned([("", config)])[""]


def name_object(key: str, what: str, name: str, settings: tuple[str, ...]) -> tuple[str, ...]:
    """Return the settings with the name of an object; reject settings that give another name."""
    if any(isinstance(setting, str) and setting.startswith(key) for setting in settings):
        raise UserError(f"{what}= and {key} name two {what}s; remove one of them")
    return *settings, f"{key}={name}"


def dataset(
    train: Pair,
    test: Pair,
    *,
    classes: Sequence[str] = (),
    mean: Sequence[float] | None = None,
    std: Sequence[float] | None = None,
) -> Dataset:
    """Return a dataset of images in memory, which `[partition]` divides among clients.

    Args:
        train: Images, uint8 [N, size, size, channels] or gray ones [N, size, size]; and their labels, counted from
            0. The settings say how many labels the clients have.
        test: Images and labels to test with.
        classes: Names of the classes; by default their numbers.
        mean: The mean of each channel, on a scale from 0 to 1, for normalization; by default 0.5.
        std: The standard deviation of each channel, likewise; by default 0.25.

    Returns:
        The dataset, for `fssl.experiment(..., dataset=)`.

    Raises:
        UserError: The arrays, labels or names do not fit together.

    Examples:
        >>> mine = fssl.dataset((images, labels), (test_images, test_labels), classes=["cat", "dog"])
        >>> fssl.experiment("smoke", "data.labels_per_class=20", dataset=mine)
    """
    return own_dataset(train, test, classes, mean, std)


def experiments(source: SettingsSource, *settings: str) -> dict[str, Experiment]:
    """Prepare every run of a grid.

    Args:
        source: The name of a preset, a TOML file, or tables like those of one, with a `[grid]`.
        settings: Changes; a setting given here is removed from the grid.

    Returns:
        The experiments by their names within the grid, such as "sage/seed7".

    Raises:
        UserError: The settings of a run are wrong or do not fit together.

    Examples:
        >>> list(fssl.experiments("demo", "seed=7"))
        ['sage', 'fixmatch-lpl', 'fixmatch-gpl', 'fedavg']
    """
    return planned(expand(tables_of(source, settings)))


def tables_of(source: SettingsSource, settings: tuple[str, ...]) -> dict[str, Any]:
    if not isinstance(source, str | Path | Mapping) or not all(isinstance(setting, str) for setting in settings):
        raise UserError(
            'expected a preset, a file or tables, then strings: fssl.experiment("smoke", "seed=7", "train.lr=0.1")'
        )
    return override(dict(source) if isinstance(source, Mapping) else read_toml(str(source)), list(settings))


def planned(named: Iterable[tuple[str, Config]]) -> dict[str, Experiment]:
    named = list(named)
    check_settings([config for _, config in named])
    return {run.name: run.experiment for run in plan_runs(named, Path(), Datasets())}


def run(
    experiment: Experiment,
    out: str | Path,
    *,
    resume: bool = False,
    listener: Listener | None = None,
    metrics: Mapping[str, Metric] = NO_METRICS,
) -> dict[str, Any]:
    """Run or resume an experiment in a folder.

    Args:
        experiment: The experiment to run, from `fssl.experiment`.
        out: The run folder: a new one, or with `resume` that of the same experiment.
        resume: Whether to continue after the newest checkpoint in the folder.
        listener: An object with three methods. `started(config, lines)` is called once with the complete settings and
            the lines of the rounds that exist already; `round(line)` after each round with its line of rounds.jsonl;
            `say(text)` with each notice. By default nothing is printed.
        metrics: Functions that take the model after each round and return a number, by name. The model is what
            `fssl.load` returns. The numbers are recorded, and `fssl.compare` and reports show them.

    Returns:
        The summary, as in summary.json; its "result" is the mean test accuracy of the last ten rounds.

    Raises:
        UserError: The folder cannot take the run, or an argument is wrong.
        RunError: The run failed although its input is valid, for example because training diverged.

    Examples:
        >>> summary = fssl.run(fssl.experiment("smoke"), "runs/smoke")
        >>> surest = {"confidence": lambda model: model.predict(images).confidence.mean()}
        >>> fssl.run(fssl.experiment("smoke"), "runs/mine", metrics=surest)
    """
    check_experiment("run", experiment)
    folder, listener = as_path("out", out), Quiet() if listener is None else listener
    check_name("out", folder)
    check_listener(listener)
    return run_experiment(experiment, folder, listener, resume, measure=measure_by(experiment, metrics))


def check_experiment(function: str, given: object) -> None:
    if not isinstance(given, Experiment):
        raise UserError(f"fssl.{function} takes what fssl.experiment returns, and got {given!r:.60}")


def estimate(experiment: Experiment) -> Cost:
    """Estimate the cost of a run on this machine from two small training steps; the images are loaded.

    Args:
        experiment: The run, from `fssl.experiment`.

    Returns:
        Steps and seconds per round, memory, disk and traffic; `line` is a sentence on them, and `warnings` has advice
        for a run that takes days or more memory than the machine has.

    Raises:
        UserError: The images cannot be loaded, or do not fit the settings.

    Examples:
        >>> cost = fssl.estimate(fssl.experiment("smoke"))
        >>> print(cost.line, *cost.warnings, sep="\\n")
    """
    check_experiment("estimate", experiment)
    return estimated(experiment, is_loaded=True)


def measure_by(experiment: Experiment, metrics: Mapping[str, Metric]) -> Measure | None:
    """Return a function that measures a model after a round; try it on the first weights to report errors early."""
    if not metrics:
        return None
    config, card = experiment.config, experiment.card
    net = make_net(config, card)  # computes in fp32, as the loaded model does

    def measure(weights: Weights, round: int) -> dict[str, float]:
        model = as_trained(config, card, net, weights, round)
        return {name: measured(name, metric, model) for name, metric in metrics.items()}

    measure(net.first, 0)
    return measure


def measured(name: str, metric: Metric, model: Trained) -> float:
    """Return the value of a metric, or raise if the function fails or returns no finite number."""
    try:
        value = float(metric(model))
    except Exception as error:
        raise UserError(f"metrics['{name}'] failed: {error_text(error)}") from error
    if not math.isfinite(value):
        raise UserError(f"metrics['{name}'] returned {value}, expected a finite number")
    return value


def load(folder: str | Path, which: str = "", *, network: Network | None = None) -> Trained:
    """Return the final model of a run, or another one that it keeps.

    For an unfinished run this is the model of its newest checkpoint.

    Args:
        folder: The run folder.
        which: "best" for the model of the best round (`records.keep_best`), "plain" or "ema" with `server.ema`.
        network: The network, if the run was started with `network=`.

    Returns:
        The model: `predict(images)` for files, arrays and tensors, `classes`, and `module()`, the network itself.

    Raises:
        UserError: The folder holds no run with such a model, or `network` does not fit it.

    Examples:
        >>> fssl.load("runs/smoke").predict("photos").labels
    """
    path = as_path("folder", folder)
    if network is not None:
        run = RunFolder(path)
        run.check_run()
        name = run.config().model.name
        if not name.startswith(PYTHON):
            raise UserError(f"{folder} is a run of the network '{name}'; leave out network=")
        make_known(network, name)
    return load_trained(path, which=which)


def export(folder: str | Path, file: str | Path, *, which: str = "", overwrite: bool = False) -> Path:
    """Export the model of a run for other programs.

    Args:
        folder: The run folder.
        file: The file to write; its extension sets the format: `.onnx`, `.pt2` or `.safetensors`.
        which: "best", "plain" or "ema" to choose one of several models, as for `fssl.load`.
        overwrite: Whether to replace a file of that name.

    Returns:
        The path of the file. A second file, with `.json` appended to the name, describes the model.

    Raises:
        UserError: The run has no such model, the format is unknown, or the file exists and `overwrite` is false.

    Examples:
        >>> fssl.export("runs/smoke", "digits.onnx")
    """
    run, to = as_path("folder", folder), as_path("file", file)
    return export_model(run, to.suffix.removeprefix("."), to, overwrite, which).file
