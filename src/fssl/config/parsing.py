"""Plain tables in, a Config out: check single settings by schema, combinations by rules, then numbers."""

import re
from collections.abc import Collection, Mapping
from dataclasses import replace
from functools import partial
from typing import Any

from ..data.cards import check_class_names
from ..data.shares import MIN_ALPHA, Terms, check_shards, check_shares, implied_labels
from ..errors import UserError, as_typed, several, unknown
from .conditions import FOUND, KINDS, SCHEMAS, applies, check_rules, flatten_tables, value_of
from .schema import check_table, check_value, our_names, schema_of, several_runs
from .settings import SECTIONS, Config, Data, MethodChoice

LEAST_BEGUN = 3  # shorter beginnings match too many keys, such as the `d` of `-d`
LONGEST_LABEL = 60  # characters that fit into a line of a table
HEX_COLOR = re.compile(r"#[0-9A-Fa-f]{6}")
MOST_IMAGES = 1_000_000  # of a step: more than a device can hold
LAST_BLOCKS = re.compile(r"last-[1-9][0-9]{0,3}")
TOP = schema_of(Config)


def parse(tables: Mapping[str, Any]) -> Config:
    """Return a validated Config from TOML tables without a grid."""
    given = flatten_tables(tables)
    config = fill_found(Config(**{key: parse_key(key, value) for key, value in tables.items()}), given)
    check_rules(config, given)
    check_numbers(config)
    return config


def parse_key(key: str, value: Any) -> Any:
    """Return the checked value of a top-level key: a section, or a single setting."""
    if key == "grid":
        raise UserError("'grid' describes several runs; use `expand` to get the configuration of each")
    if key not in TOP:
        raise unknown("section or key", key, [*TOP, "grid"], keys_named(key))
    if key not in SECTIONS:
        return check_value(key, value, TOP[key])
    if not isinstance(value, Mapping):
        named = isinstance(value, str) and "name" in SCHEMAS[key]
        example = f"{key}.name = {value!r}" if named else f"{key}.<key> = ..."
        raise UserError(f"'{key}' is a section: write [{key}] and its keys below, or {example}")
    return parse_method(value) if key == "method" else parse_section(key, value)


def fill_found(config: Config, given: Collection[str]) -> Config:
    """Return the settings with 0 for each number that is read from files and was not given."""
    for key, note in FOUND.items():
        if key not in given and note.is_met(partial(value_of, config)):
            section, _, name = key.partition(".")
            config = replace(config, **{section: replace(getattr(config, section), **{name: 0})})
    return config


def parse_section(section: str, table: Mapping[str, Any]) -> Any:
    if section == "data":
        check_by_channel(table)
    values = check_table(table, SCHEMAS[section], section, elsewhere=partial(keys_like, section))
    if section == "partition":
        values["labels"] = implied_labels(values.get("labels"), values.get("labeled_clients"))
    return KINDS[section](**values)


def check_by_channel(table: Mapping[str, Any]) -> None:
    """Reject a single value where a list with one value per channel is expected."""
    channels = table.get("channels", Data.channels)
    if type(channels) is not int or channels not in (1, 3):  # rejected by its own check
        return
    for key in ("mean", "std"):
        value = table.get(key)
        if value is not None and not isinstance(value, list):
            raise UserError(f"data.{key} = {as_typed(value)}: expected a list of {by_channel(channels)}")


def parse_method(table: Mapping[str, Any]) -> MethodChoice:
    """Return a method's name and settings as given; the builders' signatures check them (methods.build_method)."""
    own = {key: value for key, value in table.items() if key in SCHEMAS["method"]}
    settings = {key: value for key, value in table.items() if key not in own}
    for key, value in settings.items():
        if not isinstance(value, bool | int | float | str):
            expected = "expected a number, a string, true or false"
            raise UserError(f"method.{key} = {value!r}: {expected}{several_runs(f'method.{key}', value)}")
    return MethodChoice(settings=tuple(sorted(settings.items())), **check_table(own, SCHEMAS["method"], "method"))


