"""The shape of the source: who imports whom, what is named how, and that nothing is there for nothing."""

import ast
import importlib
import re
import sys
from collections import Counter
from collections.abc import Iterator
from dataclasses import fields, replace
from functools import cached_property
from itertools import product
from pathlib import Path
from typing import Any, NamedTuple, get_type_hints

import pytest
import torch

import fssl
from fssl.catalog.facts import registry
from fssl.config import Config, expand, override, parse, presets, read_toml, to_toml
from fssl.core.experiment import prepare
from fssl.core.federation import Federation
from fssl.data.folder.example import export_digits
from fssl.engines.flower import internals
from fssl.errors import UserError
from fssl.methods.names import METHODS, PLUGINS, build_method, settings_of
from helpers.command import exit_code
from helpers.matrix import LABELERS
from helpers.small import method_of

SOURCE = Path(fssl.__file__).parent
# The floors of the house, from the ground up, as CONTRIBUTING.md draws them. A module may import from its own floor and
# from those below.
RANKS = (
    ("errors", "types", "seeds"),
    ("system",),
    ("data", "augment", "models", "label", "probes"),
    ("training",),
    ("config", "records", "console", "start"),
    ("methods",),
    ("core",),
    ("engines",),
    ("runner",),
    ("reports", "catalog", "bench", "inference"),
    ("paper", "deploy", "api", "reading"),
    ("cli", "__main__", ""),
)
HEAVY = ("matplotlib", "huggingface_hub", "tensorboard", "torch.utils.tensorboard", "wandb", "plotly", "timm")
HEAVY += ("onnx", "onnxruntime", "onnxscript", "pydicom", "fastapi", "uvicorn")


class Import(NamedTuple):
    """One name that a module imports: `fssl.config`, or `torch.nn`; whether inside a function."""

    by: str
    name: str
    is_late: bool


def module_of(path: Path) -> str:
    """`methods.sage` for src/fssl/methods/sage.py, `methods` for its package."""
    return ".".join(path.relative_to(SOURCE).with_suffix("").parts).removesuffix("__init__").rstrip(".")


MODULES = {module_of(path): path for path in sorted(SOURCE.rglob("*.py"))}
TREES = {name: ast.parse(path.read_text()) for name, path in MODULES.items()}


def absolute(module: str, node: ast.ImportFrom) -> str:
    """The full name behind `from ..x import y`."""
    if not node.level:
        return node.module or ""
    package = ["fssl", *module.split(".")] if MODULES[module].stem == "__init__" else ["fssl", *module.split(".")[:-1]]
    base = [part for part in package if part][: len(package) - node.level + 1]
    return ".".join([*base, *([node.module] if node.module else [])])


def imports_of(module: str) -> Iterator[Import]:
    return imports_below(TREES[module], module, is_late=False)


def imports_below(node: ast.AST, module: str, is_late: bool) -> Iterator[Import]:
    """Those of a part of a module; late, if it is inside of a function."""
    if isinstance(node, ast.Import):
        yield from (Import(module, alias.name, is_late) for alias in node.names)
    elif isinstance(node, ast.ImportFrom):
        origin = absolute(module, node)
        yield from (Import(module, f"{origin}.{alias.name}", is_late) for alias in node.names)
    elif not isinstance(node, ast.expr):
        is_late |= isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef)
        for inner in ast.iter_child_nodes(node):
            yield from imports_below(inner, module, is_late)


IMPORTS = [found for module in MODULES for found in imports_of(module)]
OWN = [i._replace(name=i.name.removeprefix("fssl").lstrip(".")) for i in IMPORTS if i.name.split(".")[0] == "fssl"]
FOREIGN = [i for i in IMPORTS if i.name.split(".")[0] != "fssl"]


def is_in(name: str, *packages: str) -> bool:
    return any(name == p or name.startswith(f"{p}.") for p in packages)


def rank(module: str) -> int:
    """Its place in the order; a new package has to be given one here."""
    for number, names in enumerate(RANKS):
        if is_in(module, *names):
            return number
    raise AssertionError(f"{module}: give it a rank in tests/test_structure.py")


