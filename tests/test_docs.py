"""The pages: every example runs, every command is accepted, every setting and every recorded name is explained.

`make regenerate` writes what is compared here with its source: the facts about methods, tables on pages, and all that
results/README.md shows of the runs on record, with its picture.
"""

import ast
import contextlib
import doctest
import importlib
import inspect
import json
import re
import shlex
import shutil
import sys
import textwrap
import tomllib
import types
from collections.abc import Callable, Collection, Iterator
from itertools import pairwise
from pathlib import Path
from typing import Any, get_type_hints

import pytest
import torch
import typer
from safetensors.numpy import load_file

import fssl
from fssl import api
from fssl.catalog.facts import FILE as FACTS
from fssl.cli import app as cli
from fssl.cli.options import console
from fssl.config import SOURCES, Config, Setting, expand, override, read_toml, schema_of
from fssl.config.conditions import RULES
from fssl.config.flat import AFTERWARDS, MAY_CHANGE
from fssl.config.rules import Case, Rule, Such
from fssl.config.settings import APP
from fssl.data.idx import SUMS
from fssl.errors import UserError, any_of
from fssl.inference.trained import Trained
from fssl.label.accept import Accept, FixedThreshold
from fssl.label.assign import Sage
from fssl.methods import AdamW, Sgd
from fssl.methods.base import Method, Needs, Recipe
from fssl.methods.fixmatch import FixMatch
from fssl.methods.names import METHODS, PLUGINS, build_method, settings_of
from fssl.models import Head, NormReLU
from fssl.paper.scoreboard import draw_board
from fssl.paper.tables import DPI
from fssl.records.layout import IMAGENET
from fssl.reports.compare import Comparison
from fssl.reports.drawing import render, settings
from fssl.reports.runs import Run
from fssl.reports.verdicts import NOISE
from helpers import benchmark_page, results_page
from helpers.command import exit_code
from helpers.generated import OF_METHODS, Generated
from helpers.method_facts import facts_text
from helpers.pages import FENCE, Block, blocks_of, commands_of
from helpers.pretrained import install_weights
from helpers.results_page import RESULTS

ROOT = Path(__file__).parents[1]
DOCS = sorted((ROOT / "docs").rglob("*.md"))
METHOD_PAGES = {page.stem: page for page in DOCS if page.parent.name == "methods"}
PAGES = [*DOCS, *(ROOT / name for name in ("README.md", "CONTRIBUTING.md", "results/README.md"))]
SETTINGS = ROOT / "docs" / "configuration.md"
LINK = re.compile(r"\]\(([^)\s]+)\)")
SMOKE = "runs/smoke"


BLOCKS = [block for page in PAGES for block in blocks_of(page)]
EXAMPLES = [b for b in BLOCKS if b.language == "python" and "import " in b.text]  # others are parts of a file