def keys_named(last: str) -> list[str]:
    """Return the dotted keys that end with a name: for a user who writes `lr` or `train.alpha`."""
    own = [last] if last in TOP and last not in SCHEMAS else [f"{last}.name"] if "name" in SCHEMAS.get(last, {}) else []
    return [*own, *(f"{name}.{last}" for name in SCHEMAS if last in SCHEMAS[name])]


def keys_like(section: str, key: str) -> list[str]:
    """Return suggestions for an unknown key of a section: for train.epochs train.local_epochs and server.epochs.

    Keys that begin with the given one are likelier than keys that end with it.
    """
    known = SCHEMAS[section]
    if own := our_names(key, known):
        return [f"{section}.{name}" for name in own]
    begun = [name for name in known if name.startswith(key) and name != key and len(key) >= LEAST_BEGUN]
    alike = begun or [name for name in known if name.endswith(f"_{key}")]
    return [*(f"{section}.{name}" for name in alike), *keys_named(key)]


# Combinations that only numbers decide, and texts that no table can show.


def check_numbers(config: Config) -> None:
    """Reject combinations that the rules of single settings do not cover."""
    check_images(config)
    if config.card.is_dealt and config.partition.file is None:
        check_dealing(config)
    check_draw(config)
    check_own_code(config)
    check_look(config.method)
    check_schedule(config)
    check_step_size(config)
    check_devices(config)
    check_trainable(config.model.trainable)


def check_images(config: Config) -> None:
    """Reject impossible facts about the images."""
    data, is_folder = config.data, config.card.is_folder
    channels = data.channels if is_folder else config.card.channels
    if is_folder and data.channels == 2:
        raise UserError("data.channels = 2: expected 3 (color) or 1 (grey)")
    if data.classes is not None:
        check_class_names("data.classes", data.classes)
    for key, values in (("mean", data.mean), ("std", data.std)):
        low = 0.0 if key == "mean" else 1e-6
        if values and (len(values) != channels or not all(low <= v <= 1 for v in values)):
            raise UserError(f"data.{key} = {list(values)}: expected {by_channel(channels, low)}")


def by_channel(channels: int, low: float | None = None) -> str:
    """`1 number from 0 to 1, one per channel, like [0.5]`."""
    limits = "" if low is None else f" from {low:g} to 1"
    return f"{channels} number{'s' * (channels > 1)}{limits}, one per channel, like {[0.5] * channels}"


def check_dealing(config: Config) -> None:
    """Check the labels and clients of a dataset that is dealt out."""
    data, part, card = config.data, config.partition, config.card
    if data.label_fraction == 0:
        raise UserError("data.label_fraction = 0: every client needs labels; expected a share above 0")
    is_even = part.alpha == 0 and part.kind == "paired-dirichlet"
    if applies(config, "partition.alpha") and part.alpha < MIN_ALPHA and not is_even:
        raise UserError(
            f"partition.alpha = {part.alpha:g}: expected at least {MIN_ALPHA} with partition.kind = '{part.kind}',"
            " since smaller values add hardly any skew; for an even split use partition.kind = 'iid'"
        )
    check_tail(config)
    if card.is_folder:  # the rest is checked once the folder is read
        return
    if config.picks_labels and config.labels_per_class > card.per_class_base:
        raise UserError(
            f"data.labels_per_class = {config.labels_per_class}: expected at most {card.per_class_base},"
            f" the images per class of {data.name}"
        )
    terms = Terms(
        part.kind, part.labels, part.clients, part.labeled_clients, part.classes_per_client, part.first_clients
    )
    num_labeled = sum(config.labeled_sizes) if config.picks_labels else 0
    others = config.other_sizes
    check_shares(terms, num_labeled, card.num_train if others is None else num_labeled + sum(others))
    check_shards(terms, card.num_groups)


