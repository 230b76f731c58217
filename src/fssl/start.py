"""A warm start: take the first weights from a run or a file instead of from the seed."""

from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any, NamedTuple
from zipfile import ZIP_STORED, ZipFile, is_zipfile

import torch
from torch import Tensor

from .config import Config
from .data.cards import Card
from .errors import UserError, error_text, shortened
from .models import Net
from .records.layout import IMAGENET, NO_START, check_place, start_place
from .records.saved_models import Models
from .records.store import RunFolder
from .records.tensors import unseal
from .system.files import check_unchanged, short_sum
from .types import State, Weights

WRAPPERS = ("state_dict", "model")  # keys under which training scripts save the weights next to other state
SAVED_BY_TORCH = (b"PK", b"\x80")  # the first bytes of a zip file or, in early versions, a pickle
WRAPPED = "module."  # the prefix of all names in a network trained on several GPUs (DataParallel, DDP)
SHOWN_TENSORS = 3  # of those that do not fit
COUNTER = "num_batches_tracked"  # of BatchNorm; unused here


class StartFile(NamedTuple):
    """The content of a file: tensors by name and, for a run's model, facts about its training."""

    tensors: State
    facts: dict[str, Any]


class Fitted(NamedTuple):
    """First weights, and notes about them for the user, a line each."""

    weights: Weights
    notes: list[str]


def without_start(config: Config) -> Config:
    """Return the settings for clients, which get the weights that train from the server; the others are in the file."""
    place = start_place(config)
    if config.model.trainable != "all" and place is not None:
        start = IMAGENET if config.model.start == IMAGENET else str(file_of(place).resolve())
        return replace(config, model=replace(config.model, start=start))
    return replace(config, model=replace(config.model, start=NO_START, start_partial=False, start_digest=None))


def with_absolute_start(config: Config) -> Config:
    """Return the settings for a process in another folder."""
    place = start_place(config)
    if place is None or config.model.start == IMAGENET:
        return config
    return replace(config, model=replace(config.model, start=str(place.resolve())))


def start_digest(config: Config) -> str | None:
    """Return the checksum of the start weights: the recorded one if there is one, since a resumed run needs no file."""
    place, recorded = start_place(config), config.model.start_digest
    return recorded if recorded or place is None else digest_at(place)


def file_of(place: Path) -> Path:
    """Return the file with the weights; raise UserError if there is none."""
    try:
        if place.is_dir():
            folder = RunFolder(place)
            Models(folder).check_finished(f"model.start = '{place}': ")
            return folder.model_file
        check_place(place)
    except OSError as error:
        raise UserError(f"model.start = '{place}': {error.strerror}") from None
    return place


def digest_at(place: Path) -> str:
    """Return the checksum of the file with the weights."""
    file = file_of(place)
    try:
        return short_sum(file.read_bytes())
    except OSError as error:
        raise UserError(f"model.start = '{file}' cannot be read: {error.strerror}") from None


def first_weights(config: Config, card: Card, net: Net) -> Fitted:
    """Return the first weights of a run: the network's own, or those that `model.start` names.

    Raises:
        UserError: The file is gone, damaged, has changed since it was recorded, or does not fit the network.
    """
    place, model = start_place(config), config.model
    if place is None:
        return Fitted(net.first, [])
    check_unchanged(
        f"model.start = '{place}'", digest_at(place), "model.start_digest", model.start_digest, "start from"
    )
    start, shown = read_weights(place), str(place)
    if model.start == IMAGENET:
        start, shown = StartFile(as_pretrained(start.tensors, net), imagenet_facts(net.channels)), IMAGENET
    fitted = fit_weights(net, start.tensors, shown, model.start_partial)
    return fitted._replace(notes=[*fitted.notes, *training_differences(start.facts, card, shown)])


def as_pretrained(published: State, net: Net) -> State:
    """Return published weights of a classifier of color images for this network, with its own new head.

    The first convolution of gray images sums its weights over the colors: it computes what it would for three equal
    channels.
    """
    named = {net.our_name(name): t for name, t in published.items()}
    own = net.first.params
    if net.channels == 1:
        first = next(name for name in own if name in named)
        named[first] = named[first].sum(1, keepdim=True)
    return {**named, **{name: t for name, t in own.items() if name.startswith("head.")}}


def imagenet_facts(channels: int) -> dict[str, Any]:
    """Return the normalization that the weights for ImageNet were trained with."""
    return {"mean": [0.498] * channels, "std": [0.502] * channels}  # (pixel - 127) / 128


def read_weights(place: Path) -> StartFile:
    """Return the weights in a run folder or a file, by the names of a network's tensors."""
    facts: dict[str, Any] | None = None
    if place.is_dir():
        tensors, facts = Models(RunFolder(place)).read()
    elif place.suffix == ".safetensors":
        try:
            tensors, facts = unseal(place)
        except ValueError as error:
            raise UserError(f"model.start = '{place}' is damaged ({error})") from None
    elif place.suffix in (".pt", ".pth", ".bin"):
        tensors = read_state_dict(place)
    else:
        raise UserError(
            f"model.start = '{place}': expected a run folder, a .safetensors file or a state dict (.pt, .pth, .bin)"
        )
    prefixes = tuple(f"{kind}." for kind in Weights._fields)
    if all(name.startswith(prefixes) for name in tensors):  # the names that a run writes
        tensors = {name.partition(".")[2]: t for name, t in tensors.items()}
    return StartFile({name: t for name, t in tensors.items() if not name.endswith(COUNTER)}, facts or {})