@pytest.fixture(scope="module")
def smoke_run(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The run that the pages speak of."""
    folder = tmp_path_factory.mktemp("docs") / "smoke"
    with pytest.MonkeyPatch.context() as patch:
        assert exit_code(patch, "run", "smoke", "--out", str(folder)) == 0
    return folder


@pytest.fixture
def desk(tmp_path: Path, smoke_run: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """An empty folder with the smoke run and the examples in it; methods that an example registers are forgotten."""
    shutil.copytree(smoke_run, tmp_path / SMOKE)
    shutil.copytree(ROOT / "examples", tmp_path / "examples")
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("FSSL_CACHE", str(tmp_path / "cache"))
    known = dict(METHODS)
    yield tmp_path
    METHODS.clear()
    METHODS.update(known)


def write_files(page: Path) -> None:
    """Blocks that begin with the name of a file."""
    for block in blocks_of(page):
        if name := re.match(r"# ([\w-]+\.(toml|py))\n", block.text):
            Path(name[1]).write_text(block.text)


# Examples.


@pytest.mark.parametrize("block", EXAMPLES, ids=str)
@pytest.mark.usefixtures("desk")
@pytest.mark.slow
def test_an_example_runs(block: Block, monkeypatch: pytest.MonkeyPatch) -> None:
    write_files(next(page for page in PAGES if page.name == block.page))
    module = types.ModuleType("example")
    monkeypatch.setitem(sys.modules, "example", module)
    exec(compile("\n" * block.line + block.text, f"docs/{block.page}", "exec"), vars(module))


@pytest.mark.parametrize(
    "what",
    [FixedThreshold, Sage, Head, NormReLU, Sgd, AdamW, build_method, api.experiment, api.experiments],
    ids=lambda what: what.__name__,
)
def test_an_example_in_a_docstring_is_true(what: Any) -> None:
    names = {**vars(sys.modules[what.__module__]), "fssl": fssl, "torch": torch}
    (found, *_) = [t for t in doctest.DocTestFinder().find(what, what.__name__, globs=names) if t.examples]
    assert doctest.DocTestRunner().run(found).failed == 0


def test_there_are_examples_commands_and_links() -> None:
    """Else the tests of each page would pass for want of anything to try."""
    assert {b.page for b in EXAMPLES} >= {"README.md", "adding-a-method.md", "python.md", "records.md"}
    assert sum(words[0] == "fssl" for page in PAGES for words in commands_of(page)) > 50
    assert sum(len(LINK.findall(FENCE.sub("", page.read_text()))) for page in PAGES) > 50


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.name)
@pytest.mark.slow
def test_commands_are_accepted(page: Path, desk: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Training is only planned (--dry-run), a benchmark or a server only parsed; commands that read a run find one."""
    write_files(page)
    makefile = (ROOT / "Makefile").read_text()
    for words in commands_of(page):
        while re.fullmatch(r"[A-Z_]+=.*", words[0]):
            monkeypatch.setenv(*words[0].split("=", 1))
            words = words[1:]
        if words[0] == "make":
            assert f"\n{words[1]}:" in makefile
        elif words[:2] == ["cp", "-r"]:
            if not Path(words[2]).exists():  # a run that is only planned
                stand_in(Path(words[2]))
            shutil.copytree(*words[2:])
        elif words[0] == "fssl":
            assert accepted(monkeypatch, words[1:]) == 0, f"{page.name}: {shlex.join(words)}"


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.name)
def test_runs_of_a_page_do_not_get_into_each_other_s_way(page: Path) -> None:
    """Its commands are not rejected, also after `fssl run smoke`: one folder, one run, unless it is resumed."""
    runs = {SMOKE: ["fssl", "run", "smoke"]}
    for words in commands_of(page):
        if words[:2] != ["fssl", "run"] or {"--resume", "--dry-run"} & {*words}:
            continue
        default = f"runs/{Path(words[2].removesuffix('.toml')).name}"
        out = words[words.index("--out") + 1] if "--out" in words else default
        assert runs.setdefault(out, words) == words


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.name)
@pytest.mark.usefixtures("desk")
def test_a_run_that_a_page_shows_or_starts_from_is_one_that_its_commands_write(page: Path) -> None:
    """The folder of a grid is no run's."""
    write_files(page)
    written: dict[Path, set[Path]] = {}

    def is_written(run: Path) -> bool:
        return all(run in runs for out, runs in written.items() if run.is_relative_to(out))

    for words in commands_of(page):
        if words[:2] == ["fssl", "run"] and "--out" in words:
            out = Path(words[words.index("--out") + 1])
            given = [value for option, value in pairwise(words) if option == "--set"]
            runs = [] if "--resume" in words else list(expand(override(read_toml(words[2]), given)))
            starts = [Path(run.model.start.replace("{seed}", str(run.seed))) for _, run in runs if run.model.start]
            assert all(is_written(path.parent if path.suffix else path) for path in starts), shlex.join(words)
            written.setdefault(out, set()).update(out / name for name, _ in runs)
        elif words[:2] == ["fssl", "show"]:
            assert is_written(Path(words[2])), shlex.join(words)


