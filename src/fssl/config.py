"""A run's settings: frozen dataclasses from TOML and overrides, and all validation of user input."""

import json
import re
import tomllib
import types
import unicodedata
from collections.abc import Iterator, Mapping, Sequence
from copy import deepcopy
from dataclasses import MISSING, asdict, dataclass, field, fields, replace
from itertools import product
from pathlib import Path
from typing import Any, TypeVar, get_args, get_origin, get_type_hints

from .data.cards import CARDS, Card, card
from .errors import UserError, unknown

PRESETS = Path(__file__).parent / "presets"
NO_LIMIT = 1e30  # what single precision can still hold; inf is out of every range
MIN_ALPHA = 0.01  # smaller concentrations underflow when shares are drawn
T = TypeVar("T")


def number(default: Any, low: float, high: float = NO_LIMIT, text: str = "") -> Any:
    return field(default=default, metadata={"low": low, "high": high, "help": text})


def choice(default: str, *options: str, text: str = "") -> Any:
    return field(default=default, metadata={"options": options, "help": text})


def plain(default: Any, text: str = "") -> Any:
    return field(default=default, metadata={"help": text})


@dataclass(frozen=True)
class Data:
    """Which images, and how many of them are labeled."""

    name: str = choice("digits", *CARDS, text="dataset")
    dir: str | None = plain(None, "folder with its files (Parquet: else FSSL_DATA, else the hub)")
    labels_per_class: int | None = number(None, 1, text="labeled images per class")
    label_fraction: float | None = number(None, 0.0, 1.0, "or their share, as the paper counts it")
    flip: bool = plain(True, "horizontal flips in weak and strong views (the paper flips digits too)")
    classes: tuple[str, ...] | None = plain(None, "folder: class names in order (default: those found, sorted)")
    size: int = number(32, 8, 256, "folder: images are resized to this many pixels both ways")
    channels: int = number(3, 1, 3, "folder: 3 is color, 1 is grey")
    mean: tuple[float, ...] | None = plain(None, "folder: subtracted from each channel (default 0.5)")
    std: tuple[float, ...] | None = plain(None, "folder: each channel is divided by it (default 0.25)")
    digest: str | None = plain(
        None, "folder: checksum of its file list, filled in by a run and checked by its repetition"
    )


@dataclass(frozen=True)
class Partition:
    """Who holds what."""

    kind: str = choice(
        "paired-dirichlet", "paired-dirichlet", "dirichlet", "iid", text="how images are dealt out to clients"
    )
    alpha: float = number(1.0, 0.0, text="Dirichlet concentration; smaller is more skewed, 0 is an even split")
    clients: int = number(20, 1, text="registered clients (folder: default as many as it has)")
    seed: int = number(0, 0, 2**31 - 1, "0 is the paper's split")
    setting: str = choice("all-clients", "all-clients", text="where labels are")


@dataclass(frozen=True)
class MethodChoice:
    """A method's name and its builder's keyword arguments."""

    name: str = "sage"
    settings: tuple[tuple[str, Any], ...] = ()


@dataclass(frozen=True)
class Model:
    """The network."""

    name: str = choice("resnet8", "resnet8", "cnn", text="architecture")
    width: int = number(4, 1, 64, "width multiplier; 4 is the paper's")


@dataclass(frozen=True)
class Train:
    """Rounds and steps."""

    rounds: int | None = number(None, 1, 1_000_000, "default: the paper's number for the dataset")
    clients_per_round: int = number(8, 1, text="clients drawn each round")
    local_epochs: int = number(5, 1, 10_000, "epochs a client trains in a round")
    steps_per_round: int | None = number(None, 1, 1_000_000, "a fixed number of steps instead; 1 is FedSGD")
    batch: int = number(128, 1, 65_536, "labeled images per step")
    unlabeled_ratio: int = number(2, 1, 1000, "unlabeled images per labeled one in a step")
    lr: float = number(0.1, 0.0, text="learning rate, constant")
    momentum: float = number(0.9, 0.0, 0.9999, "SGD momentum")
    weight_decay: float = number(1e-4, 0.0, text="on all parameters")
    precision: str = choice("auto", "auto", "bf16", "fp32", text="auto: bf16 on a GPU, fp32 on a CPU")


