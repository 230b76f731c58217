"""The settings of a run: frozen dataclasses whose fields say what they may be, and `rules` when they apply."""

from dataclasses import dataclass, fields, replace
from functools import cached_property
from pathlib import Path
from typing import Annotated, Any, Literal

from ..data.cards import CARDS, Card, Fit, card
from ..data.shares import HAVE_ALPHA, SOME
from ..system.user_code import user_file
from ..training.schedule import Schedule
from .rules import Asks, Found, Idle, MayChange, NoResult, Not, Only, PaperRecipe, Required, Such, Unless, Where, rules
from .schema import Filled, OneOf, Range

Device = Literal["auto", "cpu", "cuda"]
BY_A_RUN = Filled("by a run and checked by its repetition")
AT_SERVER = "server"
OF_CLIENTS = ("all-clients", *SOME)  # labels of clients
MANY = 100_000_000  # more clients or images than any federation has
NETWORKS = ("resnet8", "cnn", "resnet18", "wrn-28-2", "wrn-28-8", "simple-cnn")
Headline = Literal["accuracy", "balanced_accuracy", "macro_f1", "auroc"]  # measures of which more is better
Seed = Annotated[int, Range(0, 2**31 - 1)]
DEFAULT_RANGE = 64.0  # running variances are the largest values of a model

# Facts that decide settings, and are known later than these: who trains clients, and what takes a method's steps.
ENGINE, STEPS = "run.engine", "method.steps"
OWN_IMAGES = "deployment with own images"  # of its sites
DEPLOYED = ("deployment", OWN_IMAGES)
APP = ("Flower app", *DEPLOYED)
BY_FLOWER = Asks(ENGINE, "flower", *APP)
USUAL_STEPS = Not(STEPS, "own")
IDLE_STEPS = Idle(STEPS, "own")

# Choices that several settings are a part of.
OWN_FILE = Such("FILE.py:FUNCTION", lambda name: isinstance(name, str) and user_file(name))
SEVERAL = Such("2 or more", lambda number: isinstance(number, int) and number > 1)
FOLDERS = tuple(name for name, facts in CARDS.items() if facts.is_folder)
CLIENT_FOLDERS = tuple(name for name, facts in CARDS.items() if not facts.is_dealt)
DEALT_FOLDERS = tuple(name for name in FOLDERS if name not in CLIENT_FOLDERS)
IN_FOLDERS = Where("data.name", *FOLDERS)
FITTED = Where("data.name", *(name for name, facts in CARDS.items() if facts.file_size is not None))
OF_CLIENT_FOLDERS = Unless(
    "data.name", *CLIENT_FOLDERS, why="its folders say who holds what and which images are labeled"
)
DEALT = (OF_CLIENT_FOLDERS, Unless("partition.file", why="the file says who holds what and which images are labeled"))
COUNTED = (
    *DEALT,
    Unless("partition.labels", "knowing-clients", why="these clients know the labels of all their images"),
)
ADAM, STEPPING = Only("server.optimizer", "adam"), Only("server.optimizer", "momentum", "adam")
MASKED = Only("privacy.aggregation", "secagg+")
LABELED_SERVER = Only("partition.labels", AT_SERVER)
OTHER_NOISE = "a resumed run would show clients its last rounds again with other noise, which the budget does not count"
LOGGER = Not(ENGINE, *APP, why="rounds.jsonl has the same numbers")
FOR_REPORT = "the only images to choose by are the reported test images"
CHOOSING = Asks("data.validation", why=FOR_REPORT) | Asks("data.test", "tuning", "final")
MOMENTUM = Asks("train.optimizer", "adamw", why="there is no momentum") | Asks("train.momentum")
AUTHORS_WAY = "it carries momentum from client to client"
NOT_OF_AUTHORS = Not("protocol", "authors", why=AUTHORS_WAY)


