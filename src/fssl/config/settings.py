"""The settings of a run: frozen dataclasses whose fields say what they may be."""

from dataclasses import dataclass, fields, replace
from pathlib import Path
from typing import Annotated, Any, Literal

from ..data.cards import CARDS, Card, Fit, card
from ..data.shares import HAVE_ALPHA
from ..system.user_code import user_file
from ..training.schedule import Schedule
from .schema import Filled, OneOf, Range

Device = Literal["auto", "cpu", "cuda"]
BY_A_RUN = Filled("by a run and checked by its repetition")
KNOWING = "knowing-clients"  # their labels are no matter of numbers
AT_SERVER = "server"
LABEL_NUMBERS = ("data.labels_per_class", "data.label_fraction")
DEALING = (
    *LABEL_NUMBERS,
    *("partition.kind", "partition.alpha", "partition.seed", "partition.classes_per_client"),
    *("partition.labels", "partition.labeled_clients", "partition.first_clients"),
)
MANY = 100_000_000  # more clients or images than any federation has
NETWORKS = ("resnet8", "cnn", "resnet18", "wrn-28-2", "wrn-28-8", "simple-cnn")
Headline = Literal["accuracy", "balanced_accuracy", "macro_f1", "auroc"]  # measures of which more is better
Seed = Annotated[int, Range(0, 2**31 - 1)]
DEFAULT_RANGE = 64.0  # running variances are the largest values of a model


@dataclass(frozen=True)
class Data:
    """Which images, and how many of them are labeled."""

    name: Annotated[str, OneOf(tuple(CARDS)), "dataset"] = "digits"
    dir: Annotated[str | None, "folder with its files (Parquet: else FSSL_DATA, else the hub)"] = None
    labels_per_class: Annotated[int | None, Range(1, MANY), "labeled images per class"] = None
    label_fraction: Annotated[float | None, Range(0.0, 1.0), "or their share, as the paper counts it"] = None
    test: Annotated[
        Literal["all", "tuning", "final"],
        "all test images, or a half: tuning to choose settings by, final to report, with tuning as validation part",
    ] = "all"
    validation: Annotated[
        float | None,
        Range(0.001, 0.5),
        "share of the labeled images that nobody trains on, to choose a model by; unset: none",
    ] = None
    flip: Annotated[bool, "horizontal flips in weak and strong views (the paper flips digits too)"] = True
    crop: Annotated[
        Literal["pad", "resize"],
        "views are cut from images with a reflected margin of an eighth, or from images enlarged by as much (bilinear)",
    ] = "pad"
    classes: Annotated[tuple[str, ...] | None, "own images: class names in order (default: those found, sorted)"] = None
    size: Annotated[int, Range(8, 256), "own images: images are resized to this many pixels both ways"] = 32
    channels: Annotated[int, Range(1, 3), "own images: 3 is color, 1 is grey"] = 3
    mean: Annotated[tuple[float, ...] | None, "own images: subtracted from each channel (default 0.5)"] = None
    std: Annotated[tuple[float, ...] | None, "own images: each channel is divided by it (default 0.25)"] = None
    skip_bad: Annotated[bool, "own images: leave out files that cannot be used and list them, instead of refusing"] = (
        False
    )
    test_share: Annotated[
        float | None, Range(0.001, 0.9), "imagefolder without test images: share to test with, folders kept whole"
    ] = None
    digest: Annotated[str | None, BY_A_RUN, "checksum of own images' file list, or of images given in Python"] = None
    fit: Annotated[Fit, "fmnist: 28 pixels become 32 by stretching, or by a black margin"] = "resize"