@dataclass(frozen=True)
class Compute:
    """Where and how to compute; none of this changes what is computed beyond rounding."""

    device: str = choice("auto", "auto", "cpu", "cuda", text="auto: a GPU if there is one")
    compile: str = choice("auto", "auto", "on", "off", text="auto: on a GPU only")
    lanes: int | None = number(None, 1, 16, "clients trained at once (default: 4 on a GPU, else one per core)")
    threads: int | None = number(None, 1, 1024, "CPU threads of one client (default 1)")
    engine: str = choice("local", "local", "flower", text="flower: clients as actors of a Ray cluster")
    clients_per_gpu: int | None = number(None, 1, 64, "engine flower: clients at once on each GPU (default 1)")
    ray_address: str | None = plain(None, "engine flower: a running Ray cluster (default: one of this machine)")


@dataclass(frozen=True)
class Privacy:
    """Central differential privacy, with engine flower and in deployments."""

    clip: float | None = number(None, 1e-9, text="largest norm of a client's update (parameters only); unset: off")
    noise: float = number(0.0, 0.0, text="noise on the mean, in multiples of clip / clients; 1 or more is strong")


@dataclass(frozen=True)
class Records:
    """What is written down."""

    probes: str = choice("all", "all", "losses", text="all: every accumulator of the paper's figures")
    checkpoint_every: int = number(1, 1, text="rounds between checkpoints")
    tensorboard: bool = plain(False, "also write TensorBoard events")
    wandb: str = choice("off", "off", "offline", "online", text="also log to Weights & Biases")


@dataclass(frozen=True)
class Config:
    """Everything that decides a run."""

    seed: int = number(7, 0, 2**31 - 1, "client choice, initial weights and data order")
    protocol: str = choice("clean", "clean", "authors", text="authors: the released code's accidents too")
    data: Data = Data()
    partition: Partition = Partition()
    method: MethodChoice = MethodChoice()
    model: Model = Model()
    train: Train = Train()
    compute: Compute = Compute()
    privacy: Privacy = Privacy()
    records: Records = Records()

    @property
    def card(self) -> Card:
        facts = card(self.data.name)
        return replace(facts, num_classes=len(self.data.classes)) if self.data.classes else facts

    @property
    def labels_per_class(self) -> int:
        if self.data.labels_per_class is not None:
            return self.data.labels_per_class
        fraction = 0.1 if self.data.label_fraction is None else self.data.label_fraction
        return max(1, round(fraction * self.card.per_class_base))

    @property
    def rounds(self) -> int:
        return self.train.rounds or self.card.rounds


SECTIONS = {f.name: f.type for f in fields(Config) if f.name not in ("seed", "protocol")}
# A folder of images says itself who holds what and which images are labeled.
NOT_OF_A_FOLDER = (
    *("data.labels_per_class", "data.label_fraction"),
    *("partition.kind", "partition.alpha", "partition.seed", "partition.setting"),
)
OF_A_FOLDER = ("data.classes", "data.size", "data.channels", "data.mean", "data.std", "data.digest")
# Filled in when a folder is read, the last one because classes are known then.
FOUND = ("data.classes", "data.digest", "partition.clients", "method.tuning_epochs")
# A resumed run may be longer than before, on other hardware, or find its data elsewhere.
MAY_CHANGE = (
    "train.rounds",
    "data.dir",
    "compute.",
    "records.tensorboard",
    "records.wandb",
    "records.checkpoint_every",
)


