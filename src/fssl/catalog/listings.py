"""Listings for a terminal: methods, datasets, folders of images, presets and pages of the documentation."""

import re
from collections.abc import Collection, Iterable, Mapping, Sequence
from pathlib import Path

from rich.console import Console
from rich.table import Table
from rich.text import Text

from ..config import PRESETS, Data, Setting, check_value, num_runs, presets, read_toml, schema_of
from ..console import RunView, say, setting_text
from ..data.cache import Loading
from ..data.cards import CARDS, Card, check_class_names
from ..data.folder.listing import SPLIT_OFF, ByClass, is_site, of_all
from ..data.folder.load import check, raise_problems
from ..errors import UserError
from ..reports.formats import Grid, terminal
from ..system.machine import cores
from .entries import BASELINE, Entry, entries, entry, footnote, keeps, read_costs, source, step_cost, traffic
from .facts import registry

PACKAGE = Path(__file__).parents[1]
MOST_WARNINGS = 20  # of a folder's
NAMES = 40  # columns of a screen: up to this width a text is not folded


def listing(
    head: Iterable[str], rows: Iterable[Iterable[str]], numbers: Collection[int] = (), styles: Sequence[str] = ()
) -> Table:
    """Return a table of bold names and facts about each; columns of numbers are flush right."""
    texts = [[*row] for row in rows]
    grid = Grid([*head], texts, best={(i, 0): 1 for i in range(len(texts))})
    return terminal(grid, styles=styles, whole=NAMES, right=numbers)


# Methods.