@dataclass(frozen=True)
class Partition:
    """Who holds what."""

    kind: Annotated[
        Literal["paired-dirichlet", "dirichlet", "balanced-dirichlet", "shards", "iid"],
        "how images are dealt out to clients",
    ] = "paired-dirichlet"
    alpha: Annotated[float, Range(0.0, 1e6), "Dirichlet concentration; smaller is more skewed, 0 is an even split"] = (
        1.0
    )
    clients: Annotated[int, Range(1, MANY), "registered clients (folder: default as many as it has)"] = 20
    seed: Annotated[Seed, "0 is the paper's split"] = 0
    classes_per_client: Annotated[int | None, Range(1, 10_000), "shards: pieces of a client, each of one class"] = None
    labels: Annotated[
        Literal["all-clients", "few-clients", "knowing-clients", "server"],
        "who has labels: all, a few that hold only the labeled images, a few that know all labels of theirs, or nobody"
        " but the server",
    ] = "all-clients"
    labeled_clients: Annotated[
        int | None, Range(1, MANY), 'how many have labels, the first; alone it means labels = "few-clients"'
    ] = None
    first_clients: Annotated[
        tuple[int, ...] | None,
        "knowing-clients: which clients of the draw come first, and so have labels",
    ] = None
    file: Annotated[str | None, "JSON file that says who holds what and knows which labels, in place of a deal"] = None
    digest: Annotated[str | None, BY_A_RUN, "checksum of that file"] = None

    @property
    def has_alpha(self) -> bool:
        """Whether alpha makes a difference."""
        return self.kind in HAVE_ALPHA and self.file is None

    @property
    def superseded(self) -> tuple[str, ...]:
        """Settings that have no say beside a file, or beside clients that know all their labels."""
        return DEALING if self.file is not None else LABEL_NUMBERS if self.labels == KNOWING else ()


@dataclass(frozen=True)
class MethodChoice:
    """A method's name and its builder's keyword arguments."""

    name: Annotated[str, "method or FILE.py:FUNCTION, then its plug-ins"] = "sage"
    settings: tuple[tuple[str, Any], ...] = ()
    digest: Annotated[str | None, BY_A_RUN, "FILE.py: checksum of the function and what it uses"] = None
    label: Annotated[str | None, "its name in tables, pages and LaTeX, such as Ours"] = None
    color: Annotated[str | None, "its color in pictures and pages, such as #D55E00"] = None


@dataclass(frozen=True)
class Model:
    """The network."""

    name: Annotated[
        str,
        OneOf(NETWORKS, own="network", prefix=("timm:", "python:"), also=("timm:NAME", "FILE.py:FUNCTION")),
        "architecture, timm:NAME, or FILE.py:FUNCTION",
    ] = "resnet8"
    width: Annotated[int, Range(1, 64), "channels in quarters; 4 is the network as published"] = 4
    norm: Annotated[Literal["batch", "group"], "group: GroupNorm, groups of at most 32 channels"] = "batch"
    stem: Annotated[
        Literal["cifar", "imagenet"], "resnet18: 3x3 for small images, or 7x7 and a maximum, both with stride 2"
    ] = "cifar"
    digest: Annotated[str | None, BY_A_RUN, "FILE.py: checksum of the function and what it uses"] = None
    start: Annotated[
        str, "none, or first weights: a run folder, a .safetensors file or a state dict; {seed} in it is the run's"
    ] = "none"
    start_partial: Annotated[bool, "tensors that `start` lacks, or has in another shape, begin afresh"] = False
    start_digest: Annotated[str | None, BY_A_RUN, "checksum of the file that `start` names"] = None