def test_the_reader_of_imports_finds_what_is_there() -> None:
    assert Import("config.settings", "data.cards.CARDS", False) in OWN
    assert Import("methods.sage", "methods.base.Method", False) in OWN
    assert Import("methods.names", "errors.UserError", False) in OWN
    assert Import("reports.drawing", "matplotlib", True) in FOREIGN
    assert Import("types", "torch", False) in FOREIGN or Import("types", "torch.Tensor", False) in FOREIGN


def test_the_top_level_is_small_and_the_map_shows_every_room() -> None:
    """CONTRIBUTING.md draws the floors in the order of RANKS, the top one first."""
    assert 3 < len(list(SOURCE.glob("*.py"))) <= 9
    page = (SOURCE.parents[1] / "CONTRIBUTING.md").read_text()
    lines = page.split("## The house")[1].split("```text")[1].split("```")[0].splitlines()[1:]
    drawn = [{*line[:42].split()} for line in lines]  # names, then what they are
    assert drawn == [{*rank} - {"__main__", ""} for rank in reversed(RANKS)]


def test_imports_point_one_way() -> None:
    wrong = [
        f"{i.by} imports {i.name}" for i in OWN if i.name.split(".")[0] != "__version__" and rank(i.name) > rank(i.by)
    ]
    assert not wrong


def test_reading_needs_nothing_that_trains() -> None:
    """A run folder is all that reports, tables and figures know of a run."""
    training = ("training", "augment", "label", "models", "methods", "core", "engines", "runner", "start")
    reading = [i for i in OWN if is_in(i.by, "reports", "paper") and not i.is_late]
    assert {i.by.split(".")[0] for i in reading} == {"reports", "paper"}
    assert not [f"{i.by} imports {i.name}" for i in reading if is_in(i.name, *training)]


def test_records_do_not_change_the_learning() -> None:
    """They know settings and errors only, and only what runs or reads experiments knows them."""
    users = {i.by for i in OWN if is_in(i.name, "records")}
    assert "runner.conduct" in users
    learning = ("data", "augment", "models", "label", "probes", "methods", "core")
    assert not [user for user in users if is_in(user, *learning)]
    used = {i.name for i in OWN if is_in(i.by, "records")}
    assert all(is_in(name, "records", "config", "errors", "system") for name in used)


def test_fences() -> None:
    """Flower stays in its engine and in the app of a deployment's server, plots in the reports."""
    inside = ("engines.flower", "deploy.server_app")
    assert {i.by for i in FOREIGN if is_in(i.name, "flwr")} >= {"engines.flower.messages", "deploy.server_app"}
    wrong = [i for i in FOREIGN if is_in(i.name, "flwr") and not is_in(i.by, *inside)]
    wrong += [i for i in FOREIGN if is_in(i.name, "matplotlib") and not is_in(i.by, "reports", "paper")]
    assert not wrong


def test_what_depends_on_a_version_of_flower_is_in_one_module() -> None:
    """Others import Flower's public modules only, and name none of its texts."""
    home, public = "engines.flower.internals", ("flwr.app", "flwr.serverapp", "flwr.clientapp", "flwr.simulation")
    others = [i for i in FOREIGN if is_in(i.name, "flwr") and i.by != home]
    assert others
    assert not [i for i in others if i.name.rpartition(".")[0] not in public]
    named = {name: value for name, value in vars(internals).items() if name.isupper()}
    texts = [text for text in (*named.values(), *named["WRAPPING"]) if isinstance(text, str) and " " in text]
    assert len(texts) > 4
    assert not [(m, text) for m, path in MODULES.items() for text in texts if m != home and text in path.read_text()]


def test_heavy_packages_are_imported_when_they_are_needed() -> None:
    heavy = [i for i in FOREIGN if is_in(i.name, *HEAVY)]
    assert {i.name.split(".")[0] for i in heavy} >= {"matplotlib", "huggingface_hub", "wandb"}
    assert [i for i in heavy if not i.is_late] == []


def test_nothing_is_pickled() -> None:
    assert not [i for i in FOREIGN if is_in(i.name, "pickle", "dill", "cloudpickle", "joblib", "shelve")]
    calls = [(m, ast.unparse(n)) for m, tree in TREES.items() for n in ast.walk(tree) if isinstance(n, ast.Call)]
    assert not [call for call in calls if call[1].startswith("torch.save(")]
    loads = [call for call in calls if call[1].startswith("torch.load(")]  # a user's state dict, nothing executed
    assert loads == [("start", "torch.load(file, map_location='cpu', weights_only=True)")]