def accepted(monkeypatch: pytest.MonkeyPatch, words: list[str]) -> object:
    of_a_clone = words[0] == "verify" and words[1].startswith("results/")
    if words[0] in ("bench", "reproduce") or of_a_clone or {"--watch", "--by"} & {*words}:
        # Too long, not below this folder, without an end, or of runs that differ.
        command = typer.main.get_command(cli.app)
        command.commands[words[0]].make_context(words[0], words[1:])  # type: ignore[attr-defined]
        return 0
    if words[0] == "deploy" and words[1] not in ("init", "keys"):  # the others wait for each other
        group = typer.main.get_command(cli.app).commands["deploy"]  # type: ignore[attr-defined]
        group.commands[words[1]].make_context(words[1], words[2:])
        return 0
    if words[0] == "run":
        if "--out" in words:
            remove_stand_in(Path(words[words.index("--out") + 1]))
        words = [*words, "--dry-run"]
        for start in [word.partition("=")[2] for word in words if word.startswith("model.start=")]:
            if start == IMAGENET:
                install_weights(Path("site"))
                monkeypatch.syspath_prepend(Path("site").resolve())
                continue
            for path in {Path(start.replace("{seed}", seed)) for seed in "789"}:  # runs that are only planned
                stand_in(path.parent if path.suffix else path)
    if words[0] == "figures":
        words = [*words, "--only", "16"]  # without, drawing them all takes longer than a page is worth
    if words[0] in ("show", "compare", "tables", "figures", "pack", "submit", "predict", "export"):
        for path in map(Path, words[1:2] if words[0] in ("predict", "export") else words[1:]):
            if not path.exists() and not str(path).startswith("-") and not path.suffix:
                stand_in(path)
    return exit_code(monkeypatch, *words)


def stand_in(path: Path) -> None:
    """The smoke run in the place of one that is only planned, as if it had kept its best model too."""
    shutil.copytree(SMOKE, path, dirs_exist_ok=True)
    shutil.copy(path / "model.safetensors", path / "model-best.safetensors")


def remove_stand_in(path: Path) -> None:
    """Another run would be in the way of the planned one."""
    ours, its = (folder / "config.toml" for folder in (Path(SMOKE), path))
    if its != ours and its.is_file() and its.read_bytes() == ours.read_bytes():
        shutil.rmtree(path)


def test_cells_of_the_grid_have_the_folders_that_the_page_names(
    desk: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    (grid,) = (b.text for b in BLOCKS if b.text.startswith("# grid.toml"))
    (desk / "grid.toml").write_text(grid)
    monkeypatch.setattr(console, "_width", 200)
    runs = {"": 12, "seed=7": 6, "grid.seed=[7]": 6}
    listed = {}
    for setting, number in runs.items():
        assert exit_code(monkeypatch, "run", "grid.toml", "--dry-run", *(["--set", setting] if setting else [])) == 0
        listed[setting] = re.findall(r"runs/grid/\S+", capsys.readouterr().out)
        assert len(listed[setting]) == number
    page = SETTINGS.read_text()
    named = set(re.findall(r"`(runs/grid/[^`]+)`", page))
    assert len(named) == 3
    assert named <= {folder for folders in listed.values() for folder in folders}
    assert "runs/grid/alpha0.1/sage" in listed["seed=7"]
    assert "runs/grid/alpha0.1/sage/seed7" in listed["grid.seed=[7]"]


# What the pages must name.


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.name)
def test_every_file_and_module_that_a_page_names_exists(page: Path) -> None:
    text = page.read_text()
    for path in re.findall(r"`((?:src|tests|docs|results)/[\w./-]+\w)`", text):
        assert (ROOT / path).exists() or "NAME" in path, path
    for name in re.findall(r"`(fssl(?:\.\w+)+)", text):
        assert resolves(name), name


def resolves(name: str) -> bool:
    """Whether a dotted name leads to a module, or to something in one."""
    with contextlib.suppress(ModuleNotFoundError):
        if importlib.util.find_spec(name):
            return True
    head, _, last = name.rpartition(".")
    return hasattr(importlib.import_module(head), last)


@pytest.mark.slow
def test_the_page_names_every_method_that_takes_the_plug_in() -> None:
    table = OF_METHODS[1].split()[1]
    taking = [name for name, builder in METHODS.items() if isinstance(builder(), FixMatch) and name != "sage"]
    assert len(taking) > 8
    assert re.findall(r"^\| `([^`]+)` \| \+sage", table, re.MULTILINE) == taking
    assert re.findall(r"^\| `([^`]+)` \| no", table, re.MULTILINE) == [n for n in METHODS if n not in (*taking, "sage")]
    for name in taking:
        if name not in ("fixmatch-lpl", "fixmatch-gpl"):  # with the plug-in these are SAGE
            assert f"- `{name}+sage`: " in METHOD_PAGES[SOURCES[METHODS[name]].page].read_text()
    for name in METHODS.keys() - {*taking, "sage"}:
        with pytest.raises(UserError):
            build_method(f"{name}+sage", {})