def parse(tables: Mapping[str, Any]) -> Config:
    """A validated Config from TOML tables without a grid."""
    hints = get_type_hints(Config)
    known = [f.name for f in fields(Config)]
    values: dict[str, Any] = {}
    for key, value in tables.items():
        if key not in known:
            raise unknown("section or key", key, [*known, "grid"], keys_named(key))
        if key in SECTIONS:
            if not isinstance(value, Mapping):
                named = isinstance(value, str) and "name" in get_type_hints(hints[key])
                example = f"{key}.name = {value!r}" if named else f"{key}.<key> = ..."
                raise UserError(f"'{key}' is a section: write [{key}] and its keys below, or {example}")
            values[key] = parse_method(value) if key == "method" else parse_section(hints[key], key, value)
        else:
            values[key] = check(key, value, field_of(Config, key), hints[key])
    config = Config(**values)
    if config.data.name == "folder" and "clients" not in tables.get("partition", {}):
        config = replace(config, partition=replace(config.partition, clients=0))  # known once the folder is read
    check_use(config.data.name, tables)
    check_combinations(config)
    return config


def useless(dataset: str) -> tuple[str, ...]:
    """Settings that this dataset has no use for."""
    return NOT_OF_A_FOLDER if dataset == "folder" else OF_A_FOLDER


def check_use(dataset: str, tables: Mapping[str, Any]) -> None:
    for key in useless(dataset):
        section, _, name = key.partition(".")
        if name in tables.get(section, {}):
            why = (
                "its folders say who holds what and which images are labeled"
                if dataset == "folder"
                else "only data.name = 'folder' has a use for it"
            )
            raise UserError(f"{key} does not go with data.name = '{dataset}': {why}; leave it out")


def parse_section(kind: type[T], section: str, table: Mapping[str, Any]) -> T:
    hints = get_type_hints(kind)
    for key in table:
        if key not in hints:
            raise unknown(f"key in [{section}]", key, hints, keys_named(key))
    values = {k: check(f"{section}.{k}", v, field_of(kind, k), hints[k]) for k, v in table.items()}
    return kind(**values)


def parse_method(table: Mapping[str, Any]) -> MethodChoice:
    """Name and settings as given; the builders' signatures check them (methods.build_method)."""
    name = table.get("name", MethodChoice().name)
    if not isinstance(name, str):
        raise UserError(f"method.name = {name!r}: expected a text")
    return MethodChoice(name, tuple(sorted((k, v) for k, v in table.items() if k != "name")))


def keys_named(last: str) -> list[str]:
    """Dotted keys that end like this: whoever writes `lr` or `train.alpha` means one of them."""
    sections = {name: kind for name, kind in get_type_hints(Config).items() if name in SECTIONS}
    inner = [f"{name}.{f.name}" for name, kind in sections.items() for f in fields(kind)]
    return [key for key in (*get_type_hints(Config), *inner) if key.rsplit(".", 1)[-1] == last]


def field_of(kind: type, key: str) -> Any:
    return next(f for f in fields(kind) if f.name == key)


def check(key: str, value: Any, f: Any, hint: Any) -> Any:
    """The value, if it has the field's type and lies in its range."""
    allowed = [a for a in get_args(hint) if a is not types.NoneType] or [hint]
    if get_origin(allowed[0]) is tuple:
        return check_list(key, value, get_args(allowed[0])[0])
    right_type = type(value) in allowed or (float in allowed and type(value) is int)
    options = f.metadata.get("options")
    if options and (not right_type or value not in options):
        raise unknown(key, value, options)
    if not right_type:
        names = {int: "a whole number", float: "a number", str: "a text", bool: "true or false"}
        raise UserError(f"{key} = {value!r}: expected {names[allowed[0]]}")
    low, high = f.metadata.get("low"), f.metadata.get("high")
    if low is not None and not low <= value <= high:  # also refuses nan
        upper = f" to {high:.12g}" if high < NO_LIMIT or value > high else " upwards"
        raise UserError(f"{key} = {value!r}: expected a number from {low:g}{upper}")
    return float(value) if float in allowed else value