@rules(
    name=Not(ENGINE, *DEPLOYED, of=DEALT_FOLDERS, why="sites hold images of their own; use 'folder'"),
    dir=(
        MayChange(),
        NoResult(),
        Not(ENGINE, OWN_IMAGES, why="site.toml names a site's images, `test` in server.toml the server's"),
    ),
    label_fraction=(
        *COUNTED,
        Unless("data.name", *DEALT_FOLDERS, why="classes may differ in size, so give data.labels_per_class"),
        Unless("data.labels_per_class", why="they exclude each other"),
    ),
    labels_per_class=(
        *COUNTED,
        Unless("data.label_fraction", why="they exclude each other"),
        Required("data.name", *DEALT_FOLDERS, why="how many images of each class are labeled"),
    ),
    validation=Not(ENGINE, OWN_IMAGES, why="labeled images stay at the sites; use data.test = 'final' to choose by"),
    classes=(IN_FOLDERS, Required(ENGINE, OWN_IMAGES, why='a list that all sites agree on, e.g. ["cat", "dog"]')),
    size=IN_FOLDERS,
    channels=IN_FOLDERS,
    mean=IN_FOLDERS,
    std=IN_FOLDERS,
    skip_bad=IN_FOLDERS,
    test_share=Where("data.name", *DEALT_FOLDERS),
    fit=FITTED,
)
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
    classes: Annotated[tuple[str, ...] | None, "class names in order (default: those found, sorted)"] = None
    size: Annotated[int, Range(8, 256), "images are resized to this many pixels both ways"] = 32
    channels: Annotated[int, Range(1, 3), "3 is color, 1 is grey"] = 3
    mean: Annotated[tuple[float, ...] | None, "subtracted from each channel (default 0.5)"] = None
    std: Annotated[tuple[float, ...] | None, "each channel is divided by it (default 0.25)"] = None
    skip_bad: Annotated[bool, "leave out files that cannot be used and list them, instead of refusing"] = False
    test_share: Annotated[
        float | None, Range(0.001, 0.9), "without test images: share to test with, folders kept whole"
    ] = None
    digest: Annotated[str | None, BY_A_RUN, "checksum of own images' file list, or of images given in Python"] = None
    fit: Annotated[Fit, "28 pixels become 32 by stretching, or by a black margin"] = "resize"


@rules(
    kind=DEALT,
    alpha=(*DEALT, Where("partition.kind", *HAVE_ALPHA)),
    clients=Found("data.name", *CLIENT_FOLDERS) | Found("partition.file"),
    seed=DEALT,
    classes_per_client=(
        *DEALT,
        Only("partition.kind", "shards"),
        Required("partition.kind", "shards", why="how many pieces each client gets, such as 2"),
    ),
    labels=(
        Unless("data.name", *CLIENT_FOLDERS, of=OF_CLIENTS, why="its folders say which images are labeled"),
        DEALT[1],
    ),
    labeled_clients=(*DEALT, Only("partition.labels", *SOME), Required("partition.labels", *SOME, why="how many")),
    first_clients=(*DEALT, Only("partition.labels", "knowing-clients")),
    file=(MayChange(), NoResult(), OF_CLIENT_FOLDERS, Not(ENGINE, *DEPLOYED, why="the sites have no such file")),
    digest=Only("partition.file"),
)
@dataclass(frozen=True)
class PartitionChoice:
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
    classes_per_client: Annotated[int | None, Range(1, 10_000), "pieces of a client, each of one class"] = None
    labels: Annotated[
        Literal["all-clients", "few-clients", "knowing-clients", "server"],
        "who has labels: all, a few that hold only the labeled images, a few that know all labels of theirs, or nobody"
        " but the server",
    ] = "all-clients"
    labeled_clients: Annotated[
        int | None, Range(1, MANY), 'how many have labels, the first; alone it means labels = "few-clients"'
    ] = None
    first_clients: Annotated[tuple[int, ...] | None, "which clients of the draw come first, and so have labels"] = None
    file: Annotated[str | None, "JSON file that says who holds what and knows which labels, in place of a deal"] = None
    digest: Annotated[str | None, BY_A_RUN, "checksum of that file"] = None


@rules(
    digest=Only("method.name", OWN_FILE),
    label=(MayChange(finished=True, stays=True), NoResult()),
    color=(MayChange(finished=True, stays=True), NoResult()),
)
@dataclass(frozen=True)
class MethodChoice:
    """A method's name and its builder's keyword arguments."""

    name: Annotated[str, "method or FILE.py:FUNCTION, then its plug-ins"] = "sage"
    settings: tuple[tuple[str, Any], ...] = ()
    digest: Annotated[str | None, BY_A_RUN, "checksum of the function and what it uses"] = None
    label: Annotated[str | None, "its name in tables, pages and LaTeX, such as Ours"] = None
    color: Annotated[str | None, "its color in pictures and pages, such as #D55E00"] = None


@rules(digest=Only("model.name", OWN_FILE), start_partial=Only("model.start"), start_digest=Only("model.start"))
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
    digest: Annotated[str | None, BY_A_RUN, "checksum of the function and what it uses"] = None
    start: Annotated[
        str, "none, or first weights: a run folder, a .safetensors file or a state dict; {seed} in it is the run's"
    ] = "none"
    start_partial: Annotated[bool, "tensors that `start` lacks, or has in another shape, begin afresh"] = False
    start_digest: Annotated[str | None, BY_A_RUN, "checksum of the file that `start` names"] = None