def test_no_room_below_the_methods_knows_a_particular_one() -> None:
    """Core, engines, probes and the runner ask what any method answers."""
    rooms = ("core", "engines", "probes", "runner", "records", "data", "models", "label")
    shared = ("methods.base", "methods.names", "methods.optimizers")
    known = [i for i in OWN if is_in(i.by, *rooms) and is_in(i.name, "methods")]
    assert len(known) > 5
    assert [i for i in known if not is_in(i.name, *shared)] == []
    tested = [
        (module, ast.unparse(node))
        for module, tree in TREES.items()
        if is_in(module, *rooms)
        for node in ast.walk(tree)
        if isinstance(node, ast.Call) and ast.unparse(node.func) in ("isinstance", "getattr")
        if re.search(r"\bmethod\b", ast.unparse(node.args[0]))
    ]
    assert tested == []


def test_names_say_what_is_inside() -> None:
    parts = {part for module in MODULES for part in module.split(".")}
    assert not parts & {"utils", "util", "helpers", "helper", "common", "misc"}


def test_no_two_modules_of_tests_have_one_name() -> None:
    """Folders of tests are no packages: pytest rejects to collect the second."""
    names = Counter(path.name for path in Path(__file__).parent.rglob("*.py") if path.name != "conftest.py")
    assert [name for name, number in names.items() if number > 1] == []


def test_only_the_command_line_prints() -> None:
    printing = {
        module
        for module, tree in TREES.items()
        for node in ast.walk(tree)
        if isinstance(node, ast.Call) and isinstance(node.func, ast.Name) and node.func.id == "print"
    }
    assert not printing


def test_every_module_of_methods_is_used_by_a_method() -> None:
    used = {builder.__module__.removeprefix("fssl.") for builder in (*METHODS.values(), *PLUGINS.values())}
    while (
        more := {
            name for i in OWN if i.by in used for name in MODULES if is_in(i.name, name) and is_in(name, "methods")
        }
        - used
    ):
        used |= more
    assert {name for name in MODULES if is_in(name, "methods")} - {"methods"} <= used


def test_builders_that_share_a_setting_share_its_default() -> None:
    """A plug-in and its base are given the same value when a run's settings are written out in full."""
    shared = {
        (name, plugin, key): (ours[key].default, theirs[key].default)
        for (name, base), (plugin, builder) in product(METHODS.items(), PLUGINS.items())
        for ours, theirs in [(settings_of(base), settings_of(builder))]
        for key in ours.keys() & theirs
    }
    assert {("fixmatch-lpl", "sage", "vote"), ("fixmatch-gpl", "sage", "vote")} <= shared.keys()
    assert {where: pair for where, pair in shared.items() if pair[0] != pair[1]} == {}


@pytest.mark.parametrize("name", presets())
@pytest.mark.slow
def test_every_preset_builds_its_methods(name: str) -> None:
    cells = list(expand(read_toml(name)))
    assert cells
    for config in {replace(config, seed=7) for _, config in cells}:
        method_of(config)  # rejects what does not fit
    first = (SOURCE / "presets" / f"{name}.toml").read_text().splitlines()[0]
    assert first.startswith("# ")
    assert first.endswith(".")


def watch_reads(monkeypatch: pytest.MonkeyPatch) -> set[tuple[str, str]]:
    """Which (section, field) is read by code other than the reading and writing of configurations itself."""
    reads: set[tuple[str, str]] = set()
    inside = {name for name, value in vars(Config).items() if isinstance(value, property | cached_property)}

    def watched(section: str, kind: type) -> None:
        names = {f.name for f in fields(kind)}
        plain: Any = kind.__getattribute__

        def read(self: Any, name: str) -> Any:
            frame = sys._getframe(1)
            module, function = frame.f_globals["__name__"], frame.f_code.co_name
            if name in names and module != "dataclasses" and (not is_in(module, "fssl.config") or function in inside):
                reads.add((section, name))
            return plain(self, name)

        monkeypatch.setattr(kind, "__getattribute__", read)

    watched("", Config)
    for section, kind in get_type_hints(Config).items():
        if hasattr(kind, "__dataclass_fields__"):
            watched(section, kind)
    return reads