def test_the_page_lists_every_extra_for_users() -> None:
    extras = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]["optional-dependencies"]
    table = (ROOT / "docs" / "install.md").read_text().split("| Extra | Needed for |")[1].split("\n\n")[0]
    assert {*re.findall(r"^\| `(\w+)` \|", table, re.MULTILINE)} == extras.keys() - {"docs", "dev"}


def test_readme_shows_the_last_five_lines_of_sage_s_assign() -> None:
    (shown,) = (block.text for block in blocks_of(ROOT / "README.md") if "PseudoLabels" in block.text)
    (rule,) = ast.parse(textwrap.dedent(inspect.getsource(Sage.__call__))).body
    assert isinstance(rule, ast.FunctionDef)
    assert [ast.unparse(line) for line in ast.parse(shown).body] == [ast.unparse(line) for line in rule.body[-5:]]


def test_readme_has_the_numbers_on_record() -> None:
    said, board = " ".join((ROOT / "README.md").read_text().split()), results_page.board()
    assert (
        f"Of the {board.total} different numbers that the SAGE paper prints, our runs cover {len(board.scores)}."
        in said
    )
    within, ran = sum(score.agrees for score in board.scores), len(board.scores)
    assert f"differ by {NOISE[0]} to {NOISE[1]} points; {within} of the {ran} are within that" in said
    assert f"and {ran - within} are farther away" in said
    ends = {run.path.name: run.result for run in results_page.runs_in("cifar100")}
    proxyfl, sage = (ends[f"{name}-authors-seed7-500"] for name in ("proxyfl", "sage"))
    assert f"after 500 rounds on CIFAR-100, ProxyFL has {proxyfl:.1f} % and SAGE {sage:.1f} %" in said
    bench = json.loads((ROOT / "results" / "bench" / "h200-paper-kernels.json").read_text())
    assert f"takes {bench['ours']['seconds_per_round']:.1f} s on one {bench['ours']['device']}" in said


def test_readme_is_short() -> None:
    assert len((ROOT / "README.md").read_text().split()) <= 1000


def test_every_question_of_a_method_is_explained() -> None:
    page = (ROOT / "docs" / "adding-a-method.md").read_text()
    questions = [
        name for name in vars(Method) if not name.startswith("_") and name not in inspect.get_annotations(Method)
    ]
    assert "step" in questions
    rule = [name for name in vars(Accept) if name[0] != "_"]
    hooks = ["ask_local", "meet", "ask_global", "vote", "remember", "weight_at", "supervised", "extra"]
    named = [*questions, *rule, *hooks, "extra_loss", "relabeled"]
    assert [name for name in named if not re.search(rf"`{name}\b", page)] == []


def test_the_reference_explains_every_function_and_field_of_a_method() -> None:
    page = (ROOT / "docs" / "api.md").read_text()
    for kind in (Method, Needs, Recipe, FixMatch, Accept, Run, Comparison, Trained):
        assert f"::: {kind.__module__}.{kind.__name__}\n" in page or f"::: fssl.methods.{kind.__name__}\n" in page
        said = inspect.getdoc(kind) or ""
        own = inspect.get_annotations(kind)
        assert [name for name in own if not re.search(rf"^ +{name}: ", said, re.MULTILINE)] == [], kind
        functions = [name for name, found in vars(kind).items() if name[0] != "_" and callable(found)]
        assert [name for name in functions if not inspect.getdoc(getattr(kind, name))] == [], kind


def names_in(tree: Any) -> set[str]:
    """All keys of nested tables, except those that are rounds or percentages."""
    if isinstance(tree, list):
        return {name for item in tree for name in names_in(item)}
    if not isinstance(tree, dict):
        return set()
    return {k for k in tree if not k.isdigit()} | {name for value in tree.values() for name in names_in(value)}


def test_every_name_in_a_run_folder_is_explained(smoke_run: Path) -> None:
    page = (ROOT / "docs" / "records.md").read_text()
    line = json.loads((smoke_run / "rounds.jsonl").read_text().splitlines()[-1])
    environment = json.loads((smoke_run / "env.json").read_text())
    for session in environment["sessions"]:
        session["packages"] = None
    names = names_in([line, environment, json.loads((smoke_run / "summary.json").read_text())])
    arrays = load_file(smoke_run / "probes" / "000008.safetensors")
    names |= {name.removeprefix("last_epoch.") for name in arrays}
    assert len(names) > 80
    assert sorted(name for name in names if f"`{name}`" not in page) == []
    assert [p.name for p in smoke_run.iterdir() if f"`{p.name}" not in page] == []
    shapes = {"confidence_l": (3, 100), "confidence_l_top": (3, 50), "labels_by_class": (3, 10), "n_valid": (3,)}
    assert {name: arrays[name].shape for name in shapes} == shapes