def read_state_dict(file: Path) -> State:
    """Return the tensors of a file that torch saved, without executing anything in it."""
    with file.open("rb") as opened:
        if not opened.read(2).startswith(SAVED_BY_TORCH):
            raise UserError(f"model.start = '{file}' was not saved by torch; expected a state dict")
    try:
        if is_compressed(file):  # there is no limit to its size in memory
            raise UserError(
                f"model.start = '{file}' is compressed, unlike files that torch saves; save the state dict again"
            )
        found = torch.load(file, map_location="cpu", weights_only=True)
    except UserError:
        raise
    except Exception as error:  # of many kinds, depending on the damage
        reason = error_text(error).partition(". ")[0]
        raise UserError(f"model.start = '{file}' cannot be read as a state dict ({reason})") from None
    inner = [found[key] for key in WRAPPERS if isinstance(found, Mapping) and isinstance(found.get(key), Mapping)]
    tensors = dict(inner[0] if inner else found) if isinstance(found, Mapping) else {}
    if not tensors or not all(isinstance(k, str) and is_dense_tensor(t) for k, t in tensors.items()):
        raise UserError(f"model.start = '{file}' is not a state dict: expected names of dense tensors")
    return {name: t.detach() for name, t in tensors.items()}  # BatchNorm rejects statistics that require gradients


def is_compressed(file: Path) -> bool:
    if not is_zipfile(file):
        return False
    with ZipFile(file) as archive:
        return any(entry.compress_type != ZIP_STORED for entry in archive.infolist())


def is_dense_tensor(value: object) -> bool:
    """Return whether the value is a tensor with all its numbers: neither sparse nor only a shape (`meta`)."""
    return isinstance(value, Tensor) and value.layout is torch.strided and not value.is_meta


def fit_weights(net: Net, given: State, place: str, may_be_partial: bool) -> Fitted:
    """Return the network's first weights, replaced by the given ones.

    Reject tensors that do not fit; with `may_be_partial`, initialize them instead.
    """
    own = {**net.first.params, **net.first.buffers}
    if all(name.startswith(WRAPPED) and name not in own for name in given):
        given = {name.removeprefix(WRAPPED): t for name, t in given.items()}
    given = {name if name in own else net.our_name(name): t for name, t in given.items()}
    usable = {k: given[k].to(t.dtype) for k, t in own.items() if k in given and alike(given[k], t)}
    missing = [f"{k} ({mismatch(given.get(k), t)})" for k, t in own.items() if k not in usable]
    unknown = [f"{k} (not in the network)" for k in sorted(given.keys() - own.keys())]
    start = f"model.start = '{place}' does not fit network '{net.name}'"
    if not usable:
        raise UserError(f"{start}: no tensor can be used: {shortened(missing, SHOWN_TENSORS)}")
    if (missing or unknown) and not may_be_partial:
        raise UserError(
            f"{start}: {shortened([*missing, *unknown], SHOWN_TENSORS)};"
            " use model.start_partial = true to load the tensors that fit"
        )
    if strange := next((k for k, t in usable.items() if not torch.isfinite(t).all()), None):
        raise UserError(f"model.start = '{place}': {strange} has values that are not finite")
    weights = Weights(*({k: usable.get(k, t) for k, t in tree.items()} for tree in net.first))
    notes = [f"model.start = '{place}': newly initialized: {shortened(missing, SHOWN_TENSORS)}"] * bool(missing)
    notes += [f"model.start = '{place}': not used: {shortened(unknown, SHOWN_TENSORS)}"] * bool(unknown)
    return Fitted(weights, notes)


def mismatch(given: Tensor | None, own: Tensor) -> str:
    """Return the reason why a tensor cannot be used."""
    if given is None:
        return "missing"
    return f"{list(given.shape)}, expected {list(own.shape)}" if given.shape != own.shape else str(given.dtype)


def alike(given: Tensor, own: Tensor) -> bool:
    return given.shape == own.shape and given.is_floating_point()


def training_differences(facts: Mapping[str, Any], card: Card, place: str) -> list[str]:
    """Return notes on the differences between a model's training and this run."""
    mean, std, classes = (facts.get(key) for key in ("mean", "std", "classes"))
    norms = [(card.train_mean, card.train_std), (card.test_mean, card.test_std)]
    notes = []
    if mean and std and not any([mean, std] == [list(m), list(s)] for m, s in norms):
        ours = f"mean {list(card.train_mean)} and std {list(card.train_std)}"
        notes.append(
            f"model.start = '{place}' was trained with mean {mean} and std {std}, but this run normalizes with {ours}"
        )
    if isinstance(classes, list) and len(classes) == card.num_classes and classes != list(card.class_names):
        i = next(i for i, (its, ours) in enumerate(zip(classes, card.class_names, strict=True)) if its != ours)
        notes.append(f"model.start = '{place}': its class {i} is '{classes[i]}', but here '{card.class_names[i]}'")
    return notes