def check_tail(config: Config) -> None:
    """Refuse numbers of images that make no tail."""
    data = config.data
    if data.imbalance_unlabeled is not None and abs(data.imbalance_unlabeled) < 1:
        raise UserError(
            f"data.imbalance_unlabeled = {data.imbalance_unlabeled:g}: expected 1 or more, or -1 or less to reverse"
        )
    if config.card.is_folder and config.other_sizes is not None and data.head is None:
        raise UserError("data.imbalance on own images needs data.head: how many the most common class has")
    if config.other_sizes is not None and max(config.other_sizes) < 1:
        key = f"data.labels_per_class = {config.labels_per_class}"
        raise UserError(f"{key}: no unlabeled image is left; give data.head, or fewer labels")


def check_draw(config: Config) -> None:
    """Reject a round with more clients than can be drawn; folders and files are checked once they are read."""
    among = "partition.labeled_clients" if config.train.draw == "labeled" else "partition.clients"
    drawn = config.train.clients_per_round
    if config.drawable and drawn > config.drawable:
        raise UserError(f"train.clients_per_round = {drawn}: expected at most {among} = {config.drawable}")


def check_own_code(config: Config) -> None:
    """Reject two files of one name, and a label rule that needs BatchNorm without BatchNorm."""
    if len({file.resolve() for file in config.own_files}) > len({file.name for file in config.own_files}):
        raise UserError(
            "method.name and model.name: their files have one name, and the run folder keeps both; rename one"
        )
    if config.model.norm != "batch" and dict(config.method.settings).get("label_bn") == "eval":
        raise UserError("method.label_bn = 'eval' needs BatchNorm's running statistics; use model.norm = 'batch'")


def check_look(method: MethodChoice) -> None:
    """Reject a label that tables cannot show, or an invalid color."""
    label, color = method.label, method.color
    if label is not None and not (label.strip() and label.isprintable() and len(label) <= LONGEST_LABEL):
        raise UserError(f"method.label = {label!r}: expected a line of 1 to {LONGEST_LABEL} characters")
    if color is not None and not HEX_COLOR.fullmatch(color):
        raise UserError(f"method.color = {color!r}: expected six hexadecimal digits, such as '#D55E00'")


def check_schedule(config: Config) -> None:
    """Reject a warm-up or cooldown that does not fit into the run."""
    train, rounds = config.train, several(config.rounds, "round")
    if train.cooldown > config.rounds:
        raise UserError(f"train.cooldown = {train.cooldown}: expected at most the {rounds} of the run, or 0 for none")
    if train.cooldown == 1 and train.schedule_over == "rounds":
        raise UserError(
            "train.cooldown = 1 has no effect: the first cooldown round still uses the full rate; use 0, or 2 or more"
        )
    if train.warmup is not None and train.warmup >= config.rounds:
        raise UserError(f"train.warmup = {train.warmup}: expected fewer than the {rounds} of the run")


def check_step_size(config: Config) -> None:
    """Reject steps with more images than a device can hold."""
    batch, ratio = config.train.batch, config.train.unlabeled_ratio
    if (images := batch * (1 + ratio)) > MOST_IMAGES:
        raise UserError(
            f"train.batch = {batch}, train.unlabeled_ratio = {ratio}: a step would take {images:,} images;"
            f" expected at most {MOST_IMAGES:,}"
        )


def check_trainable(what: str) -> None:
    """Reject blocks without a number."""
    if what.startswith("last-") and not LAST_BLOCKS.fullmatch(what):
        raise UserError(f"model.trainable = '{what}': expected 'last-N' with a number of blocks, such as 'last-2'")


def check_devices(config: Config) -> None:
    """Reject lists of different device types; availability is checked later."""
    names = config.compute.devices or ()
    if len({name.partition(":")[0] for name in names}) > 1:
        raise UserError(f"compute.devices = {list(names)}: expected devices of one type, such as ['cuda:0', 'cuda:1']")