def read_by_a_cluster(config: Config, monkeypatch: pytest.MonkeyPatch) -> None:
    """What Flower's simulation reads to start Ray, which is not started."""
    simulation = importlib.import_module("fssl.engines.flower.simulation")
    monkeypatch.setattr(simulation, "choose_device", lambda config: torch.device("cuda"))
    monkeypatch.setattr(simulation, "count_actors", lambda resources: 1)
    for name in ("init", "shutdown"):
        monkeypatch.setattr(f"ray.{name}", lambda **given: None)
    with simulation.cluster(config, simulation.client_resources(config), "") as actors:
        assert actors == 1


@pytest.mark.slow
def test_every_setting_is_read_by_a_run(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Not only defined: one of three short runs must ask for each: a plain one, one with labels at the server, and one
    on images in a folder that starts from the first; or a picture of them, or a fleet that masks uploads."""
    fleets = pytest.importorskip("fssl.engines.flower.masked", reason="Flower is not installed")
    monkeypatch.setenv("FSSL_CACHE", str(tmp_path / "cache"))
    export_digits(tmp_path / "sites")
    reads = watch_reads(monkeypatch)
    tables = override(read_toml("smoke"), ["train.rounds=2", "train.steps_per_round=1", "compute.device=cpu"])
    tables["data"] = {"name": "digits", "label_fraction": 0.1}
    (tmp_path / "small.toml").write_text(to_toml(tables))
    folder = ["--set", "data.name=folder", "--data-dir", str(tmp_path / "sites")]
    start = ["--set", f"model.start={tmp_path / 'run0'}", "--set", "model.start_partial=true"]
    at_server = ["--set", "partition.labels=server", "--set", "attack.kind=scale"]
    for words in ([], at_server, [*folder, *start, "--set", "train.optimizer=adamw"]):
        out = str(tmp_path / f"run{len(words)}")
        assert exit_code(monkeypatch, "run", tmp_path / "small.toml", "--out", out, *words) == 0
    assert exit_code(monkeypatch, "compare", tmp_path, "--svg", tmp_path / "both.svg") == 0
    adapted = ["model.name=resnet8", "model.trainable=adapters"]
    masked = override(tables, ["privacy.aggregation=secagg+", *adapted])
    read_by_a_cluster(parse(tables), monkeypatch)
    fleets.make_fleet(Federation(prepare(parse(masked))), None, None, fleets.Policy(window=1)).terms(3, 3)
    everything = {
        (section, f.name)
        for section, kind in get_type_hints(Config).items()
        if hasattr(kind, "__dataclass_fields__")
        for f in fields(kind)
    }
    everything |= {("", f.name) for f in fields(Config)}
    assert sorted(everything - reads) == []


HOSTS = [name for name in LABELERS if name != "sage"]


@pytest.mark.parametrize("name", HOSTS)
def test_a_plug_in_changes_nothing_but_its_own_fields(name: str) -> None:
    """SAGE the assignment, and in FlexMatch what enters the table; the oracle its switch."""
    host = build_method(name, {})
    changed = {
        plugin: {f.name for f in fields(host) if getattr(plugged, f.name) != getattr(host, f.name)}
        for plugin in PLUGINS
        for plugged in [build_method(f"{name}+{plugin}", {})]
        if type(plugged) is type(host)
    }
    assert changed == {"sage": {"assign", *["accept"] * (name == "flexmatch")}, "oracle": {"oracle"}}


def test_the_hosts_of_plug_ins_are_all_methods_that_take_them() -> None:
    known = registry().methods.items()
    refusing = [name for name, facts in known if "oracle" in facts.refuses]
    assert {*refusing} == {*METHODS} - {*HOSTS, "sage"}
    assert {"fedavg", "fedprox", "fedavg-sl", "fedloke", "fedmatch", "semifl", "flfl", "cbafed", "rscfed"} <= {
        *refusing
    }
    assert [name for name, facts in known if not facts.refuses] == HOSTS
    for name, plugin in product(refusing, PLUGINS):
        with pytest.raises(UserError, match=f"the plug-in '{plugin}' needs a method with pseudo-labels"):
            build_method(f"{name}+{plugin}", {})
