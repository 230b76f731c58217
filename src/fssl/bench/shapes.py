"""The two measured sizes: the demo's, and that of CIFAR-100 in the paper, on synthetic images."""

from typing import Any

from ..config import Config, only_run, override, read_toml
from ..core.images import load_dataset
from ..data.sources import Dataset, load
from ..errors import UserError, unknown

PAPER: dict[str, Any] = {
    "data": {"name": "cifar100", "labels_per_class": 50},
    "partition": {"kind": "paired-dirichlet", "alpha": 1.0},
    "train": {"rounds": 1},
}
SHAPES = ("demo", "paper")


def config_of(shape: str, method: str, settings: list[str]) -> Config:
    if shape not in SHAPES:
        raise unknown("--shape", shape, SHAPES)
    if shape == "paper" and (given := [s for s in settings if s.startswith("data.")]):
        raise UserError(
            f"--set {given[0]}: no effect with --shape paper, which has its own images; remove it, or use --shape demo"
        )
    tables = PAPER if shape == "paper" else {k: v for k, v in read_toml("demo").items() if k != "grid"}
    return only_run(override(tables, [f"method.name={method}", *settings]))


def images_of(shape: str, config: Config) -> Dataset:
    if shape == "paper":
        return load("synthetic", num_classes=100, size=32, channels=3, train_per_class=500, test_per_class=100)
    return load_dataset(config)
