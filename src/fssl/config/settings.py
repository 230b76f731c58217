"""The settings of a run: frozen dataclasses whose fields say what they may be."""

from dataclasses import dataclass, field, fields, replace
from pathlib import Path
from typing import Any

from ..data.cards import CARDS, Card, card
from ..system.user_code import file_of

NO_LIMIT = 1e30  # what single precision can still hold; inf is out of every range


def number(default: Any, low: float, high: float = NO_LIMIT, text: str = "") -> Any:
    return field(default=default, metadata={"low": low, "high": high, "help": text})


def choice(default: str, *options: str, text: str = "", own: str = "") -> Any:
    """One of a list; with `own`, which says what it is, also FILE.py:FUNCTION."""
    return field(default=default, metadata={"options": options, "help": text, "own": own})


def plain(default: Any, text: str = "") -> Any:
    return field(default=default, metadata={"help": text})


@dataclass(frozen=True)
class Data:
    """Which images, and how many of them are labeled."""

    name: str = choice("digits", *CARDS, text="dataset")
    dir: str | None = plain(None, "folder with its files (Parquet: else FSSL_DATA, else the hub)")
    labels_per_class: int | None = number(None, 1, text="labeled images per class")
    label_fraction: float | None = number(None, 0.0, 1.0, "or their share, as the paper counts it")
    test: str = choice(
        "all",
        "all",
        "tuning",
        "final",
        text="all test images, or a half: tuning to choose settings by, final to report",
    )
    flip: bool = plain(True, "horizontal flips in weak and strong views (the paper flips digits too)")
    classes: tuple[str, ...] | None = plain(None, "own images: class names in order (default: those found, sorted)")
    size: int = number(32, 8, 256, "own images: images are resized to this many pixels both ways")
    channels: int = number(3, 1, 3, "own images: 3 is color, 1 is grey")
    mean: tuple[float, ...] | None = plain(None, "own images: subtracted from each channel (default 0.5)")
    std: tuple[float, ...] | None = plain(None, "own images: each channel is divided by it (default 0.25)")
    digest: str | None = plain(
        None, "own images: checksum of its file list, filled in by a run and checked by its repetition"
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
    labeled_clients: int | None = number(
        None, 1, text="only this many clients have labels, and nothing else (default: all have some)"
    )


@dataclass(frozen=True)
class MethodChoice:
    """A method's name and its builder's keyword arguments."""

    name: str = "sage"
    settings: tuple[tuple[str, Any], ...] = ()
    digest: str | None = None


@dataclass(frozen=True)
class Model:
    """The network."""

    name: str = choice("resnet8", "resnet8", "cnn", text="architecture, or FILE.py:FUNCTION", own="network")
    width: int = number(4, 1, 64, "width multiplier; 4 is the paper's")
    digest: str | None = plain(None, "FILE.py: its checksum, filled in by a run and checked by its repetition")


@dataclass(frozen=True)
class Train:
    """Rounds and steps."""

    rounds: int | None = number(None, 1, 999_999, "default: the paper's number for the dataset")
    clients_per_round: int = number(8, 1, text="clients drawn each round")
    local_epochs: int = number(5, 1, 10_000, "epochs a client trains in a round")
    steps_per_round: int | None = number(None, 1, 1_000_000, "a fixed number of steps instead; 1 is FedSGD")
    batch: int = number(128, 1, 65_536, "labeled images per step")
    unlabeled_ratio: int = number(2, 1, 1000, "unlabeled images per labeled one in a step")
    lr: float = number(0.1, 0.0, text="learning rate, constant")
    momentum: float = number(0.9, 0.0, 0.9999, "SGD momentum")
    weight_decay: float = number(1e-4, 0.0, text="on all parameters")
    labeled_weight: int = number(0, 0, 1_000_000, "how many times more a labeled image counts when models are averaged")
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
    def own_files(self) -> list[Path]:
        """The files beside its settings that a run is made of."""
        return [file for file in map(file_of, (self.method.name, self.model.name)) if file]

    @property
    def labels_per_class(self) -> int:
        if self.data.labels_per_class is not None:
            return self.data.labels_per_class
        fraction = 0.1 if self.data.label_fraction is None else self.data.label_fraction
        return max(1, round(fraction * self.card.per_class_base))

    @property
    def rounds(self) -> int:
        return self.train.rounds or self.card.rounds


SECTIONS = tuple(f.name for f in fields(Config) if f.name not in ("seed", "protocol"))
# A folder of clients' images says itself who holds what and which images are labeled.
NOT_OF_A_FOLDER = (
    *("data.labels_per_class", "data.label_fraction"),
    *("partition.kind", "partition.alpha", "partition.seed", "partition.labeled_clients"),
)
OF_A_FOLDER = ("data.classes", "data.size", "data.channels", "data.mean", "data.std", "data.digest")


def useless(dataset: str) -> tuple[str, ...]:
    """Settings that this dataset has no use for."""
    facts = CARDS.get(dataset)
    if facts is None or not facts.is_folder:
        return OF_A_FOLDER
    return ("data.label_fraction",) if facts.is_dealt else NOT_OF_A_FOLDER