@dataclass(frozen=True)
class Train:
    """Rounds and steps."""

    rounds: Annotated[int | None, Range(1, 999_999), "default: the paper's number for the dataset"] = None
    patience: Annotated[
        int | None, Range(1, 999_999), "rounds without a better validation after which a run stops; unset: never"
    ] = None
    clients_per_round: Annotated[int, Range(1, MANY), "clients drawn each round (folder: default all)"] = 8
    draw: Annotated[Literal["all", "labeled"], "who can be drawn: all clients, or those with labels alone"] = "all"
    local_epochs: Annotated[int, Range(1, 10_000), "epochs a client trains in a round"] = 5
    steps_per_round: Annotated[int | None, Range(1, 1_000_000), "a fixed number of steps instead; 1 is FedSGD"] = None
    batch: Annotated[int, Range(1, 65_536), "labeled images per step"] = 128
    class_balance: Annotated[
        float, Range(0.0, 1.0), "labeled images are drawn as they are (0) up to every class equally often (1)"
    ] = 0.0
    class_weights: Annotated[
        float, Range(0.0, 1.0), "their loss counts them as they are (0) up to every class equally much (1)"
    ] = 0.0
    unlabeled_ratio: Annotated[int, Range(1, 1000), "unlabeled images per labeled one in a step"] = 2
    optimizer: Annotated[Literal["sgd", "adamw"], "of a client's steps"] = "sgd"
    lr: Annotated[float, Range(0.0), "learning rate, before the schedule; adamw wants about 0.001"] = 0.1
    schedule: Annotated[
        Literal["constant", "cosine", "warmup-cosine"], "of the rate: constant, or falling to 0 until the last round"
    ] = "constant"
    schedule_over: Annotated[
        Literal["rounds", "steps"], "one rate for a whole round, or a new one at every step of it"
    ] = "rounds"
    warmup: Annotated[int | None, Range(1, 999_999), "warmup-cosine: rounds in which the rate rises first"] = None
    cooldown: Annotated[
        int, Range(0, 999_999), "constant: last rounds, in which the rate falls towards 0 in a straight line; 0: none"
    ] = 0
    momentum: Annotated[float, Range(0.0, 0.9999), "of sgd; beta 1 of adamw"] = 0.9
    beta2: Annotated[float, Range(0.0, 0.999999), "of adamw"] = 0.999
    nesterov: Annotated[bool, "sgd: Nesterov's form of momentum"] = False
    keep_momentum: Annotated[bool, "a client goes on with the momentum of its last round, not from zero"] = False
    clip: Annotated[float | None, Range(1e-9, 1e9), "largest norm of a step's gradient; unset: any"] = None
    weight_decay: Annotated[float, Range(0.0, 1e3), "in a step's gradient; adamw: apart from it"] = 1e-4
    decay_on: Annotated[Literal["all", "weights"], "what decays: all, or neither biases nor scales of norms"] = "all"
    labeled_weight: Annotated[
        int,
        Range(0, 1_000_000),
        "W: a client weighs pool + W · labeled in the mean; a labeled image counts 1 + W times",
    ] = 0
    labels_alone: Annotated[bool, "clients that know every label of theirs train on labels alone"] = False
    precision: Annotated[Literal["auto", "bf16", "fp32"], "auto: bf16 on a GPU, fp32 on a CPU"] = "auto"


# Which optimizers of a server have a use for a setting.
OF_OPTIMIZERS = {"lr": ("momentum", "adam"), "momentum": ("momentum", "adam"), "beta2": ("adam",), "epsilon": ("adam",)}


@dataclass(frozen=True)
class ServerChoice:
    """What becomes of the clients' mean, and what a server with labels does."""

    optimizer: Annotated[Literal["mean", "momentum", "adam"], "the mean itself, or a step towards it"] = "mean"
    lr: Annotated[float, Range(0.0, 1e6), "momentum, adam: length of the step; adam wants about 0.01"] = 1.0
    momentum: Annotated[float, Range(0.0, 0.9999), "of the steps; beta 1 of adam; of what is broadcast"] = 0.9
    beta2: Annotated[float, Range(0.0, 0.999999), "of adam"] = 0.99
    epsilon: Annotated[float, Range(1e-9, 1e3), "of adam: added to the root of its second moment"] = 1e-3
    broadcast_momentum: Annotated[bool, "a momentum goes down with the model, and clients begin with it"] = False
    ema: Annotated[
        float | None,
        Range(0.0, 0.99999),
        "decay per round of a smoothed model, tested beside the plain one; unset: none",
    ] = None
    ship: Annotated[
        Literal["plain", "ema"], "which of the two is model.safetensors; each also has a file of its own"
    ] = "plain"
    epochs: Annotated[
        int | None, Range(0, 10_000), "labels at the server: its epochs over them in a round (default 5; 0: none)"
    ] = None
    batch: Annotated[
        int | None, Range(1, 65_536), "labels at the server: images per step (default 10; 250 of more than 1000)"
    ] = None
    when: Annotated[
        Literal["after", "before"], "labels at the server: it trains after the mean, or before it sends the model"
    ] = "after"
    warmup: Annotated[
        int, Range(0, 100_000), "labels at the server: how many times it takes its epochs before the first round"
    ] = 0
    static_norm: Annotated[
        Literal["off", "server", "all", "sites"],
        "BatchNorm's running statistics are measured for each global model: on the server's images, on all images in"
        " one place, or at each site on its own",
    ] = "off"

    @property
    def unused(self) -> list[str]:
        """Settings that this optimizer has no use for."""
        broadcast = ["momentum"] if self.broadcast_momentum else []
        return [key for key, kinds in OF_OPTIMIZERS.items() if self.optimizer not in kinds and key not in broadcast]


