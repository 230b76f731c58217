"""Plain tables in, a Config out: single settings by their schema, and combinations that make no sense."""

import re
from collections.abc import Mapping
from dataclasses import replace
from functools import partial
from typing import Any, get_type_hints

from ..data.cards import check_class_names
from ..data.shares import MIN_ALPHA, SOME, Terms, check_shards, check_shares, who_has_labels
from ..errors import UserError, as_typed, several, unknown
from ..system.user_code import user_file
from .schema import called_here, check_table, check_value, schema_of, several_runs
from .settings import OF_OPTIMIZERS, SECTIONS, Config, Data, MethodChoice, Privacy, ServerChoice, Train, useless

LONGEST_LABEL = 60  # characters that fit into a line of a table
LEAST_BEGUN = 3  # letters that tell which key was begun: many begin with one, such as that of `-d`
COLOR = re.compile(r"#[0-9A-Fa-f]{6}")
MOST_IMAGES = 1_000_000  # of a step: beyond what a device holds
AUTHORS_WAY = "protocol 'authors' carries momentum from client to client"
TOP = schema_of(Config)
KINDS = {name: kind for name, kind in get_type_hints(Config).items() if name in SECTIONS}
SCHEMAS = {name: {k: s for k, s in schema_of(kind).items() if s.kind} for name, kind in KINDS.items()}


def parse(tables: Mapping[str, Any]) -> Config:
    """A validated Config from TOML tables without a grid."""
    values: dict[str, Any] = {}
    for key, value in tables.items():
        if key == "grid":
            raise UserError("'grid' stands for several runs: `expand` gives the configuration of each")
        if key not in TOP:
            raise unknown("section or key", key, [*TOP, "grid"], keys_named(key))
        if key in SECTIONS:
            if not isinstance(value, Mapping):
                named = isinstance(value, str) and "name" in SCHEMAS[key]
                example = f"{key}.name = {value!r}" if named else f"{key}.<key> = ..."
                raise UserError(f"'{key}' is a section: write [{key}] and its keys below, or {example}")
            values[key] = parse_method(value) if key == "method" else parse_section(key, value)
        else:
            values[key] = check_value(key, value, TOP[key])
    config = Config(**values)
    is_listed = not config.card.is_dealt or config.partition.file is not None
    if is_listed and "clients" not in tables.get("partition", {}):
        config = replace(config, partition=replace(config.partition, clients=0))  # known once folder or file is read
    if not config.card.is_dealt and "clients_per_round" not in tables.get("train", {}):
        config = replace(config, train=replace(config.train, clients_per_round=0))  # all, once the folder is read
    check_use(config.data.name, tables)
    check_superseded(config, tables)
    check_combinations(config)
    return config


def check_use(dataset: str, tables: Mapping[str, Any]) -> None:
    for key in useless(dataset, tables.get("partition", {}).get("labels")):
        section, _, name = key.partition(".")
        if name in tables.get(section, {}):
            reasons = {
                "folder": "its folders say who holds what and which images are labeled",
                "imagefolder": "classes may differ in size, so give data.labels_per_class",
            }
            why = reasons.get(dataset, "only a folder of your own images has a use for it")
            why = "its images are not made to fit" if key == "data.fit" else why
            raise UserError(f"{key} does not go with data.name = '{dataset}': {why}; leave it out")


def check_superseded(config: Config, tables: Mapping[str, Any]) -> None:
    """Refuse settings that a file, or clients that know all their labels, leave no say."""
    part = config.partition
    if part.file is None:
        beside, why = f"partition.labels = '{part.labels}'", "these clients know the labels of all their images"
    else:
        beside, why = "partition.file", "the file says who holds what and which images are labeled"
    for key in part.superseded:
        section, _, name = key.partition(".")
        if name in tables.get(section, {}):
            raise UserError(f"{key} does not go with {beside}: {why}; leave it out")
    if part.digest and part.file is None:
        raise UserError("partition.digest: there is no partition.file; leave it out")


def parse_section(section: str, table: Mapping[str, Any]) -> Any:
    if section == "data":
        check_by_channel(table)
    values = check_table(table, SCHEMAS[section], section, elsewhere=partial(keys_like, section))
    if section == "partition":
        values["labels"] = who_has_labels(values.get("labels"), values.get("labeled_clients"))
    return KINDS[section](**values)


