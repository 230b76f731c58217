"""The server's app, for `flwr run` and for deployments: one of our runs whose fleet is Flower's connected nodes."""

import json
import secrets
import shlex
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Any, NamedTuple, cast

import numpy as np
from flwr.app import Context
from flwr.serverapp import Grid, ServerApp

from ..config import ENGINE, OWN_IMAGES, Config, check_fact, only_run, override, read_toml
from ..core.experiment import prepare
from ..core.federation import Federation
from ..core.images import shared_format
from ..data.dataset import Dataset, Split
from ..data.folder.load import load_server
from ..data.partition import Partition
from ..engines.engine import Engine
from ..engines.flower.fleet import Policy, flower_engine
from ..engines.flower.identity import AdmittedSite
from ..engines.flower.masked import make_fleet
from ..engines.flower.nodes import AdmittedNodes, AnyNode, AskedNodes, Nodes
from ..engines.flower.trail import AuditedGrid
from ..errors import RunError, UserError, error_text
from ..records.audit import append
from ..records.rounds import Line
from ..records.store import RunFolder
from ..runner.conduct import run_experiment
from ..system.files import read_json, write_atomic
from ..system.machine import cores

app = ServerApp()


class RunOptions(NamedTuple):
    """Options of `flwr run -c`, named as in the app's pyproject.toml."""

    config: str = "smoke"
    settings: str = ""  # as after --set, one per line
    out: str = "runs/flower"
    command: str = ""  # the command that the record shows for this run
    resume: bool = False
    log: str = ""
    sites: str = ""  # in client order, one per line, each a name and the key's fingerprint: a deployment
    insecure: bool = False
    test: str = ""  # the server's test images, if sites have their own images
    quorum: int = 2
    wait: int = 600
    answer: int = 3600
    most: int = 0  # images of a site
    trail: str = ""  # the server's audit trail


@app.main()
def main(grid: Grid, context: Context) -> None:
    terms = RunOptions(**{k: v for k, v in context.run_config.items() if k in RunOptions._fields})  # type: ignore[arg-type]
    listener = Journal(*(Path(place) if place else None for place in (terms.log, terms.trail)))
    sys.argv = ["fssl", *shlex.split(terms.command)]  # a record shows our command, not Flower's
    try:
        run(grid, terms, listener)
    except (UserError, RunError) as error:
        listener.write("stopped", str(error))
        raise
    except (SystemExit, KeyboardInterrupt):  # Flower ends its programs with the SuperLink
        listener.write("cut off", "")
        raise
    except BaseException as error:
        listener.write("stopped", error_text(error))
        raise
    listener.write("finished", "")


def run(grid: Grid, terms: RunOptions, listener: "Journal") -> Line:
    tables = override(read_toml(terms.config), terms.settings.splitlines())
    config, out = parse_run(tables), Path(terms.out)
    sites = terms.sites.splitlines()
    if terms.trail:
        admitted = [] if terms.insecure else [AdmittedSite(*site.split()) for site in sites]
        grid = cast("Grid", AuditedGrid(grid, Path(terms.trail), out.name, admitted))

    def make(federation: Federation) -> Engine:
        policy, nodes = simulation(grid) if not sites else deployment(grid, terms, sites, out)
        return flower_engine(make_fleet(federation, grid, nodes, policy, listener.say))

    test = Path(terms.test) if terms.test else None
    dataset = server_dataset(config, test, len(sites)) if sites and config.data.name == "folder" else None
    return run_experiment(prepare(config, dataset), out, listener, terms.resume, make=make)


def parse_run(tables: Mapping[str, Any]) -> Config:
    """Return the single run in `tables`; reject one that Flower clients cannot train."""
    config = only_run(tables)
    check_fact(config, ENGINE, "Flower app", "Flower's app")
    return config


def simulation(grid: Grid) -> tuple[Policy, Nodes]:
    return Policy(window=2 * cores()), AnyNode(grid)


def deployment(grid: Grid, terms: RunOptions, sites: list[str], out: Path) -> tuple[Policy, Nodes]:
    nodes: Nodes = (
        AskedNodes(grid) if terms.insecure else AdmittedNodes(grid, [AdmittedSite(*s.split()) for s in sites])
    )
    policy = Policy(
        window=len(sites),  # each works on its own machine
        strict=False,
        run=run_name(out),
        quorum=terms.quorum,
        wait=terms.wait,
        answer=terms.answer,
        poll=0.25,
        most=terms.most,
    )
    return policy, nodes


def run_name(out: Path) -> str:
    """Return the run's name at the sites: constant for a run folder, unique among folders."""
    folder = RunFolder(out)
    known = read_json(folder.deployment_file).get("run")
    if not known:
        if folder.record.is_file():
            raise UserError(
                f"{out} was begun by another engine, so the sites lack their states; choose another folder", "out"
            )
        known = secrets.token_hex(16)
        write_atomic(folder.deployment_file, json.dumps({"run": known}) + "\n")
    return str(known)


def server_dataset(config: Config, test: Path | None, clients: int) -> Dataset:
    """Return the server's dataset when images stay at sites: their format, its own test and, if any, labeled images.

    All clients' images are one black image here, since the server does not train on them.
    """
    agreed = shared_format(config)
    check_fact(config, ENGINE, OWN_IMAGES, "a deployment whose sites hold their own images")
    check_federated(config)
    if test is None:
        raise UserError("server.toml: `test` is missing; name the folder of the server's test images (test/CLASS/*)")
    own = load_server(test, agreed)
    images = np.concatenate((np.zeros((1, agreed.size, agreed.size, agreed.channels), np.uint8), own.train.images))
    labels = np.concatenate((np.full(1, -1), own.train.labels))
    nothing, one = np.zeros(0, np.int64), np.zeros(1, np.int64)
    held = Partition((nothing,) * clients, (one,) * clients, np.arange(1, len(labels)))
    card = agreed.card(len(labels), len(own.test.labels))
    return own._replace(card=card, train=Split(images, labels), partition=held, groups=None)


def check_federated(config: Config) -> None:
    """Reject choosing a model by numbers that sites do not report."""
    if config.data.validation is None:
        return
    given = f"data.validation = {config.data.validation:g}: sites hold these images"
    if config.privacy.aggregation == "secagg+":
        raise UserError(f"{given}, and what they report of them would not be masked by privacy.aggregation = 'secagg+'")
    if config.records.metrics != "accuracy":
        raise UserError(f"{given} and report only accuracy and loss; remove records.metrics, or use 'accuracy'")


def of_round(line: Line) -> dict[str, Any]:
    """Return an audit trail's entry of a round: the participants, and why others did not participate."""
    return {key: line[key] for key in ("round", "clients", "missing", "unmeasured", "unscored") if key in line}


class Journal:
    """A listener that writes one JSON line per event, for programs that follow the run, and audit trail entries."""

    def __init__(self, path: Path | None, trail: Path | None = None) -> None:
        self.path, self.trail = path, trail

    def write(self, kind: str, content: Any) -> None:
        if self.path:
            with self.path.open("a") as file:
                file.write(json.dumps({kind: content}) + "\n")
        if self.trail and kind != "said":
            append(self.trail, f"run {kind}", about=of_round(content) if kind == "round" else content)

    def started(self, config: Config, done: list[Line]) -> None:
        self.write("started", {"rounds": config.rounds, "done": len(done), "measure": config.records.metrics})

    def round(self, line: Line) -> None:
        self.write("round", line)

    def say(self, text: str) -> None:
        self.write("said", text)
