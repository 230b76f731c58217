"""The settings of a run: frozen dataclasses that declare types and ranges in fields, and in `rules` when they apply."""

from dataclasses import dataclass, fields, replace
from functools import cached_property
from pathlib import Path
from typing import Annotated, Any, Literal

from ..data.cards import CARDS, Card, Fit, card
from ..data.long_tail import class_sizes
from ..data.shares import HAVE_ALPHA, SOME
from ..system.user_code import is_users, user_file
from ..training.schedule import Schedule
from .rules import Asks, Found, Idle, MayChange, NoResult, Not, Only, PaperRecipe, Required, Such, Unless, Where, rules
from .schema import Filled, OneOf, Range

Device = Literal["auto", "cpu", "cuda"]
BY_A_RUN = Filled("by a run and checked by its repetition")
AT_SERVER = "server"
OF_CLIENTS = ("all-clients", *SOME)  # labels of clients
MANY = 100_000_000  # more clients or images than any federation has
NETWORKS = ("resnet8", "cnn", "resnet18", "wrn-28-2", "wrn-28-8", "simple-cnn", "efficientnet-lite0")
PRETRAINED = "efficientnet-lite0"  # with `model.start = "imagenet"`
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
OWN_FILE = Such("FILE.py:FUNCTION", lambda name: isinstance(name, str) and is_users(name))
SEVERAL = Such("2 or more", lambda number: isinstance(number, int) and number > 1)
FOLDERS = tuple(name for name, facts in CARDS.items() if facts.is_folder)
CLIENT_FOLDERS = tuple(name for name, facts in CARDS.items() if not facts.is_dealt)
DEALT_FOLDERS = tuple(name for name in FOLDERS if name not in CLIENT_FOLDERS)
FROM_HUB = tuple(name for name, facts in CARDS.items() if facts.hub_repo)
IN_FOLDERS = Where("data.name", *FOLDERS)
SIZED = Where("data.name", *FOLDERS, *(name for name, facts in CARDS.items() if facts.package))
NATURAL = tuple(name for name, facts in CARDS.items() if facts.origins)
FITTED = Where("data.name", *(name for name, facts in CARDS.items() if facts.file_size is not None))
OF_CLIENT_FOLDERS = Unless(
    "data.name", *CLIENT_FOLDERS, why="its folders assign images to clients and decide which are labeled"
)
DEALT = (
    OF_CLIENT_FOLDERS,
    Unless("partition.file", why="the file assigns images to clients and decides which are labeled"),
)
COUNTED = (
    *DEALT,
    Unless("partition.labels", "knowing-clients", why="these clients know the labels of all their images"),
)
ADAM, STEPPING = Only("server.optimizer", "adam"), Only("server.optimizer", "momentum", "adam")
MASKED = Only("privacy.aggregation", "secagg+")
ATTACKED = Only("attack.kind", "sign", "scale", "noise", "labels")
LABELED_SERVER = Only("partition.labels", AT_SERVER)
OTHER_NOISE = "a resumed run would repeat its last rounds with fresh noise, which the privacy budget does not count"
LOGGER = Not(ENGINE, *APP, why="rounds.jsonl has the same numbers")
FOR_REPORT = "without validation images, only the reported test images could choose a round"
A_PART = Such("head, norms, last-N or adapters", lambda what: what != "all")
ADAPTED = Only("model.trainable", "adapters")
CHOOSING = Asks("data.validation", why=FOR_REPORT) | Asks("data.test", "tuning", "final")
MOMENTUM = Asks("train.optimizer", "adamw", why="there is no momentum") | Asks("train.momentum")
AUTHORS_WAY = "it carries momentum from client to client"
NOT_OF_AUTHORS = Not("protocol", "authors", why=AUTHORS_WAY)