def check_by_channel(table: Mapping[str, Any]) -> None:
    """Refuse one value where each channel has its own; no schema knows how many an example needs."""
    channels = table.get("channels", Data.channels)
    if type(channels) is not int or channels not in (1, 3):  # which is refused itself
        return
    for key in ("mean", "std"):
        value = table.get(key)
        if value is not None and not isinstance(value, list):
            raise UserError(f"data.{key} = {as_typed(value)}: expected a list of {by_channel(channels)}")


def by_channel(channels: int, low: float | None = None) -> str:
    """`1 number from 0 to 1, one per channel, like [0.5]`."""
    limits = "" if low is None else f" from {low:g} to 1"
    return f"{channels} number{'s' * (channels > 1)}{limits}, one per channel, like {[0.5] * channels}"


def parse_method(table: Mapping[str, Any]) -> MethodChoice:
    """Name and settings as given; the builders' signatures check them (methods.build_method)."""
    own = {key: value for key, value in table.items() if key in SCHEMAS["method"]}
    settings = {key: value for key, value in table.items() if key not in own}
    for key, value in settings.items():
        if not isinstance(value, bool | int | float | str):
            expected = "expected a number, a string, true or false"
            raise UserError(f"method.{key} = {value!r}: {expected}{several_runs(f'method.{key}', value)}")
    return MethodChoice(settings=tuple(sorted(settings.items())), **check_table(own, SCHEMAS["method"], "method"))


def keys_named(last: str) -> list[str]:
    """Dotted keys that end like this: a user who writes `lr` or `train.alpha` means one of them."""
    own = [last] if last in TOP and last not in SCHEMAS else [f"{last}.name"] if "name" in SCHEMAS.get(last, {}) else []
    return [*own, *(f"{name}.{last}" for name in SCHEMAS if last in SCHEMAS[name])]


def keys_like(section: str, key: str) -> list[str]:
    """What an unknown key of a section may mean: train.epochs is train.local_epochs, or server.epochs.

    A key that begins like this, as train.rounds begins with round, is likelier than those that only end so.
    """
    known = SCHEMAS[section]
    if own := called_here(key, known):
        return [f"{section}.{name}" for name in own]
    begun = [name for name in known if name.startswith(key) and name != key and len(key) >= LEAST_BEGUN]
    alike = begun or [name for name in known if name.endswith(f"_{key}")]
    return [*(f"{section}.{name}" for name in alike), *keys_named(key)]


def check_look(method: MethodChoice) -> None:
    """Refuse a label that no table can show, or a color that is none."""
    label, color = method.label, method.color
    if label is not None and not (label.strip() and label.isprintable() and len(label) <= LONGEST_LABEL):
        raise UserError(f"method.label = {label!r}: expected a line of at most {LONGEST_LABEL} characters")
    if color is not None and not COLOR.fullmatch(color):
        raise UserError(f"method.color = {color!r}: expected six hexadecimal digits, such as '#D55E00'")


def check_combinations(config: Config) -> None:
    """What no single key shows."""
    part, train = config.partition, config.train
    if config.card.is_folder:
        check_folder(config.data)
    if config.card.is_dealt and part.file is None:
        check_dealing(config)
    check_draw(config)
    if len({file.resolve() for file in config.own_files}) > len({file.name for file in config.own_files}):
        raise UserError("method.name and model.name: the run folder keeps both files, so give them two names")
    for section, choice in (("method", config.method), ("model", config.model)):
        if choice.digest and not user_file(choice.name):
            raise UserError(f"{section}.digest: '{choice.name}' is no file of yours, so it has none; leave it out")
    check_look(config.method)
    check_model(config)
    if train.batch * (1 + train.unlabeled_ratio) > MOST_IMAGES:
        raise UserError(
            f"train.batch = {train.batch}, train.unlabeled_ratio = {train.unlabeled_ratio}: a step would take"
            f" {train.batch * (1 + train.unlabeled_ratio):,} images; expected {MOST_IMAGES:,} at most"
        )
    check_privacy(config)
    check_training(config)
    check_choice(config)
    check_server(config)
    check_server_labels(config)
    check_labels_alone(config)
    check_static_norm(config)
    if config.protocol == "authors":
        check_authors(config)
    check_devices(config)


