"""Facts about each dataset that are known before a file is opened: sizes, normalization, origin."""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Literal, NamedTuple

from ..errors import UserError, unknown

Fit = Literal["resize", "pad"]
UNKNOWN = -1  # the label of an image without one
CIFAR10_MEAN = (0.4914, 0.4822, 0.4465)
CIFAR10_STD = (0.2471, 0.2435, 0.2616)


@dataclass(frozen=True)
class Card:
    """Fixed facts about one dataset. `per_class_base` is what "100 % labels" counts per class."""

    name: str
    title: str
    num_train: int
    num_test: int
    per_class_base: int
    rounds: int
    num_classes: int = 10
    size: int = 32  # pixels, both ways
    channels: int = 3
    train_mean: tuple[float, ...] = CIFAR10_MEAN
    train_std: tuple[float, ...] = CIFAR10_STD
    test_mean: tuple[float, ...] = CIFAR10_MEAN  # of the released code; evaluation may prefer train_*
    test_std: tuple[float, ...] = CIFAR10_STD
    classes: tuple[str, ...] = ()  # names, if the dataset has them
    hub_repo: str | None = None
    hub_config: str | None = None  # also the folder inside the repository; None means `data`
    image_column: str = "image"
    label_column: str = "label"
    file_size: int | None = None  # pixels of the images in its files, if they are resized to `size`
    fit: Fit = "resize"  # by stretching, or with a black margin
    package: str | None = None  # the Python package that carries the images, in a larger size: `data.size` decides
    origins: tuple[str, ...] = ()  # kinds of natural sites, if images have one
    num_unknown: int = 0  # training images without a label, which are always unlabeled
    is_folder: bool = False  # a user's folder: the number and size of images and classes are known once it is read
    is_dealt: bool = True  # whether [partition] deals it to clients; otherwise it assigns images itself

    def normalized(self, mean: tuple[float, ...], std: tuple[float, ...]) -> "Card":
        """Return the card with this normalization, in training and test."""
        return replace(self, train_mean=mean, train_std=std, test_mean=mean, test_std=std)

    def normalized_by(self, mean: tuple[float, ...] | None, std: tuple[float, ...] | None) -> "Card":
        """Return the card with the given numbers in training and test; None keeps the card's."""
        return replace(
            self,
            train_mean=mean or self.train_mean,
            train_std=std or self.train_std,
            test_mean=mean or self.test_mean,
            test_std=std or self.test_std,
        )

    @property
    def class_names(self) -> tuple[str, ...]:
        """Return the names of the classes, or numbers if the dataset has no names."""
        return self.classes or tuple(map(str, range(self.num_classes)))

    @property
    def is_embedded(self) -> bool:
        """Whether the dataset needs no files."""
        return self.hub_repo is None and self.package is None and self.num_train > 0

    @property
    def knows_truth(self) -> bool:
        """Whether the class of every training image is known, also where a client does not know it."""
        return self.is_dealt and not self.num_unknown

    @property
    def num_groups(self) -> int:
        """The groups that a partition deals one by one: classes, and the images without a label."""
        return self.num_classes + (self.num_unknown > 0)