@dataclass(frozen=True)
class Compute:
    """Where and how to compute; none of this changes what is computed beyond rounding."""

    device: Annotated[Device, "auto: a GPU if there is one"] = "auto"
    devices: Annotated[
        tuple[str, ...] | None, 'devices that share a round, such as ["cuda:0", "cuda:1"] (default: all GPUs)'
    ] = None
    compile: Annotated[Literal["auto", "on", "off"], "auto: on a GPU only"] = "auto"
    kernels: Annotated[
        Literal["on", "off"],
        "on: kernels of our own on a Hopper GPU, for norms in bf16 and for rows that a server tunes",
    ] = "on"
    lanes: Annotated[
        int | None, Range(1, 16), "clients at once on a device (default: 4 on a GPU, else one per core)"
    ] = None
    processes: Annotated[
        Literal["auto", "on", "off"], "lanes of a CPU as processes, else threads; auto: in a run of 300 steps or more"
    ] = "auto"
    threads: Annotated[int | None, Range(1, 1024), "CPU threads of one client (default 1)"] = None
    engine: Annotated[Literal["local", "flower"], "flower: clients as actors of a Ray cluster"] = "local"
    clients_per_gpu: Annotated[int | None, Range(1, 64), "engine flower: clients at once on each GPU (default 1)"] = (
        None
    )
    ray_address: Annotated[str | None, "engine flower: a running Ray cluster (default: one of this machine)"] = None


@dataclass(frozen=True)
class Privacy:
    """Central differential privacy or masked uploads, with engine flower and in deployments."""

    clip: Annotated[
        float | None, Range(1e-9, 1e9), "engine flower: largest norm of a client's update (parameters only); unset: off"
    ] = None
    noise: Annotated[
        float,
        Range(0.0, 1e6),
        "engine flower: noise on the mean, in multiples of clip / clients; the run says what it guarantees",
    ] = 0.0
    delta: Annotated[float, Range(1e-30, 0.5), "of the guarantee (epsilon, delta) that the run tells"] = 1e-5
    aggregation: Annotated[
        Literal["plain", "secagg+"], "engine flower: secagg+ masks uploads, and the server opens their mean alone"
    ] = "plain"
    range: Annotated[
        float, Range(1e-3, 1e6), "secagg+: absolute values of a model are below it; smaller makes finer steps"
    ] = DEFAULT_RANGE
    max_weight: Annotated[
        int | None,
        Range(1, MANY),
        "secagg+: no client's weight in the mean is larger; unset: the largest client's, which sites with own images"
        " do not tell",
    ] = None


@dataclass(frozen=True)
class Records:
    """What is written down."""

    probes: Annotated[Literal["all", "losses"], "all: every accumulator of the paper's figures"] = "all"
    metrics: Annotated[Headline, "the measure of the test whose last ten rounds are the result"] = "accuracy"
    keep_best: Annotated[bool, "also keep the model of the best round, by the validation part (data.validation)"] = (
        False
    )
    checkpoint_every: Annotated[int, Range(1, 999_999), "rounds between checkpoints"] = 1
    tensorboard: Annotated[bool, "also write TensorBoard events"] = False
    wandb: Annotated[Literal["off", "offline", "online"], "also log to Weights & Biases"] = "off"