def check_model(config: Config) -> None:
    """Settings that want a file of weights, or BatchNorm, where there is none."""
    model = config.model
    if model.start_digest and model.start == "none":
        raise UserError("model.start_digest: model.start = 'none' has no file; leave it out")
    if model.start_partial and model.start == "none":
        raise UserError("model.start_partial = true: model.start = 'none' has no weights to use; leave it out")
    if model.norm != "batch" and dict(config.method.settings).get("label_bn") == "eval":
        raise UserError(
            "method.label_bn = 'eval' labels with BatchNorm's running statistics: model.norm must be 'batch'"
        )


def check_authors(config: Config) -> None:
    """What the released code's protocol excludes."""
    weight = config.train.labeled_weight
    if config.compute.engine != "local":
        raise UserError(f"{AUTHORS_WAY}: compute.engine must be 'local'")
    if (config.compute.lanes or 1) > 1:
        raise UserError(f"{AUTHORS_WAY}: compute.lanes must be 1")
    if weight:
        raise UserError(f"train.labeled_weight = {weight}: protocol 'authors' has its own; leave it out")


def check_privacy(config: Config) -> None:
    """Noise without a bound or drawn twice, and what masks exclude or nobody but masks has a use for."""
    privacy, every = config.privacy, config.records.checkpoint_every
    if privacy.noise and privacy.clip is None:
        raise UserError(f"privacy.noise = {privacy.noise:g}: noise is a multiple of privacy.clip, which is unset")
    if privacy.noise and every > 1:
        raise UserError(
            f"records.checkpoint_every = {every}: a resumed run would show clients its last rounds again with other"
            " noise, which privacy.noise does not count; leave it at 1"
        )
    if privacy.noise and config.server.static_norm == "sites":
        raise UserError(
            "server.static_norm = 'sites': sites see a round's model before its checkpoint is there, and a resumed run"
            " would show them another one with other noise, which privacy.noise does not count; leave one out"
        )
    if privacy.delta != Privacy().delta and not privacy.noise:
        raise UserError(f"privacy.delta = {privacy.delta:g}: without privacy.noise nothing is guaranteed; leave it out")
    if privacy.aggregation == "secagg+":
        if privacy.clip is not None:
            raise UserError(
                f"privacy.clip = {privacy.clip:g}: the server clips single uploads, which privacy.aggregation ="
                " 'secagg+' hides from it; give one of the two"
            )
        return
    for key in ("range", "max_weight"):
        if (value := getattr(privacy, key)) != getattr(Privacy(), key):
            raise UserError(f"privacy.{key} = {value:g}: only privacy.aggregation = 'secagg+' has it; leave it out")


def check_devices(config: Config) -> None:
    """Refuse lists of two kinds, or of no use to Flower; whether a device is there is asked later."""
    names = config.compute.devices
    if names is None:
        return
    if len({name.partition(":")[0] for name in names}) > 1:
        raise UserError(
            f"compute.devices = {list(names)}: expected one or more of a kind, such as ['cuda:0', 'cuda:1']"
        )
    if config.compute.engine != "local":
        raise UserError("compute.devices: only compute.engine = 'local' has it; Flower uses all GPUs of its cluster")