def check_list(key: str, value: Any, kind: type) -> tuple[Any, ...]:
    fits = isinstance(value, list) and value and all(type(v) in (kind, int if kind is float else kind) for v in value)
    if not fits:
        example = '["cat", "dog"]' if kind is str else "[0.5, 0.5, 0.5]"
        raise UserError(f"{key} = {value!r}: expected a list of {'texts' if kind is str else 'numbers'} like {example}")
    return tuple(unicodedata.normalize("NFC", v) if kind is str else kind(v) for v in value)


def check_combinations(config: Config) -> None:
    """What no single key shows."""
    part, train = config.partition, config.train
    if config.data.name == "folder":
        check_folder(config.data)
    else:
        check_dealing(config)
    if part.clients and train.clients_per_round > part.clients:
        raise UserError(
            f"train.clients_per_round = {train.clients_per_round} is more than partition.clients = {part.clients}"
        )
    if config.privacy.noise and config.privacy.clip is None:
        raise UserError(
            f"privacy.noise = {config.privacy.noise:g}: noise is a multiple of privacy.clip, which is unset"
        )
    if config.protocol == "authors" and config.compute.engine != "local":
        raise UserError("protocol 'authors' carries momentum from client to client: compute.engine must be 'local'")
    if config.protocol == "authors" and (config.compute.lanes or 1) > 1:
        raise UserError("protocol 'authors' carries momentum from client to client: compute.lanes must be 1")


def check_folder(data: Data) -> None:
    if data.channels == 2:
        raise UserError("data.channels = 2: expected 3 (color) or 1 (grey)")
    if data.classes is not None:
        names = data.classes
        if len(names) < 2 or len(set(names)) < len(names) or not all(name and name.isprintable() for name in names):
            raise UserError(f"data.classes = {list(names)}: expected two or more different names")
    for key, values in (("mean", data.mean), ("std", data.std)):
        low = 0.0 if key == "mean" else 1e-6
        if values and (len(values) != data.channels or not all(low <= v <= 1 for v in values)):
            raise UserError(
                f"data.{key} = {list(values)}: expected {data.channels} numbers from {low:g} to 1, one per channel"
            )


def check_dealing(config: Config) -> None:
    """Labels and clients of a dataset that is dealt out."""
    data, part, card = config.data, config.partition, config.card
    if data.labels_per_class is not None and data.label_fraction is not None:
        raise UserError("data.labels_per_class and data.label_fraction exclude each other: give one")
    if data.label_fraction == 0:
        raise UserError("data.label_fraction = 0: every client needs labels; expected a share above 0")
    if part.kind == "paired-dirichlet" and part.clients % 2:
        raise UserError(f"partition.clients = {part.clients}: paired-dirichlet pairs clients, so use an even number")
    if part.kind != "iid" and part.alpha < MIN_ALPHA and (part.alpha > 0 or part.kind == "dirichlet"):
        raise UserError(
            f"partition.alpha = {part.alpha:g}: {part.kind} expects at least {MIN_ALPHA};"
            " for an even split use partition.kind = 'iid'"
        )
    if config.labels_per_class > card.per_class_base:
        raise UserError(
            f"data.labels_per_class = {config.labels_per_class}: expected at most {card.per_class_base},"
            f" what {data.name} has per class"
        )
    shared = card.num_train if part.kind == "dirichlet" else config.labels_per_class * card.num_classes
    if part.clients > shared:
        raise UserError(
            f"partition.clients = {part.clients}: {shared} {'' if part.kind == 'dirichlet' else 'labeled '}images"
            " are too few for each client to hold one; use fewer clients or more labels"
        )


def read_toml(source: str) -> dict[str, Any]:
    """Tables of a preset (by name) or of a TOML file (by path)."""
    preset = PRESETS / f"{source}.toml"
    try:
        path = preset if source in presets() and not Path(source).is_file() else Path(source)
        if path.is_dir():
            raise UserError(f"'{source}' is a folder; expected a TOML file or a preset ({', '.join(presets())})")
        return tomllib.loads(path.read_text("utf-8-sig"))  # some editors begin with a mark
    except FileNotFoundError:
        raise unknown("preset or configuration file", source, presets()) from None
    except OSError as error:
        raise UserError(f"{source}: cannot be read: {error.strerror}") from None
    except UnicodeDecodeError as error:
        raise UserError(f"{source}: not UTF-8 text (byte {error.start + 1}); save it as UTF-8") from None
    except tomllib.TOMLDecodeError as error:
        raise UserError(f"{source}: not valid TOML: {error}") from None