def overview() -> tuple[Table, str, str]:
    """Return a table of all methods, at most 80 columns wide: a description, with numbers in columns below."""
    rows, below = [], in_columns("MB down/up", "step", "follows", "keeps")
    for e in entries():
        rows += [[e.name, e.about], ["", in_columns(traffic(e), step_cost(e), source(e)[1], keeps(e))]]
    return (
        listing(("method", f"what it does\n{below}"), rows, styles=["", "dim"] * (len(rows) // 2)),
        footnote(),
        "`fssl methods NAME` shows one with its settings; choose with --set method.name=NAME.",
    )


def in_columns(sent: str, step: str, follows: str, kept: str) -> str:
    return f"{sent:<10}  {step:<6}  {follows:<14}  {kept}"


def print_method(console: Console, name: str) -> None:
    """Print everything about a method, with or without plug-ins; `X+sage` is the plug-in itself."""
    plugin = name.removeprefix("X+")
    if plugin != name and plugin in registry().plugins:
        found, parts = next(e for e in entries() if e.name == name), [registry().plugins[plugin]]
    else:
        found, parts = entry(name), registry().find(name)
    facts = Table(box=None, show_header=False, pad_edge=False)
    for what, text in facts_of(found):
        facts.add_row(Text(what, "bold"), text)
    console.print(Text(f"{name}\n", "bold"), *(f"{part.doc}\n" for part in parts), facts, sep="\n", highlight=False)
    schema: dict[str, Setting] = {}
    for part in parts:
        schema = {**schema, **part.settings, **schema}  # the method's, if both have one
    console.print(settings_table(schema) if schema else "no settings")


def settings_table(schema: dict[str, Setting]) -> Table:
    """Return a line for each setting, with its meaning if the builder's signature gives it."""
    rows = [
        [f"method.{key}", default_text(setting), f"{setting.limits:g}" if setting.limits else "", setting.help]
        for key, setting in schema.items()
    ]
    has_help = any(help for *_, help in rows)
    head = ("setting", "default or choices", "range", "meaning")
    grid = Grid(head, rows) if has_help else Grid(head[:-1], [row[:-1] for row in rows])
    return terminal(grid, whole=NAMES)


def facts_of(entry: Entry) -> list[tuple[str, str]]:
    rows = []
    if entry.source:
        rows = [("paper", entry.source.paper), ("follows", entry.source.follows)]
        rows += [("page", f"fssl docs {entry.source.page}")]
    rows += [("keeps", keeps(entry) + kept_bytes(entry)), ("sends", sent_bytes(entry))]
    cost = step_cost(entry)
    if entry.cost:
        cost += f" ({entry.cost.low:.2f} to {entry.cost.high:.2f}) steps of {BASELINE}"
        cost += f"; {read_costs()['device']}, {read_costs()['shape']} shape"
    return [*rows, ("step", cost), *entry.compatibility_facts.items()]


def kept_bytes(entry: Entry) -> str:
    if not entry.sizes:
        return ""
    held = {"with each client": entry.sizes.client, "on the server": entry.sizes.server}
    held["on the server for each client that took part"] = entry.sizes.memory
    parts = [f"{size:,} bytes {where}" for where, size in held.items() if size]
    return f" ({', '.join(parts)})" if parts else ""


def sent_bytes(entry: Entry) -> str:
    if not entry.sizes:
        return "as X"
    note = f"; {entry.source.note}" if entry.source and entry.source.note else ""
    return f"{entry.sizes.down:,} bytes down, {entry.sizes.up:,} up (ResNet-8x4, 10 classes){note}"


def default_text(setting: Setting) -> str:
    """Format a setting's default as in a configuration, and its other options."""
    value = setting.default
    if setting.by_dataset:
        return "by dataset"
    if setting.options:
        return "|".join([setting_text(value), *(option for option in setting.options if option != value)])
    return f"{value:.6g}" if isinstance(value, float) else setting_text(value)


# Datasets and folders of images.


def datasets() -> Table:
    """Return a line for each dataset, without numbers if they are not fixed."""
    head = ("dataset", "what it is", "train", "test", "classes", "10 %")
    return listing(head, map(dataset_row, CARDS.values()), range(2, 6))


def dataset_row(card: Card) -> list[str]:
    numbers = (card.num_train, card.num_test, card.num_classes, max(1, round(0.1 * card.per_class_base)))
    hub = f" (hub: {card.hub_repo})" if card.hub_repo else ""
    return [card.name, card.title + hub, *(f"{n:,}" if card.num_train else "" for n in numbers)]


def agreed_classes(source: str) -> tuple[str, ...]:
    """Return the class names of a run's settings, reading nothing else of them."""
    table = read_toml(source).get("data")
    names = table.get("classes") if isinstance(table, Mapping) else None
    if names is None:
        raise UserError(f'{source}: data.classes is missing; list the classes of all sites, e.g. ["cat", "dog"]')
    classes: tuple[str, ...] = check_value("data.classes", names, schema_of(Data)["classes"], f"{source}: ")
    check_class_names(f"{source}: data.classes", classes)
    return classes


def print_folder(console: Console, root: Path, agreed: tuple[str, ...] = ()) -> None:
    """Print images by client and class, then every problem, including classes other than the agreed ones."""
    with RunView(console, "images", transient=True) as view:
        found = check(root, agreed, Loading(progress=view.loading(), workers=cores()))
    rows = [[s.name, counts(s.labeled), str(len(s.unlabeled)), counts(s.test)] for s in found.sites]
    if found.test or found.server:
        rows.append(["(server)", counts(found.server) if found.server else "", "", counts(found.test)])
    console.print(terminal(Grid(("client", "labeled", "unlabeled", "test"), rows), {}, whole=0, right=[2]))
    raise_problems(found, most=len(found.problems))
    labeled = {name for files in (found.server, *(s.labeled for s in found.sites)) for name in files}
    for line in found.warnings[:MOST_WARNINGS]:
        say(console, f"WARNING: {line}")
    if (more := len(found.warnings) - MOST_WARNINGS) > 0:
        say(console, f"WARNING: and {more} more")
    say(console, f"{labeled_classes(labeled, agreed)}. No problems.")
    if not is_site(root) and not any(any(of_all(files)) for files in (found.test, *(s.test for s in found.sites))):
        say(console, f"No test images: a run needs some in test/CLASS/*, or {SPLIT_OFF}.")


def labeled_classes(labeled: set[str], agreed: tuple[str, ...]) -> str:
    """Describe the classes with labeled images, and the agreed classes without any."""
    if not labeled:
        return "No labels: this site trains only on unlabeled images"  # of several sites that would be a problem
    if not agreed:
        return f"{len(labeled)} classes: {', '.join(sorted(labeled))}"
    shown, missing = ([name for name in agreed if (name in labeled) == there] for there in (True, False))
    without = f"; without labeled images, which is allowed: {', '.join(missing)}" if missing else ""
    return f"{len(shown)} of {len(agreed)} agreed classes: {', '.join(shown)}{without}"


def counts(files: ByClass) -> str:
    """Return `25 (cat: 12 · dog: 13)`."""
    each = " · ".join(f"{name}: {len(members)}" for name, members in files.items())
    return f"{sum(map(len, files.values()))} ({each})" if files else "–"


# Presets and pages.


def preset_table() -> Table:
    """Return a line for each preset: the beginning of its file, and its number of runs."""
    names = sorted(presets(), key=by_number)
    rows = [[name, first_line(PRESETS / f"{name}.toml"), str(num_runs(read_toml(name)))] for name in names]
    return listing(("preset", "what it runs", "runs"), rows, [2])


def by_number(name: str) -> tuple[int, list[tuple[str, int]]]:
    """Return a sort key: names outside of folders first, and `fig2` before `fig10`."""
    return name.count("/"), [(text, int(digits or 0)) for text, digits in re.findall(r"(\D+)(\d*)", name)]


def docs_folder() -> Path:
    """Return the folder of the pages."""
    installed = PACKAGE / "docs"
    return installed if installed.is_dir() else PACKAGE.parents[1] / "docs"


def pages() -> dict[str, Path]:
    """Return every page by its topic, those of methods last."""
    home = docs_folder()
    general = {page.stem.lower(): page for page in home.glob("*.md")}  # SECURITY.md is in capitals
    return {**dict(sorted(general.items())), **{page.stem: page for page in sorted(home.glob("methods/*.md"))}}


def page_table() -> Table:
    """Return a line for each page."""
    return listing(("topic", "what it is about"), ([name, first_line(page)] for name, page in pages().items()))


def first_line(file: Path) -> str:
    """Return the first line of a file, without its marks."""
    with file.open(encoding="utf-8") as lines:
        return next(lines).lstrip("# ").rstrip()