@rules(
    rounds=MayChange(),
    patience=(MayChange(), CHOOSING),
    clients_per_round=Found("data.name", *CLIENT_FOLDERS),
    draw=Asks("partition.labels", *SOME),
    local_epochs=Unless("train.steps_per_round", why="it decides how long a client trains"),
    class_weights=Not("train.class_balance", why="both make up for rare classes, one by draws and one in the loss"),
    optimizer=(PaperRecipe(), USUAL_STEPS),
    lr=IDLE_STEPS,
    schedule=(PaperRecipe(), USUAL_STEPS),
    schedule_over=Asks("train.schedule", "cosine", "warmup-cosine", why="the rate is constant")
    | Asks("train.cooldown"),
    warmup=(
        Only("train.schedule", "warmup-cosine"),
        Required("train.schedule", "warmup-cosine", why="rounds in which the rate rises"),
    ),
    cooldown=(
        MayChange(),  # if finished rounds had the same rate with it
        PaperRecipe(),
        Only("train.schedule", "constant", why="only a constant rate can fall at the end"),
        USUAL_STEPS,
    ),
    momentum=IDLE_STEPS,
    beta2=Only("train.optimizer", "adamw"),
    nesterov=(Only("train.optimizer", "sgd"), Asks("train.momentum", why="there is no momentum"), USUAL_STEPS),
    keep_momentum=(PaperRecipe(), MOMENTUM, NOT_OF_AUTHORS, USUAL_STEPS),
    clip=USUAL_STEPS,
    weight_decay=IDLE_STEPS,
    decay_on=USUAL_STEPS,
    labeled_weight=(
        Not("protocol", "authors", why="the released code has a weight of its own"),
        Not("partition.labels", AT_SERVER, why="no client has labeled images"),
    ),
    labels_alone=(
        Asks("partition.labels", *SOME, why="no client knows every label of its images")
        | Asks("partition.file")
        | Asks("data.name", *CLIENT_FOLDERS),
        Not("partition.labels", AT_SERVER, why="no client knows every label of its images"),
    ),
)
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
    warmup: Annotated[int | None, Range(1, 999_999), "rounds in which the rate rises first"] = None
    cooldown: Annotated[
        int, Range(0, 999_999), "last rounds, in which the rate falls towards 0 in a straight line; 0: none"
    ] = 0
    momentum: Annotated[float, Range(0.0, 0.9999), "of sgd; beta 1 of adamw"] = 0.9
    beta2: Annotated[float, Range(0.0, 0.999999), "decay of the second moment"] = 0.999
    nesterov: Annotated[bool, "Nesterov's form of momentum"] = False
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


@rules(
    optimizer=PaperRecipe(),
    lr=STEPPING,
    momentum=STEPPING | Only("server.broadcast_momentum"),
    beta2=ADAM,
    epsilon=ADAM,
    broadcast_momentum=(
        PaperRecipe(),
        Asks("train.optimizer", "sgd", why="only sgd's momentum can be calculated from models"),
        Asks("train.momentum", why="clients have none to begin with"),
        Not("train.keep_momentum", why="clients begin with their own"),
        NOT_OF_AUTHORS,
        USUAL_STEPS,
    ),
    ship=(MayChange(finished=True), NoResult(), Asks("server.ema", why="there is no smoothed model")),
    epochs=LABELED_SERVER,
    batch=LABELED_SERVER,
    when=LABELED_SERVER,
    warmup=(LABELED_SERVER, Not("server.epochs", 0, why="the server does not train")),
    static_norm=(
        PaperRecipe(),
        Asks("partition.labels", AT_SERVER, of=("server",), why="the server has no images"),
        Asks("model.norm", "batch", why="other norms have no running statistics"),
        Not("privacy.aggregation", "secagg+", of=("sites",), why="the sums that sites send would not be masked"),
        Not("privacy.noise", of=("sites",), why=OTHER_NOISE),
        Not(ENGINE, *APP, of=("all",), why="images stay at their sites; use 'sites', which measures there"),
        Not(STEPS, "own", why="such a method keeps its model in parts"),
    ),
)
@dataclass(frozen=True)
class ServerChoice:
    """What becomes of the clients' mean, and what a server with labels does."""

    optimizer: Annotated[Literal["mean", "momentum", "adam"], "the mean itself, or a step towards it"] = "mean"
    lr: Annotated[float, Range(0.0, 1e6), "length of the step; adam wants about 0.01"] = 1.0
    momentum: Annotated[float, Range(0.0, 0.9999), "of the steps; beta 1 of adam; of what is broadcast"] = 0.9
    beta2: Annotated[float, Range(0.0, 0.999999), "decay of the second moment"] = 0.99
    epsilon: Annotated[float, Range(1e-9, 1e3), "added to the root of the second moment"] = 1e-3
    broadcast_momentum: Annotated[bool, "a momentum goes down with the model, and clients begin with it"] = False
    ema: Annotated[
        float | None,
        Range(0.0, 0.99999),
        "decay per round of a smoothed model, tested beside the plain one; unset: none",
    ] = None
    ship: Annotated[
        Literal["plain", "ema"], "which of the two is model.safetensors; each also has a file of its own"
    ] = "plain"
    epochs: Annotated[int | None, Range(0, 10_000), "its epochs over its labels in a round (default 5; 0: none)"] = None
    batch: Annotated[int | None, Range(1, 65_536), "labeled images per step (default 10; 250 of more than 1000)"] = None
    when: Annotated[Literal["after", "before"], "it trains after the mean, or before it sends the model"] = "after"
    warmup: Annotated[int, Range(0, 100_000), "how many times it takes its epochs before the first round"] = 0
    static_norm: Annotated[
        Literal["off", "server", "all", "sites"],
        "BatchNorm's running statistics are measured for each global model: on the server's images, on all images in"
        " one place, or at each site on its own",
    ] = "off"