@pytest.mark.parametrize(
    ("start", "settings"),
    [("- These settings may change:", MAY_CHANGE), ("- A finished run that gets no more rounds", AFTERWARDS)],
)
def test_what_may_change_on_resume_is_listed(start: str, settings: Collection[str]) -> None:
    item = (ROOT / "docs" / "records.md").read_text().split(start)[1].split("\n- ")[0].split("\n\n")[0]
    assert sorted(re.findall(r"`([a-z_]+\.[a-z_*]+)`", item)) == sorted(
        key if "." in key else f"{key}.*" for key in settings
    )


# Pages of methods.


def builders_on(page: str) -> dict[str, Callable[..., Method]]:
    return {name: b for name, b in (METHODS | PLUGINS).items() if SOURCES[b].page == page}


def test_every_method_has_a_page_that_names_it() -> None:
    assert {SOURCES[builder].page for builder in (METHODS | PLUGINS).values()} == set(METHOD_PAGES)
    for stem, page in METHOD_PAGES.items():
        text = page.read_text()
        missing = [name for name in builders_on(stem) if f"{name}`" not in text and stem != name]
        assert not missing, f"{page.name} does not name {missing}"


@pytest.mark.parametrize("stem", METHOD_PAGES)
def test_a_method_s_page_has_the_parts_that_readers_look_for(stem: str) -> None:
    text = METHOD_PAGES[stem].read_text()
    assert re.search(r"\b(19|20)\d\d\b|\]\(", text.split("\n\n")[1]), "the paper and its year, or the page that has it"
    assert "$$" in text, "the equation"
    for title in ("## Where sources differ", "## Settings", "## Faithfulness"):
        assert f"\n{title}\n" in text
    named = re.findall(r"`(tests/[^`]+)`", text)
    assert named, "where it is tested"
    assert all((ROOT / path).is_file() for path in named)


@pytest.mark.parametrize("stem", METHOD_PAGES)
def test_settings_on_a_method_s_page_are_those_of_its_methods(stem: str) -> None:
    """Each setting is named, and nothing that looks like one (`key=value`) is not one."""
    text = METHOD_PAGES[stem].read_text()
    known = {key for builder in builders_on(stem).values() for key in settings_of(builder)}
    assert sorted(key for key in known if not re.search(rf"`{key}\b", text)) == []
    written = {found.removeprefix("method.") for found in re.findall(r"`([a-z_.]+) ?=[^`]*`", text)}
    plugged = {key for builder in PLUGINS.values() for key in settings_of(builder)}
    assert sorted(key for key in written if key not in known | plugged) == []


# The list of settings.


def settings_text() -> str:
    """Every setting in the order of its section: values, default, meaning and conditions."""
    kinds, lines = get_type_hints(Config), []
    for name, setting in schema_of(Config).items():
        if setting.kind:
            lines.append(entry(name, setting))
            continue
        section = {key: found for key, found in schema_of(kinds[name]).items() if found.kind}
        lines += ["", f"### {name}", "", *(entry(f"{name}.{key}", found) for key, found in section.items())]
        if name == "method":
            lines.append("- `method.*`: the method's settings, listed by `fssl methods NAME`")
    return "\n".join(["", *lines, "", ""])


def entry(key: str, setting: Setting) -> str:
    """- `train.beta2` (0–0.999999, default `0.999`): β₂ of `adamw`. Only with `train.optimizer=adamw`."""
    said = f"- `{key}` ({', '.join(values_of(setting))}): {setting.help}"
    rules = RULES.get(key, ())
    groups = sorted(dict.fromkeys(rule.of for rule in rules), key=len)
    texts = (text for of in groups for text in conditions(of, [rule for rule in rules if rule.of == of]))
    return ". ".join([said, *texts])