@rules(
    name=Not(ENGINE, *DEPLOYED, of=DEALT_FOLDERS, why="sites have their own images; use 'folder'"),
    dir=(
        MayChange(),
        NoResult(),
        Not(ENGINE, OWN_IMAGES, why="site.toml names a site's images, `test` in server.toml the server's"),
    ),
    label_fraction=(
        *COUNTED,
        Unless("data.name", *DEALT_FOLDERS, why="classes may differ in size; use data.labels_per_class"),
        Unless("data.labels_per_class", why="they exclude each other"),
    ),
    labels_per_class=(
        *COUNTED,
        Unless("data.label_fraction", why="they exclude each other"),
        Required("data.name", *DEALT_FOLDERS, why="how many images of each class are labeled"),
    ),
    imbalance=(*DEALT, PaperRecipe()),
    imbalance_unlabeled=(*COUNTED, PaperRecipe()),
    head=(*DEALT, PaperRecipe()),
    classes=(IN_FOLDERS, Required(ENGINE, OWN_IMAGES, why='a list that all sites agree on, e.g. ["cat", "dog"]')),
    size=SIZED,
    channels=IN_FOLDERS,
    mean=PaperRecipe(),
    std=PaperRecipe(),
    skip_bad=IN_FOLDERS,
    revision=(MayChange(), NoResult(), Where("data.name", *FROM_HUB)),
    test_share=Where("data.name", *DEALT_FOLDERS),
    fit=FITTED,
)
@dataclass(frozen=True)
class Data:
    """The images, and the number of labeled ones."""

    name: Annotated[str, OneOf(tuple(CARDS)), "dataset"] = "digits"
    dir: Annotated[str | None, "folder of the dataset's files (Parquet: default `FSSL_DATA`, else the hub)"] = None
    labels_per_class: Annotated[int | None, Range(1, MANY), "number of labeled images per class"] = None
    label_fraction: Annotated[float | None, Range(0.0, 1.0), "labeled share, counted as in the paper"] = None
    imbalance: Annotated[
        float | None,
        Range(1.0, 1e6),
        "long tail: labeled images of the first class (`labels_per_class`) over those of the last; unset: no tail",
    ] = None
    imbalance_unlabeled: Annotated[
        float | None, Range(-1e6, 1e6), "the same of unlabeled images; negative: reversed; default: as `imbalance`"
    ] = None
    head: Annotated[
        int | None, Range(1, MANY), "unlabeled images of the most common class (`knowing-clients`: all images)"
    ] = None
    test: Annotated[
        Literal["all", "tuning", "final"],
        "all test images, or one half: `tuning` to choose settings, `final` to report (then `tuning` is"
        " the validation part)",
    ] = "all"
    validation: Annotated[
        float | None,
        Range(0.001, 0.5),
        "share of the labeled images held out to choose a model by",
    ] = None
    flip: Annotated[bool, "flip views horizontally (the paper flips digits too)"] = True
    crop: Annotated[
        Literal["pad", "resize"],
        "cut views from images padded by an eighth (reflected), or enlarged by as much (bilinear)",
    ] = "pad"
    classes: Annotated[tuple[str, ...] | None, "class names in order; default: those found, sorted"] = None
    size: Annotated[int, Range(8, 256), "resize images to this many pixels per side"] = 32
    channels: Annotated[int, Range(1, 3), "3 for color, 1 for grey"] = 3
    mean: Annotated[
        tuple[float, ...] | None, "value subtracted from each channel; default: the dataset's, 0.5 for own images"
    ] = None
    std: Annotated[tuple[float, ...] | None, "divisor of each channel; default: the dataset's, 0.25 for own images"] = (
        None
    )
    skip_bad: Annotated[bool, "skip and list unusable files instead of rejecting the dataset"] = False
    test_share: Annotated[
        float | None,
        Range(0.001, 0.9),
        "share of images split off for testing if there are no test images; nested folders stay whole",
    ] = None
    digest: Annotated[str | None, BY_A_RUN, "checksum of the list of image files, or of images passed in Python"] = None
    revision: Annotated[
        str | None,
        Filled("by the first download, and downloaded again by a repetition"),
        "commit of the dataset's repository on the hub; default: the newest",
    ] = None
    fit: Annotated[Fit, "enlarge 28 pixels to 32 by stretching, or by a black margin"] = "resize"