@dataclass(frozen=True)
class Config:
    """Everything that decides a run."""

    seed: Annotated[Seed, "client choice, initial weights and data order"] = 7
    protocol: Annotated[Literal["clean", "authors"], "authors: the released code's accidents too"] = "clean"
    data: Data = Data()
    partition: Partition = Partition()
    method: MethodChoice = MethodChoice()
    model: Model = Model()
    train: Train = Train()
    server: ServerChoice = ServerChoice()
    compute: Compute = Compute()
    privacy: Privacy = Privacy()
    records: Records = Records()

    @property
    def card(self) -> Card:
        facts = replace(card(self.data.name), fit=self.data.fit)
        return replace(facts, num_classes=len(self.data.classes)) if self.data.classes else facts

    @property
    def own_files(self) -> list[Path]:
        """The files beside its settings that a run is made of."""
        return [file for file in map(user_file, (self.method.name, self.model.name)) if file]

    @property
    def picks_labels(self) -> bool:
        """Whether a number of images of each class is labeled, and the partition says no more than where."""
        return self.card.is_dealt and not self.partition.superseded

    @property
    def labels_per_class(self) -> int:
        if self.data.labels_per_class is not None:
            return self.data.labels_per_class
        fraction = 0.1 if self.data.label_fraction is None else self.data.label_fraction
        return max(1, round(fraction * self.card.per_class_base))

    @property
    def has_server_labels(self) -> bool:
        """Whether the server has labels, and clients have none."""
        return self.partition.labels == AT_SERVER and self.partition.file is None

    @property
    def drawable(self) -> int:
        """How many clients can be drawn: all, or the first, which have labels."""
        part = self.partition
        return (part.labeled_clients or 0) if self.train.draw == "labeled" else part.clients

    @property
    def server_epochs(self) -> int:
        """Epochs of the server over its labeled images in a round."""
        given = 5 if self.server.epochs is None else self.server.epochs
        return given if self.has_server_labels else 0

    @property
    def server_batch(self) -> int:
        """Labeled images in a step of the server."""
        number = self.labels_per_class * self.card.num_classes
        return self.server.batch or usual_batch(number)

    @property
    def chosen_by(self) -> Literal["validation", "test"] | None:
        """The images that a model may be chosen by; none if all that there are beside training are those reported."""
        if self.data.validation is not None or self.data.test == "final":
            return "validation"
        return "test" if self.data.test == "tuning" else None

    @property
    def rounds(self) -> int:
        return self.train.rounds or self.card.rounds

    @property
    def schedule(self) -> Schedule:
        """How the learning rate moves."""
        train = self.train
        return Schedule(train.schedule, train.schedule_over, self.rounds, train.warmup or 0, train.cooldown)


def usual_batch(labels: int) -> int:
    """Images in a step of a server that has so many labels: SemiFL's numbers."""
    return 250 if labels > 1000 else 10


SECTIONS = tuple(f.name for f in fields(Config) if f.name not in ("seed", "protocol"))
METHOD_KEYS = tuple(f.name for f in fields(MethodChoice) if f.name != "settings")  # no builder may have one of these
# A folder of clients' images says itself who holds what and which images are labeled.
NOT_OF_A_FOLDER = (*DEALING, "partition.file", "partition.digest", "data.test_share")
OF_A_FOLDER = (
    *("data.classes", "data.size", "data.channels", "data.mean", "data.std"),
    *("data.skip_bad", "data.test_share"),
)


def useless(dataset: str, labels: Any = None) -> tuple[str, ...]:
    """Settings that this dataset has no use for: a folder of clients says who has labels, unless the server has."""
    facts = CARDS.get(dataset)
    unfit = () if facts is not None and facts.file_size is not None else ("data.fit",)
    if facts is None or not facts.is_folder:
        return (*OF_A_FOLDER, *unfit)
    if facts.is_dealt:
        return ("data.label_fraction", *unfit)
    decided = (key for key in NOT_OF_A_FOLDER if key != "partition.labels" or labels != AT_SERVER)
    return (*decided, *unfit)