def presets() -> list[str]:
    return sorted(str(p.relative_to(PRESETS).with_suffix("")) for p in PRESETS.rglob("*.toml"))


def override(tables: dict[str, Any], settings: Sequence[str]) -> dict[str, Any]:
    """Tables with `key=value` settings applied; the value is TOML, or else a text. A set key leaves the grid.

    What a setting excludes leaves the tables, unless it is itself set here.
    """
    out = deepcopy(tables)
    given = [pair_of(setting) for setting in settings]
    for key in {other for pair in given for other in excluded_by(*pair)} - {key for key, _ in given}:
        forget(out, key)
    for key, value in given:
        put(out, key, value)
        for name in [n for n, values in axes_of(out).items() if decides(n, values, key)]:
            drop(out["grid"], name)
    return out


def pair_of(setting: str) -> tuple[str, Any]:
    key, equals, text = setting.partition("=")
    if not equals or not key.strip():
        raise UserError(f"--set {setting}: expected key=value, for example train.lr=0.05")
    return key.strip(), toml_value(text.strip())


def excluded_by(key: str, value: Any) -> tuple[str, ...]:
    """Settings of a file that make no sense beside this one."""
    either = ("data.labels_per_class", "data.label_fraction")
    if key in either:
        return tuple(other for other in either if other != key)
    if key == "data.name":
        return (*useless(str(value)), *(["partition.clients"] if value == "folder" else []))
    return ()


def forget(tables: dict[str, Any], key: str) -> None:
    """Take a setting out of the tables and out of every axis of the grid."""
    section, _, name = key.partition(".")
    grid = tables.get("grid", {})
    for place in (tables, grid):
        if isinstance(place, Mapping) and isinstance(place.get(section), dict):
            place[section].pop(name, None)
    if isinstance(grid, Mapping) and isinstance(grid.get(section), list):
        for cell in grid[section]:
            if isinstance(cell, dict):
                cell.pop(name, None)


def decides(axis: str, values: list[Any], key: str) -> bool:
    """Whether an axis sets the key, or a part of it; one that sets it in some cells only is ambiguous."""
    if axis == key or axis.startswith(key + "."):
        return True
    if not key.startswith(axis + "."):
        return False
    setting = [isinstance(v, Mapping) and key.removeprefix(axis + ".") in v for v in values]
    if any(setting) and not all(setting):
        raise UserError(f"--set {key}: some cells of grid.{axis} set it themselves; set grid.{axis} instead")
    return all(setting)


def toml_value(text: str) -> Any:
    try:
        return tomllib.loads(f"v = {text}")["v"]
    except tomllib.TOMLDecodeError:
        return text


def put(tables: dict[str, Any], key: str, value: Any) -> None:
    *path, last = key.split(".")
    for part in path:
        tables = tables.setdefault(part, {})
        if not isinstance(tables, dict):
            raise UserError(f"{key}: '{part}' is a single value, not a section")
    tables[last] = value


def drop(tables: dict[str, Any], key: str) -> None:
    *path, last = key.split(".")
    for part in path:
        tables = tables[part]
    del tables[last]


def axes_of(tables: Mapping[str, Any]) -> dict[str, list[Any]]:
    grid = tables.get("grid", {})
    if not isinstance(grid, Mapping):
        raise UserError(f"grid = {grid!r}: expected a section of lists, for example grid.seed = [7, 8, 9]")
    if "grid" in grid:
        raise UserError("grid.grid: keys stand directly below [grid], for example grid.seed = [7, 8, 9]")
    return flat_grid(grid)