@rules(
    kind=(*DEALT, Asks("data.name", *NATURAL, of=("natural",), why="its images have no natural sites")),
    alpha=(*DEALT, Where("partition.kind", *HAVE_ALPHA)),
    clients=Found("data.name", *CLIENT_FOLDERS) | Found("partition.file"),
    seed=DEALT,
    classes_per_client=(
        *DEALT,
        Only("partition.kind", "shards"),
        Required("partition.kind", "shards", why="its number of shards per client, such as 2"),
    ),
    labels=(
        Unless("data.name", *CLIENT_FOLDERS, of=OF_CLIENTS, why="its folders decide which images are labeled"),
        DEALT[1],
    ),
    labeled_clients=(*DEALT, Only("partition.labels", *SOME), Required("partition.labels", *SOME, why="their number")),
    first_clients=(*DEALT, Only("partition.labels", "knowing-clients")),
    file=(MayChange(), NoResult(), OF_CLIENT_FOLDERS, Not(ENGINE, *DEPLOYED, why="sites have no such file")),
    digest=Only("partition.file"),
)
@dataclass(frozen=True)
class PartitionChoice:
    """The division of images among clients."""

    kind: Annotated[
        Literal["paired-dirichlet", "dirichlet", "balanced-dirichlet", "shards", "iid", "natural"],
        "how images are divided among clients; `natural`: by origin (for `elpv`, the type of module)",
    ] = "paired-dirichlet"
    alpha: Annotated[float, Range(0.0, 1e6), "Dirichlet concentration: smaller is more skewed, 0 is an even split"] = (
        1.0
    )
    clients: Annotated[int, Range(1, MANY), "number of clients (`folder`: default all it has)"] = 20
    seed: Annotated[Seed, "seed of the partition; 0 is the paper's split"] = 0
    classes_per_client: Annotated[int | None, Range(1, 10_000), "shards per client, each of one class"] = None
    labels: Annotated[
        Literal["all-clients", "few-clients", "knowing-clients", "server"],
        "place of the labels: all clients, a few that hold only labeled images, a few that know all their"
        " labels, or only the server",
    ] = "all-clients"
    labeled_clients: Annotated[
        int | None, Range(1, MANY), "number of clients with labels; without `partition.labels` it implies `few-clients`"
    ] = None
    first_clients: Annotated[
        tuple[int, ...] | None, "drawn clients to renumber as the first, which have the labels"
    ] = None
    file: Annotated[
        str | None, "JSON file that assigns images and labels to clients, instead of a random partition"
    ] = None
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
    label: Annotated[str | None, "name in tables, pages and LaTeX, such as Ours"] = None
    color: Annotated[str | None, "color in pictures and pages, such as #D55E00"] = None


@rules(
    digest=Only("model.name", OWN_FILE),
    start=(
        Asks("model.name", PRETRAINED, of=("imagenet",), why="no weights can be installed for this network"),
        Asks("model.width", 4, of=("imagenet",), why="the installed weights have the published width"),
    ),
    start_partial=Only("model.start"),
    start_digest=Only("model.start"),
    trainable=PaperRecipe(),
    adapter_rank=ADAPTED,
    adapter_mean=ADAPTED,
    frozen_digest=(Only("model.trainable", A_PART), NoResult()),  # other settings decide these tensors
)
@dataclass(frozen=True)
class Model:
    """The network."""

    name: Annotated[
        str,
        OneOf(NETWORKS, own="network", prefix=("timm:", "python:"), also=("timm:NAME", "FILE.py:FUNCTION")),
        "architecture, timm:NAME or FILE.py:FUNCTION",
    ] = "resnet8"
    width: Annotated[int, Range(1, 64), "channels in quarters; 4 is the published network"] = 4
    norm: Annotated[Literal["batch", "group"], "`group`: GroupNorm with at most 32 channels per group"] = "batch"
    stem: Annotated[
        Literal["cifar", "imagenet"], "resnet18: a 3x3 convolution, or 7x7 and max pooling, both with stride 2"
    ] = "cifar"
    dropout: Annotated[
        float, Range(0.0, 0.99), "share of the last layer's inputs that a step sets to 0 (`efficientnet-lite0`, timm)"
    ] = 0.0
    drop_path: Annotated[
        float,
        Range(0.0, 0.99),
        "stochastic depth: chance that an image skips the last block, smaller for earlier blocks (same networks)",
    ] = 0.0
    digest: Annotated[str | None, BY_A_RUN, "checksum of the function and what it uses"] = None
    start: Annotated[
        str,
        "initial weights: none, `imagenet` (installed by `fssl[pretrained]`), a run folder, a .safetensors file or a"
        " state dict; {seed} stands for the run's seed",
    ] = "none"
    start_partial: Annotated[bool, "keep initial values for tensors that `start` lacks or has in another shape"] = False
    start_digest: Annotated[str | None, BY_A_RUN, "checksum of the file in `start`"] = None
    trainable: Annotated[
        str,
        OneOf(("all", "head", "norms", "adapters"), prefix=("last-",), also=("last-N",)),
        "what clients train and send: all, or the `head`, alone or with `norms`, blocks (`last-N`) or LoRA `adapters`",
    ] = "all"
    adapter_rank: Annotated[int, Range(1, 65_536), "rank of the adapters"] = 4
    adapter_mean: Annotated[
        Literal["factors", "freeze-a"], "average both factors, B and A; or fix A, so that the mean of BA is exact"
    ] = "factors"
    frozen_digest: Annotated[str | None, BY_A_RUN, "checksum of the tensors that clients do not train"] = None