def conditions(of: tuple[object, ...], rules: list[Rule]) -> Iterator[str]:
    """When a setting applies, or only some values `of` it: "Only with `model.norm=batch`", "Not with ..."."""
    about = f"{any_of(map(code, of))} " if of else ""
    needed = [[text for case in r.cases for text in case_texts(case)] for r in rules if not r.is_negative]
    if needed:
        yield f"{about}{'only' if of else 'Only'} with {', and '.join(dict.fromkeys(map(any_of, needed)))}"
    excluded = dict.fromkeys(text for r in rules if r.is_negative for case in r.cases for text in case_texts(case))
    if excluded:
        yield f"{about}{'not' if of else 'Not'} with {any_of(excluded)}"


def case_texts(case: Case) -> list[str]:
    """`train.optimizer=adamw`; all engines that train at sites are one name, which the page explains."""
    at_sites = {*APP} <= {*case.values}
    values = (*(value for value in case.values if value not in APP), "sites") if at_sites else case.values
    first, *others = map(text_of, values or [""])
    return [f"`{case.key}={first}`" if first else f"`{case.key}`", *(f"`{other}`" for other in others)]


def text_of(value: object) -> str:
    return value.text if isinstance(value, Such) else json.dumps(value).strip('"')


def code(value: object) -> str:
    return f"`{text_of(value)}`"


def values_of(setting: Setting) -> Iterator[str]:
    """What is allowed, and the default: of options and truth values the default comes first."""
    assert setting.kind
    if setting.options:
        yield from map(code, sorted(setting.options, key=lambda option: option != setting.default))
    elif setting.kind is bool:
        yield from map(code, (setting.default, not setting.default))
    else:
        kind = {int: "integer", float: "number", str: "string"}[setting.kind]
        limits = str(setting.limits or kind).replace(" to ", "–").replace("0 upwards", "≥ 0")
        yield f"list of {kind}s" if setting.many else limits
        if setting.default is not None:
            yield f"default {code(setting.default)}"


GENERATED = [
    Generated(SETTINGS, "settings", settings_text),
    *OF_METHODS,
    *(Generated(RESULTS / "README.md", name, write) for name, write in results_page.PARTS.items()),
    Generated(ROOT / "docs" / "benchmark.md", "benchmark", benchmark_page.count),
    Generated(ROOT / "docs" / "leaderboard.md", "leaderboard", benchmark_page.leaderboard),
]


def test_facts_about_methods_are_what_their_builders_declare() -> None:
    assert FACTS.read_text() == facts_text(), "run: make regenerate"


def draw_pictures() -> None:
    with settings():
        results_page.BOARD.write_bytes(render(draw_board(results_page.board()), ["png"], DPI)["png"])
    benchmark_page.draw_picture()


@pytest.mark.parametrize("part", GENERATED, ids=lambda part: f"{part.page.parent.name}-{part.name}")
def test_tables_are_what_their_source_writes(part: Generated) -> None:
    assert part.split()[1] == part.write(), "run: make regenerate"


def test_the_page_has_every_setting_with_its_default() -> None:
    between = GENERATED[0].split()[1]
    assert "\n- `train.lr` (≥ 0, default `0.1`): " in between
    assert "\n- `model.width` (1–64, default `4`): " in between
    assert "\n- `train.nesterov` (`false`, `true`): " in between
    assert re.findall(r"`server.beta2` .* Only with (.*)", between) == ["`server.optimizer=adam`"]


def test_the_page_has_the_checksums_that_files_are_held_against() -> None:
    rows = re.findall(
        r"^\| `(\S+-ubyte)` \| `[0-9a-f]{32}` \| `([0-9a-f]{64})` \|$", GENERATED[0].page.read_text(), re.M
    )
    assert dict(rows) == SUMS["fmnist"]


# Links.


def anchors(page: Path) -> set[str]:
    titles = re.findall(r"^#+ (.+)$", FENCE.sub("", page.read_text()), re.MULTILINE)
    return {re.sub(r"[^\w -]", "", title.lower()).replace(" ", "-") for title in titles}


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.name)
def test_links_lead_somewhere(page: Path) -> None:
    lost = []
    for link in LINK.findall(FENCE.sub("", page.read_text())):
        path, _, anchor = link.partition("#")
        target = (page.parent / path).resolve() if path else page
        if "://" not in link and not (target.exists() and (not anchor or anchor in anchors(target))):
            lost.append(link)
    assert not lost