def check_training(config: Config) -> None:
    """The optimizer of clients, and its rate."""
    train = config.train
    has_momentum = train.optimizer == "adamw" or train.momentum > 0
    if train.class_balance and train.class_weights:
        raise UserError(
            f"train.class_balance = {train.class_balance:g}, train.class_weights = {train.class_weights:g}: both make"
            " up for rare classes, one by draws and one in the loss; give one"
        )
    if train.nesterov and train.optimizer != "sgd":
        raise UserError("train.nesterov = true: only train.optimizer = 'sgd' has that form")
    if train.nesterov and not has_momentum:
        raise UserError("train.nesterov = true: there is no momentum, train.momentum = 0")
    if train.beta2 != Train().beta2 and train.optimizer != "adamw":
        raise UserError(f"train.beta2 = {train.beta2:g}: only train.optimizer = 'adamw' has it")
    if train.keep_momentum and config.protocol == "authors":
        raise UserError(f"train.keep_momentum = true: {AUTHORS_WAY}, so no client keeps it; leave it out")
    if train.keep_momentum and not has_momentum:
        raise UserError("train.keep_momentum = true: there is none to keep, train.momentum = 0")
    if train.schedule_over == "steps" and not config.schedule.moves:
        raise UserError(
            "train.schedule_over = 'steps': the rate is constant; give train.schedule = 'cosine' or a train.cooldown,"
            " or leave it out"
        )
    if train.cooldown and train.schedule != "constant":
        raise UserError(f"train.cooldown = {train.cooldown}: only a constant rate can fall at the end; leave one out")
    if train.cooldown > config.rounds:
        rounds = several(config.rounds, "round")
        raise UserError(f"train.cooldown = {train.cooldown}: expected at most the {rounds} of the run, or 0 for none")
    if train.cooldown == 1 and train.schedule_over == "rounds":
        raise UserError(
            "train.cooldown = 1: over rounds the line begins in the first one at the full rate; give 2 or more, or 0"
        )
    if (train.warmup is not None) != (train.schedule == "warmup-cosine"):
        raise UserError("train.warmup and train.schedule = 'warmup-cosine' belong together: give both, or neither")
    if train.warmup is not None and train.warmup >= config.rounds:
        rounds = several(config.rounds, "round")
        raise UserError(f"train.warmup = {train.warmup}: expected fewer than the {rounds} of the run")


def check_choice(config: Config) -> None:
    """Refuse to choose a model by the test images that are reported."""
    asked = {"records.keep_best": config.records.keep_best, "train.patience": config.train.patience}
    for key, value in asked.items():
        if value and config.chosen_by is None:
            raise UserError(
                f"{key} = {as_typed(value)}: the only images to choose by are the reported test images;"
                " give data.validation, such as 0.1, or data.test = 'final'"
            )


def check_server(config: Config) -> None:
    """The server's optimizer, and the momentum that it broadcasts."""
    server, train, usual = config.server, config.train, ServerChoice()
    for key in server.unused:
        if (value := getattr(server, key)) != getattr(usual, key):
            those = " or ".join(f"'{kind}'" for kind in OF_OPTIMIZERS[key])
            others = " or server.broadcast_momentum = true" if key == "momentum" else ""
            raise UserError(f"server.{key} = {value:g}: only server.optimizer = {those}{others} has it; leave it out")
    if server.ship == "ema" and server.ema is None:
        raise UserError("server.ship = 'ema': there is no smoothed model; give server.ema, such as 0.9")
    if not server.broadcast_momentum:
        return
    start = "server.broadcast_momentum = true:"
    if train.optimizer != "sgd":
        raise UserError(f"{start} only momentum of train.optimizer = 'sgd' can be told from models")
    if train.momentum == 0:
        raise UserError(f"{start} clients have no momentum to begin with, train.momentum = 0")
    if train.keep_momentum:
        raise UserError(f"{start} clients begin with their own, train.keep_momentum = true; give one")
    if config.protocol == "authors":
        raise UserError(f"{start} {AUTHORS_WAY}; leave it out")


def check_server_labels(config: Config) -> None:
    """Labels at the server: what only it has a use for, and what makes no sense beside it."""
    usual, train = ServerChoice(), config.train
    if not config.has_server_labels:
        for key in ("epochs", "batch", "when", "warmup"):
            if (value := getattr(config.server, key)) != getattr(usual, key):
                raise UserError(
                    f"server.{key} = {as_typed(value)}: the server has no labels to train on;"
                    " give partition.labels = 'server', or leave it out"
                )
        return
    if config.server.warmup and not config.server_epochs:
        raise UserError(f"server.warmup = {config.server.warmup}: the server does not train, server.epochs = 0")
    beside = "does not go with partition.labels = 'server'"
    if train.labeled_weight:
        raise UserError(
            f"train.labeled_weight = {train.labeled_weight} {beside}: no client has labeled images; leave it out"
        )
    if config.protocol == "authors":
        raise UserError(f"protocol = 'authors' {beside}: the released code knows no such server; use 'clean'")


