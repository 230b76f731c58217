"""A made-up package of the extra `pretrained`."""

from pathlib import Path

import torch

from fssl.models import build_net
from fssl.records.layout import IMAGENET_FILE, IMAGENET_PACKAGE
from fssl.types import State, Weights


def published_name(ours: str) -> str:
    """The name of a tensor in the published file."""
    if not ours.startswith("blocks."):
        for layer, theirs in {"stem.conv": "_conv_stem", "stem.bn": "_bn0", "last.conv": "_conv_head"}.items():
            ours = ours.replace(layer, theirs)
        return ours.replace("last.bn", "_bn1").replace("head.linear", "_fc")
    _, number, part, layer, last = ours.split(".")
    norm = {"expand": "_bn0", "depthwise": "_bn1", "project": "_bn2"}[part]
    return f"_blocks.{number}.{f'_{part}_conv' if layer == 'conv' else norm}.{last}"


def as_published(weights: Weights) -> State:
    """The file's content for these weights."""
    named = {published_name(name): t for tree in weights for name, t in tree.items()}
    return {**named, "_bn0.num_batches_tracked": torch.tensor(3)}


def install_weights(site: Path) -> Weights:
    """Write a package into a folder for packages; its weights are random, and returned."""
    file = site / IMAGENET_PACKAGE / IMAGENET_FILE
    file.parent.mkdir(parents=True)
    (file.parents[1] / "__init__.py").write_text("raise ImportError('read as files, never imported')")
    weights = build_net("efficientnet-lite0", 3, 1000, 4, seed=5).first
    torch.save(as_published(weights), file)
    return weights
