"""The catalog on a terminal: a line for each method, or everything about one."""

from rich.console import Console
from rich.table import Column, Table
from rich.text import Text

from ..config import Setting
from ..console import PLAIN, setting_text
from .entries import BASELINE, Entry, entries, entry, footnote, keeps, read_costs, source, step_cost, traffic
from .facts import registry


def overview() -> tuple[Table, str, str]:
    """Table of all methods, at most 80 columns wide: what each does, and below it its numbers in columns."""
    head = Text("what it does\n").append(in_columns("MB down/up", "step", "follows", "keeps"), "dim")
    table = Table(Column("method", no_wrap=True), Column(head), **PLAIN)
    for e in entries():
        facts = in_columns(traffic(e), step_cost(e), source(e)[1], keeps(e))
        table.add_row(Text(e.name, "bold"), Text(f"{e.about}\n").append(facts, "dim"))
    return table, footnote(), "`fssl methods NAME` shows one with its settings; choose with --set method.name=NAME."


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
        schema = {**schema, **part.settings, **schema}  # where two share one, the method's counts
    console.print(settings_table(schema) if schema else "no settings")


def settings_table(schema: dict[str, Setting]) -> Table:
    """A line for each setting; what it means, where its builder says so in the signature."""
    has_help = any(setting.help for setting in schema.values())
    whole = [Column(title, no_wrap=True) for title in ("setting", "default or choices")]
    table = Table(*whole, "range", *(["meaning"] if has_help else []), **PLAIN)
    for key, setting in schema.items():
        limits = f"{setting.limits:g}" if setting.limits else ""
        table.add_row(f"method.{key}", default_text(setting), limits, *([setting.help] if has_help else []))
    return table


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
    return [*rows, ("step", cost), *entry.goes_with.items()]


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
    """A setting's default as a configuration would write it, and what else it may be."""
    value = setting.default
    if setting.by_dataset:
        return "by dataset"
    if setting.options:
        return "|".join([setting_text(value), *(option for option in setting.options if option != value)])
    return f"{value:.6g}" if isinstance(value, float) else setting_text(value)