@rules(
    MayChange(),
    NoResult(),
    devices=Only("compute.engine", "local", why="Flower uses all GPUs of its cluster"),
    lanes=Not("protocol", "authors", of=(SEVERAL,), why=AUTHORS_WAY),
    engine=Not("protocol", "authors", of=("flower",), why=AUTHORS_WAY),
    clients_per_gpu=Only("compute.engine", "flower"),
    ray_address=Only("compute.engine", "flower"),
)
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
    clients_per_gpu: Annotated[int | None, Range(1, 64), "clients at once on each GPU (default 1)"] = None
    ray_address: Annotated[str | None, "a running Ray cluster (default: one of this machine)"] = None


@rules(
    clip=(BY_FLOWER, Not("privacy.aggregation", "secagg+", why="it hides single uploads, which the server would clip")),
    noise=(BY_FLOWER, Asks("privacy.clip", why="noise is a multiple of it")),
    delta=Only("privacy.noise"),
    aggregation=BY_FLOWER,
    range=MASKED,
    max_weight=(MASKED, Required(ENGINE, OWN_IMAGES, why="the number of images of the largest site, or more")),
)
@dataclass(frozen=True)
class Privacy:
    """Central differential privacy or masked uploads, with engine flower and in deployments."""

    clip: Annotated[
        float | None, Range(1e-9, 1e9), "largest norm of a client's update (parameters only); unset: off"
    ] = None
    noise: Annotated[
        float, Range(0.0, 1e6), "noise on the mean, in multiples of clip / clients; the run says what it guarantees"
    ] = 0.0
    delta: Annotated[float, Range(1e-30, 0.5), "of the guarantee (epsilon, delta) that the run tells"] = 1e-5
    aggregation: Annotated[
        Literal["plain", "secagg+"], "secagg+ masks uploads, and the server opens their mean alone"
    ] = "plain"
    range: Annotated[float, Range(1e-3, 1e6), "absolute values of a model are below it; smaller makes finer steps"] = (
        DEFAULT_RANGE
    )
    max_weight: Annotated[
        int | None, Range(1, MANY), "no client's weight in the mean is larger; unset: the largest client's"
    ] = None


@rules(
    NoResult(),
    keep_best=CHOOSING,
    checkpoint_every=(MayChange(), Not("privacy.noise", why=OTHER_NOISE)),
    tensorboard=(MayChange(), LOGGER),
    wandb=(MayChange(), LOGGER),
)
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


@rules(
    protocol=(
        Not("partition.labels", AT_SERVER, of=("authors",), why="the released code knows no such server"),
        Not(ENGINE, *APP, of=("authors",), why=f"{AUTHORS_WAY}, which sites cannot"),
    )
)
@dataclass(frozen=True)
class Config:
    """Everything that decides a run."""

    seed: Annotated[Seed, "client choice, initial weights and data order"] = 7
    protocol: Annotated[Literal["clean", "authors"], "authors: the released code's accidents too"] = "clean"
    data: Data = Data()
    partition: PartitionChoice = PartitionChoice()
    method: MethodChoice = MethodChoice()
    model: Model = Model()
    train: Train = Train()
    server: ServerChoice = ServerChoice()
    compute: Compute = Compute()
    privacy: Privacy = Privacy()
    records: Records = Records()

    @cached_property
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
        part = self.partition
        return self.card.is_dealt and part.file is None and part.labels != "knowing-clients"

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