def flat_grid(grid: Mapping[str, Any], prefix: str = "") -> dict[str, list[Any]]:
    """[grid] axes by dotted key."""
    axes: dict[str, list[Any]] = {}
    for key, value in grid.items():
        if isinstance(value, Mapping):
            axes |= flat_grid(value, f"{prefix}{key}.")
        elif isinstance(value, list) and value:
            axes[prefix + key] = value
        else:
            example = [7, 8, 9] if value == [] else [value]
            raise UserError(f"grid.{prefix}{key} = {value!r}: expected a list of values, for example {example}")
    return axes


def expand(tables: Mapping[str, Any]) -> Iterator[tuple[str, Config]]:
    """(name, Config) of every cell; one unnamed cell without a [grid].

    An axis is a key with a list of values, or a section with a list of tables for it.
    """
    base = {k: v for k, v in tables.items() if k != "grid"}
    axes, seen = axes_of(tables), set()
    for values in product(*axes.values()):
        cell, labels = deepcopy(base), []
        for key, value in zip(axes, values, strict=True):
            pairs = {f"{key}.{k}": v for k, v in value.items()} if isinstance(value, dict) else {key: value}
            for dotted, v in pairs.items():
                put(cell, dotted, v)
            labels.append("_".join(label(k, v) for k, v in pairs.items()))
        name = "/".join(labels)
        if name in seen:
            raise UserError(f"[grid] names the run '{name}' twice: remove the repeated value")
        seen.add(name)
        yield name, parse(cell)


def label(key: str, value: Any) -> str:
    """A part of a cell's folder name: `sage`, `alpha0.1`, `seed7`."""
    last = key.rsplit(".", 1)[-1]
    text = re.sub(r"[^\w.+-]+", "_", str(value).lower() if isinstance(value, bool) else str(value))
    return text.strip(".") if last == "name" else f"{last}{text}"


def as_tables(config: Config) -> dict[str, Any]:
    """Plain tables that parse back to an equal Config; unset keys are left out."""
    tables = {k: v for k, v in asdict(config).items() if k != "method"}
    for section in SECTIONS:
        if section != "method":
            tables[section] = {
                k: list(v) if isinstance(v, tuple) else v for k, v in tables[section].items() if v is not None
            }
    tables["method"] = {"name": config.method.name, **dict(config.method.settings)}
    for key in (*useless(config.data.name), *([] if config.partition.clients else ["partition.clients"])):
        forget(tables, key)
    return tables


def resolved(config: Config) -> Config:
    """The same run with what the dataset decides filled in."""
    data = config.data
    if data.name != "folder":
        data = replace(data, labels_per_class=config.labels_per_class, label_fraction=None)
    return replace(config, data=data, train=replace(config.train, rounds=config.rounds))


def to_toml(tables: Mapping[str, Any]) -> str:
    """TOML text of plain tables, scalars first."""
    lines = assignments({k: v for k, v in tables.items() if not isinstance(v, Mapping)})
    for name, table in tables.items():
        if isinstance(table, Mapping):
            lines += ["", f"[{name}]", *assignments(table)]
    return "\n".join(lines) + "\n"


def assignments(table: Mapping[str, Any]) -> list[str]:
    return [f"{key} = {json.dumps(value, ensure_ascii=False)}" for key, value in table.items()]


def flatten(config: Config) -> dict[str, Any]:
    flat: dict[str, Any] = {}
    for key, value in as_tables(config).items():
        flat |= {f"{key}.{k}": v for k, v in value.items()} if isinstance(value, dict) else {key: value}
    return flat


def first_difference(stored: Config, given: Config) -> str | None:
    """The first setting in which a resumed run would be another run."""
    a, b = flatten(stored), flatten(given)
    for key in a | b:
        if key.startswith(MAY_CHANGE) or (key in FOUND and key not in b):
            continue
        if a.get(key, MISSING) != b.get(key, MISSING):
            return f"{key} is {a.get(key)!r} there and {b.get(key)!r} here"
    return None