_ALL = (
    Card(
        name="digits",
        title="8x8 grey handwritten digits, embedded (UCI; Alpaydin and Kaynak, 1998)",
        size=8,
        channels=1,
        num_train=1437,
        num_test=360,
        per_class_base=138,
        rounds=30,
    ).normalized((0.305,), (0.376,)),
    Card(
        name="synthetic",
        title="generated patterns of any size, for tests and benchmarks",
        size=16,
        num_train=1000,
        num_test=500,
        per_class_base=100,
        rounds=30,
    ).normalized((0.5, 0.5, 0.5), (0.25, 0.25, 0.25)),
    # The released code normalizes every training view with CIFAR-10's numbers, for any dataset,
    # and test images with the dataset's own: on CIFAR-10 the same mean but a smaller std.
    Card(
        name="cifar10",
        title="CIFAR-10: 32x32 photographs of 10 kinds of things",
        num_train=50_000,
        num_test=10_000,
        per_class_base=5000,
        rounds=300,
        test_std=(0.2023, 0.1994, 0.2010),
        hub_repo="uoft-cs/cifar10",
        hub_config="plain_text",
        image_column="img",
    ),
    Card(
        name="cifar100",
        title="CIFAR-100: 32x32 photographs of 100 kinds of things",
        num_classes=100,
        num_train=50_000,
        num_test=10_000,
        per_class_base=500,
        rounds=500,
        test_mean=(0.5071, 0.4867, 0.4408),
        test_std=(0.2675, 0.2565, 0.2761),
        hub_repo="uoft-cs/cifar100",
        hub_config="cifar100",
        image_column="img",
        label_column="fine_label",
    ),
    Card(
        name="svhn",
        title="SVHN: 32x32 house-number digits, cropped (train and test, without extra)",
        num_train=73_257,
        num_test=26_032,
        per_class_base=4600,  # "10 %" is 460 a class, about a tenth of the rarest class (4,659)
        rounds=150,
        test_mean=(0.4377, 0.4438, 0.4728),
        test_std=(0.1980, 0.2010, 0.1970),
        hub_repo="ufldl-stanford/svhn",
        hub_config="cropped_digits",
    ),
    Card(
        name="cinic10",
        title="CINIC-10: CIFAR-10's classes with ImageNet pictures added (without valid)",
        num_train=90_000,
        num_test=90_000,
        per_class_base=9000,
        rounds=400,
        test_mean=(0.4789, 0.4723, 0.4305),
        test_std=(0.2421, 0.2383, 0.2587),
        hub_repo="flwrlabs/cinic10",
    ),
    Card(
        name="fmnist",
        title="Fashion-MNIST: 28x28 grey pictures of 10 kinds of clothes, made 32x32",
        channels=1,
        num_train=60_000,
        num_test=10_000,
        per_class_base=6000,
        rounds=150,
        classes=(
            *("T-shirt/top", "Trouser", "Pullover", "Dress", "Coat"),
            *("Sandal", "Shirt", "Sneaker", "Bag", "Ankle boot"),
        ),
        hub_repo="zalando-datasets/fashion_mnist",
        hub_config="fashion_mnist",
        file_size=28,
    ).normalized((0.2860,), (0.3530,)),
    Card(
        name="elpv",
        title="ELPV: photographs of solar cells, good or defective (pip install elpv-dataset; CC BY-NC-SA 4.0)",
        num_classes=2,
        channels=1,
        num_train=2069,
        num_test=555,
        per_class_base=537,  # the training images of the rarer class
        rounds=100,
        classes=("good", "defective"),
        package="elpv-dataset",
        origins=("mono", "poly"),
        num_unknown=401,
    ).normalized((0.597,), (0.159,)),
    (
        folder := Card(
            name="folder",
            title="your own images, by client and class: see `fssl docs own-images`",
            num_classes=0,
            num_train=0,
            num_test=0,
            per_class_base=0,
            rounds=100,
            is_folder=True,
            is_dealt=False,
        ).normalized((0.5, 0.5, 0.5), (0.25, 0.25, 0.25))
    ),
    replace(
        folder,
        name="imagefolder",
        title="your own labeled images, train/CLASS/* and test/CLASS/*, dealt out to clients",
        is_dealt=True,
    ),
)

CARDS: dict[str, Card] = {each.name: each for each in _ALL}


def card(name: str) -> Card:
    """Return the card of a dataset by name."""
    if name not in CARDS:
        raise unknown("dataset", name, CARDS)
    return CARDS[name]


class Agreed(NamedTuple):
    """The settings that all sites share, independent of their images."""

    classes: tuple[str, ...]
    size: int = 32
    channels: int = 3
    mean: tuple[float, ...] | None = None
    std: tuple[float, ...] | None = None
    dataset: str = "folder"  # or imagefolder
    skip_bad: bool = False  # skip unusable files instead of rejecting the folder
    test_share: float | None = None  # of imagefolder: the share of each class's images that is split off for the test
    at_server: bool = False  # the server has the labels, and clients have none

    def card(self, num_train: int = 0, num_test: int = 0) -> Card:
        mean, std = self.mean or (0.5,) * self.channels, self.std or (0.25,) * self.channels
        return replace(
            CARDS[self.dataset],
            num_classes=len(self.classes),
            classes=self.classes,
            size=self.size,
            channels=self.channels,
            num_train=num_train,
            num_test=num_test,
        ).normalized(mean, std)


def check_class_names(key: str, names: Sequence[object]) -> None:
    """Reject class names that a record could not distinguish, or show."""
    are_names = all(isinstance(name, str) and name and name.isprintable() for name in names)
    if len(names) < 2 or len(set(names)) < len(names) or not are_names:
        raise UserError(f"{key} = {[*names]}: expected at least two different names")