def check_draw(config: Config) -> None:
    """Refuse a round of more clients than can be drawn; a folder or a file says only later how many it has."""
    part, train = config.partition, config.train
    if train.draw == "labeled" and (part.labels not in SOME or part.file is not None):
        raise UserError(
            "train.draw = 'labeled' goes with partition.labels = 'few-clients' or 'knowing-clients', without a file;"
            " leave it out"
        )
    among = "partition.labeled_clients" if train.draw == "labeled" else "partition.clients"
    if config.drawable and train.clients_per_round > config.drawable:
        raise UserError(f"train.clients_per_round = {train.clients_per_round} is more than {among} = {config.drawable}")


def check_labels_alone(config: Config) -> None:
    """Refuse a rule for clients that know every label where there is none; of own images only their folders tell."""
    part = config.partition
    is_dealt_to_all = config.card.is_dealt and part.file is None and part.labels == "all-clients"
    if config.train.labels_alone and (is_dealt_to_all or config.has_server_labels):
        raise UserError(
            f"train.labels_alone = true: with partition.labels = '{part.labels}' no client knows every label of its"
            " images; leave it out"
        )


def check_static_norm(config: Config) -> None:
    """Statistics of BatchNorm that are measured: on images that are there, for norms that have some."""
    start = f"server.static_norm = '{config.server.static_norm}':"
    if config.server.static_norm == "server" and not config.has_server_labels:
        raise UserError(f"{start} the server has no images; give partition.labels = 'server', or use 'all' or 'sites'")
    if config.server.static_norm != "off" and config.model.norm != "batch":
        raise UserError(f"{start} model.norm = '{config.model.norm}' has no running statistics; leave it out")
    if config.server.static_norm == "sites" and config.privacy.aggregation == "secagg+":
        raise UserError(f"{start} sites send sums that privacy.aggregation = 'secagg+' does not mask; leave one out")


def check_folder(data: Data) -> None:
    if data.channels == 2:
        raise UserError("data.channels = 2: expected 3 (color) or 1 (grey)")
    if data.classes is not None:
        check_class_names("data.classes", data.classes)
    for key, values in (("mean", data.mean), ("std", data.std)):
        low = 0.0 if key == "mean" else 1e-6
        if values and (len(values) != data.channels or not all(low <= v <= 1 for v in values)):
            raise UserError(f"data.{key} = {list(values)}: expected {by_channel(data.channels, low)}")


def check_dealing(config: Config) -> None:
    """Labels and clients of a dataset that is dealt out."""
    data, part, card = config.data, config.partition, config.card
    if data.labels_per_class is not None and data.label_fraction is not None:
        raise UserError("data.labels_per_class and data.label_fraction exclude each other: give one")
    if data.label_fraction == 0:
        raise UserError("data.label_fraction = 0: every client needs labels; expected a share above 0")
    if part.has_alpha and part.alpha < MIN_ALPHA and (part.alpha > 0 or part.kind != "paired-dirichlet"):
        raise UserError(
            f"partition.alpha = {part.alpha:g}: {part.kind} expects at least {MIN_ALPHA}, below which hardly any skew"
            " is added; for an even split use partition.kind = 'iid'"
        )
    terms = Terms(
        part.kind, part.labels, part.clients, part.labeled_clients, part.classes_per_client, part.first_clients
    )
    if config.picks_labels:
        check_label_number(config)
    if not card.is_folder:  # else the rest is known once it is read
        num_labeled = config.labels_per_class * card.num_classes if config.picks_labels else 0
        check_shares(terms, num_labeled, card.num_train)
        check_shards(terms, card.num_classes)


def check_label_number(config: Config) -> None:
    """Refuse more labels than a class has images."""
    data, card = config.data, config.card
    if card.is_folder and data.labels_per_class is None:
        raise UserError(f"data.name = '{data.name}' needs data.labels_per_class: how many of each class are labeled")
    if not card.is_folder and config.labels_per_class > card.per_class_base:
        raise UserError(
            f"data.labels_per_class = {config.labels_per_class}: expected at most {card.per_class_base},"
            f" what {data.name} has per class"
        )
