"""The two sizes that are measured: the demo's, and the paper's on made-up images."""

from typing import Any

from ..config import Config, only_run, override, read_toml
from ..data.sources import Dataset, load
from ..errors import unknown

PAPER: dict[str, Any] = {
    "data": {"name": "synthetic", "labels_per_class": 50},
    "partition": {"kind": "paired-dirichlet", "alpha": 1.0},
    "train": {"rounds": 1},
}
SHAPES = ("demo", "paper")


def config_of(shape: str, method: str, settings: list[str]) -> Config:
    if shape not in SHAPES:
        raise unknown("--shape", shape, SHAPES)
    tables = PAPER if shape == "paper" else {k: v for k, v in read_toml("demo").items() if k != "grid"}
    return only_run(override(tables, [f"method.name={method}", *settings]))


def images_of(shape: str, config: Config) -> Dataset:
    if shape == "paper":
        return load("synthetic", num_classes=100, size=32, channels=3, train_per_class=500, test_per_class=100)
    return load(config.data.name)