@rules(
    rounds=MayChange(),
    patience=(MayChange(), CHOOSING),
    clients_per_round=Found("data.name", *CLIENT_FOLDERS),
    draw=Asks("partition.labels", *SOME),
    local_epochs=Unless("train.steps_per_round", why="it decides how long a client trains"),
    class_weights=Not("train.class_balance", why="both make up for rare classes, one by draws and one in the loss"),
    logit_adjustment=(
        Not("train.class_balance", why="draws by class change the shares that the prior stands for"),
        Not("train.class_weights", why="both make up for rare classes in the loss"),
    ),
    prior=(
        Only("train.logit_adjustment"),
        Not(ENGINE, OWN_IMAGES, of=("global",), why="counts of classes stay at their sites; use 'client'"),
    ),
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
        Not("protocol", "authors", why="the released code uses its own weight"),
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

    rounds: Annotated[int | None, Range(1, 999_999), "number of rounds; default: the paper's for the dataset"] = None
    patience: Annotated[
        int | None, Range(1, 999_999), "stop after this many rounds without a better validation result"
    ] = None
    clients_per_round: Annotated[int, Range(1, MANY), "clients drawn each round (`folder`: default all)"] = 8
    draw: Annotated[Literal["all", "labeled"], "draw from all clients, or only from those with labels"] = "all"
    local_epochs: Annotated[int, Range(1, 10_000), "local epochs per round"] = 5
    steps_per_round: Annotated[
        int | None, Range(1, 1_000_000), "fixed number of local steps per round, instead of epochs; 1 is FedSGD"
    ] = None
    batch: Annotated[int, Range(1, 65_536), "labeled images per step"] = 128
    class_balance: Annotated[
        float,
        Range(0.0, 1.0),
        "how evenly classes are drawn: 0 in proportion to their labeled images, 1 all equally often",
    ] = 0.0
    class_weights: Annotated[
        float,
        Range(0.0, 1.0),
        "how evenly classes count in the labeled loss: 0 in proportion to their images, 1 all equally",
    ] = 0.0
    logit_adjustment: Annotated[
        float, Range(0.0, 100.0), "factor of the log class shares added to labeled logits; 1: balanced softmax; 0: off"
    ] = 0.0
    prior: Annotated[
        Literal["client", "global"], "shares of classes among the client's own labels, or among those of all clients"
    ] = "client"
    unlabeled_ratio: Annotated[int, Range(1, 1000), "unlabeled images per labeled one in a step"] = 2
    optimizer: Annotated[Literal["sgd", "adamw"], "optimizer of clients"] = "sgd"
    lr: Annotated[float, Range(0.0), "learning rate before the schedule; for `adamw` start with 0.001"] = 0.1
    schedule: Annotated[
        Literal["constant", "cosine", "warmup-cosine"], "learning-rate schedule: constant, or falling to 0 at the end"
    ] = "constant"
    schedule_over: Annotated[Literal["rounds", "steps"], "update the rate every round, or at every step"] = "rounds"
    warmup: Annotated[int | None, Range(1, 999_999), "number of first rounds in which the rate rises"] = None
    cooldown: Annotated[int, Range(0, 999_999), "number of last rounds in which the rate falls linearly towards 0"] = 0
    momentum: Annotated[float, Range(0.0, 0.9999), "momentum of `sgd`, or β₁ of `adamw`"] = 0.9
    beta2: Annotated[float, Range(0.0, 0.999999), "β₂ of `adamw`"] = 0.999
    nesterov: Annotated[bool, "use Nesterov momentum"] = False
    keep_momentum: Annotated[bool, "keep each client's momentum between its rounds, instead of starting from zero"] = (
        False
    )
    clip: Annotated[float | None, Range(1e-9, 1e9), "largest norm of a step's gradient"] = None
    weight_decay: Annotated[float, Range(0.0, 1e3), "weight decay; decoupled for `adamw`"] = 1e-4
    decay_on: Annotated[
        Literal["all", "weights"], "decay all parameters, or all but biases and the scales and shifts of norms"
    ] = "all"
    labeled_weight: Annotated[
        int,
        Range(0, 1_000_000),
        "W: a client has weight pool + W · labeled in the mean, so a labeled image counts 1 + W times",
    ] = 0
    labels_alone: Annotated[bool, "clients that know all their labels train only on labeled images"] = False
    precision: Annotated[Literal["auto", "bf16", "fp32"], "`auto`: bf16 on a GPU, fp32 on a CPU"] = "auto"


@rules(
    aggregate=(
        PaperRecipe(),
        Not("privacy.aggregation", "secagg+", why="the server sees only the mean"),
        Not("privacy.clip", why="its guarantee covers only a mean"),
        Not("server.static_norm", "sites", why="the statistics that sites measure are averaged"),
    ),
    malicious=Only("server.aggregate", "trimmed", "krum"),
    optimizer=PaperRecipe(),
    lr=STEPPING,
    momentum=STEPPING | Only("server.broadcast_momentum"),
    beta2=ADAM,
    epsilon=ADAM,
    broadcast_momentum=(
        PaperRecipe(),
        Asks("train.optimizer", "sgd", why="only the momentum of sgd can be computed from models"),
        Asks("train.momentum", why="clients have no momentum"),
        Not("train.keep_momentum", why="clients keep their own momentum"),
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
        Not(ENGINE, *APP, of=("all",), why="images stay at their sites; use 'sites', which measures at each site"),
        Not(STEPS, "own", why="this method splits its model into parts"),
    ),
)
@dataclass(frozen=True)
class ServerChoice:
    """How uploads are combined, what becomes of that, and what a server with labels does."""

    aggregate: Annotated[
        Literal["mean", "median", "trimmed", "clipped", "krum"],
        "rule that combines the clients' uploads; all except `mean` tolerate some malicious clients",
    ] = "mean"
    malicious: Annotated[
        float, Range(0.0, 0.49), "assumed share of malicious uploads in a round; a larger one makes the rule less exact"
    ] = 0.2
    optimizer: Annotated[Literal["mean", "momentum", "adam"], "take the mean of uploads, or a step towards it"] = "mean"
    lr: Annotated[float, Range(0.0, 1e6), "size of that step; for `adam` start with 0.01"] = 1.0
    momentum: Annotated[float, Range(0.0, 0.9999), "decay of the server's or the broadcast momentum; β₁ of `adam`"] = (
        0.9
    )
    beta2: Annotated[float, Range(0.0, 0.999999), "β₂ of `adam`"] = 0.99
    epsilon: Annotated[float, Range(1e-9, 1e3), "ε of `adam`, added to the root of the second moment"] = 1e-3
    broadcast_momentum: Annotated[bool, "send a momentum with the model, which clients start with"] = False
    ema: Annotated[
        float | None,
        Range(0.0, 0.99999),
        "decay per round of a smoothed model, tested in addition to the plain one",
    ] = None
    ship: Annotated[Literal["plain", "ema"], "model saved as model.safetensors; both also have their own files"] = (
        "plain"
    )
    epochs: Annotated[
        int | None, Range(0, 10_000), "the server's epochs over its labels per round; default 5, 0 for none"
    ] = None
    batch: Annotated[
        int | None, Range(1, 65_536), "the server's images per step; default 10, or 250 for more than 1000 labels"
    ] = None
    when: Annotated[Literal["after", "before"], "the server trains after averaging, or before sending the model"] = (
        "after"
    )
    warmup: Annotated[int, Range(0, 100_000), "how often the server repeats its epochs before the first round"] = 0
    static_norm: Annotated[
        Literal["off", "server", "all", "sites"],
        "measure BatchNorm's running statistics for each global model: on the server's images, on all"
        " images in one place, or at each site",
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
    """Devices and speed; results change only by rounding."""

    device: Annotated[Device, "`auto`: a GPU if there is one"] = "auto"
    devices: Annotated[
        tuple[str, ...] | None, 'devices that share a round, such as ["cuda:0", "cuda:1"]; default: all GPUs'
    ] = None
    compile: Annotated[Literal["auto", "on", "off"], "compile steps; `auto`: only on a GPU"] = "auto"
    kernels: Annotated[
        Literal["on", "off"],
        "use fssl's kernels on a Hopper GPU, for norms in bf16 and for the server's tuning",
    ] = "on"
    lanes: Annotated[
        int | None, Range(1, 16), "clients trained at once per device; default: 4 on a GPU, one per core on a CPU"
    ] = None
    processes: Annotated[
        Literal["auto", "on", "off"],
        "run a CPU's lanes as processes instead of threads; `auto`: in runs of 300 steps or more",
    ] = "auto"
    threads: Annotated[int | None, Range(1, 1024), "CPU threads per client; default 1"] = None
    engine: Annotated[Literal["local", "flower"], "`flower`: clients are actors of a Ray cluster"] = "local"
    clients_per_gpu: Annotated[int | None, Range(1, 64), "clients trained at once per GPU; default 1"] = None
    ray_address: Annotated[str | None, "address of a running Ray cluster; default: start one on this machine"] = None


@rules(
    clip=(
        BY_FLOWER,
        Not("privacy.aggregation", "secagg+", why="it hides single uploads, so the server cannot clip them"),
    ),
    noise=(BY_FLOWER, Asks("privacy.clip", why="noise is a multiple of it")),
    delta=Only("privacy.noise"),
    aggregation=BY_FLOWER,
    range=MASKED,
    max_weight=(MASKED, Required(ENGINE, OWN_IMAGES, why="the number of images of the largest site, or more")),
)
@dataclass(frozen=True)
class Privacy:
    """Central differential privacy or masked uploads, with engine flower and in deployments."""

    clip: Annotated[float | None, Range(1e-9, 1e9), "largest norm of a client's update (parameters only)"] = None
    noise: Annotated[
        float, Range(0.0, 1e6), "noise on the mean, in multiples of clip / clients; the run reports its guarantee"
    ] = 0.0
    delta: Annotated[float, Range(1e-30, 0.5), "δ of the reported guarantee (ε, δ)"] = 1e-5
    aggregation: Annotated[
        Literal["plain", "secagg+"], "`secagg+`: mask uploads, so that the server sees only their mean"
    ] = "plain"
    range: Annotated[
        float, Range(1e-3, 1e6), "bound on the absolute values of a model; a smaller bound gives finer steps"
    ] = DEFAULT_RANGE
    max_weight: Annotated[
        int | None, Range(1, MANY), "largest weight of a client in the mean; default: the largest client's"
    ] = None


@rules(
    kind=Not(ENGINE, *DEPLOYED, why="it is for simulations"),
    attackers=ATTACKED,
    factor=Only("attack.kind", "sign", "scale", "noise"),
)
@dataclass(frozen=True)
class Attack:
    """Simulated malicious clients, to see what `server.aggregate` withstands."""

    kind: Annotated[
        Literal["none", "sign", "scale", "noise", "labels"],
        "sign: -factor times the honest update; scale: factor times; noise: added, factor times the update's size;"
        " labels: trained on reversed labels",
    ] = "none"
    attackers: Annotated[int, Range(1, MANY), "number of malicious clients, the first ones"] = 1
    factor: Annotated[float, Range(0.0, 1e6), "size of the attack"] = 10.0


@rules(
    NoResult(),
    keep_best=CHOOSING,
    sites_every=(
        MayChange(),
        Not("privacy.aggregation", "secagg+", why="these sums would not be masked"),
    ),
    checkpoint_every=(MayChange(), Not("privacy.noise", why=OTHER_NOISE)),
    tensorboard=(MayChange(), LOGGER),
    wandb=(MayChange(), LOGGER),
)
@dataclass(frozen=True)
class Records:
    """The records of a run."""

    probes: Annotated[Literal["all", "losses"], "`all`: also the measurements for the paper's figures"] = "all"
    metrics: Annotated[Headline, "test measure whose mean over the last ten rounds is the result"] = "accuracy"
    keep_best: Annotated[bool, "also keep the model with the best validation result"] = False
    sites_every: Annotated[
        int | None,
        Range(1, 999_999),
        "rounds between tests of the model on each client's own test and validation images; unset: none",
    ] = None
    checkpoint_every: Annotated[int, Range(1, 999_999), "rounds between checkpoints"] = 1
    tensorboard: Annotated[bool, "also write TensorBoard events"] = False
    wandb: Annotated[Literal["off", "offline", "online"], "also log to Weights & Biases"] = "off"


@rules(
    protocol=(
        Not("partition.labels", AT_SERVER, of=("authors",), why="the released code has no server with labels"),
        Not(ENGINE, *APP, of=("authors",), why=f"{AUTHORS_WAY}, which sites cannot do"),
    )
)
@dataclass(frozen=True)
class Config:
    """All settings of a run."""

    seed: Annotated[Seed, "client choice, initial weights and data order"] = 7
    protocol: Annotated[Literal["clean", "authors"], "`authors`: also reproduce the released code's accidents"] = (
        "clean"
    )
    data: Data = Data()
    partition: PartitionChoice = PartitionChoice()
    method: MethodChoice = MethodChoice()
    model: Model = Model()
    train: Train = Train()
    server: ServerChoice = ServerChoice()
    compute: Compute = Compute()
    privacy: Privacy = Privacy()
    attack: Attack = Attack()
    records: Records = Records()

    @cached_property
    def card(self) -> Card:
        data = self.data
        facts = replace(card(data.name), fit=data.fit)
        if facts.package:
            facts = replace(facts, size=data.size)
        if not facts.is_folder:
            facts = facts.normalized_by(data.mean, data.std)
        return replace(facts, num_classes=len(self.data.classes)) if self.data.classes else facts

    @property
    def own_files(self) -> list[Path]:
        """Return the user's files that a run needs in addition to its settings."""
        return [file for file in map(user_file, (self.method.name, self.model.name)) if file]

    @property
    def picks_labels(self) -> bool:
        """Return whether a number of images of each class is labeled, while the partition only decides where."""
        part = self.partition
        return self.card.is_dealt and part.file is None and part.labels != "knowing-clients"

    @property
    def labels_per_class(self) -> int:
        if self.data.labels_per_class is not None:
            return self.data.labels_per_class
        fraction = 0.1 if self.data.label_fraction is None else self.data.label_fraction
        return max(1, round(fraction * self.card.per_class_base))

    @property
    def has_tail(self) -> bool:
        """Whether classes are to have unequal numbers of images."""
        return self.data.imbalance is not None or self.data.imbalance_unlabeled is not None

    @property
    def labeled_sizes(self) -> list[int]:
        """Labeled images of each class, where their number is picked."""
        return class_sizes(self.labels_per_class, self.data.imbalance or 1.0, self.card.num_classes)

    @property
    def other_sizes(self) -> list[int] | None:
        """Unlabeled images of each class, or all where some clients know their labels; None: as many as there are."""
        data = self.data
        ratio = data.imbalance if data.imbalance_unlabeled is None else data.imbalance_unlabeled
        if ratio is None and data.head is None:
            return None
        most = self.card.per_class_base - (self.labels_per_class if self.picks_labels else 0)
        return class_sizes(data.head or most, ratio or 1.0, self.card.num_classes)

    @property
    def has_server_labels(self) -> bool:
        """Return whether only the server has labels."""
        return self.partition.labels == AT_SERVER and self.partition.file is None

    @property
    def drawable(self) -> int:
        """Return how many clients can be drawn: all, or the first ones, which have labels."""
        part = self.partition
        return (part.labeled_clients or 0) if self.train.draw == "labeled" else part.clients

    @property
    def server_epochs(self) -> int:
        """Return the server's epochs over its labeled images in a round."""
        given = 5 if self.server.epochs is None else self.server.epochs
        return given if self.has_server_labels else 0

    @property
    def server_batch(self) -> int:
        """Return the labeled images in a step of the server."""
        return self.server.batch or usual_batch(sum(self.labeled_sizes))

    @property
    def chosen_by(self) -> Literal["validation", "test"] | None:
        """Return the images to choose a model by; None if only the reported test images remain."""
        if self.data.validation is not None or self.data.test == "final":
            return "validation"
        return "test" if self.data.test == "tuning" else None

    @property
    def rounds(self) -> int:
        return self.train.rounds or self.card.rounds

    @property
    def schedule(self) -> Schedule:
        """Return the schedule of the learning rate."""
        train = self.train
        return Schedule(train.schedule, train.schedule_over, self.rounds, train.warmup or 0, train.cooldown)


def usual_batch(labels: int) -> int:
    """Return the images in a step of a server with this number of labels, as in SemiFL."""
    return 250 if labels > 1000 else 10


SECTIONS = tuple(f.name for f in fields(Config) if f.name not in ("seed", "protocol"))
METHOD_KEYS = tuple(f.name for f in fields(MethodChoice) if f.name != "settings")  # no builder may have one of these
