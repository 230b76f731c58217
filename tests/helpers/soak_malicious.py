"""A malicious site, and hostile image files, for the soak: what a run and a reader make of random ones."""

import random
import re
import shutil
import warnings
from collections.abc import Callable
from contextlib import redirect_stderr
from functools import lru_cache
from io import BytesIO, StringIO
from pathlib import Path

import numpy as np
import torch
from flwr.app import Message
from PIL import Image
from safetensors.torch import save_file

from fssl.data.folder.pictures import PictureError, read_picture
from fssl.engines.flower import client_app
from fssl.engines.flower.fleet import flower_engine
from fssl.engines.flower.messages import pack, unpack
from fssl.errors import UserError
from fssl.records.tensors import sealed
from fssl.start import read_weights
from fssl.types import State

from .fleet import Handler, at_sites, attacked_upload, federation_of, fleet_of

FORMS = (
    *("nan", "shape", "type", "lost", "count", "negative", "another", "garbage", "bytes", "cut", "name", "empty"),
    *("huge", "variance", "unknown", "weight", "steps", "sums", "tally"),
)  # of uploads that cannot be used
Change = Callable[[State, State, random.Random], State]  # what was sent, and the honest upload


def params(change: Callable[[torch.Tensor, torch.Tensor, random.Random], torch.Tensor], kind: str = "") -> Change:
    """A change of every parameter, or of tensors whose names end so."""

    def changed(sent: State, honest: State, draw: random.Random) -> State:
        mine = [name for name in honest if (name.endswith(kind) if kind else ".params." in name)]
        return {**honest, **{name: change(sent.get(name, honest[name]), honest[name], draw) for name in mine}}

    return changed


VALUES: dict[str, Change] = {  # of the right form, and each value within the bounds
    "sign flip": params(lambda sent, t, draw: sent - 10 * (t - sent)),
    "scaling": params(lambda sent, t, draw: sent + draw.choice((3, 30, 300)) * (t - sent)),
    "noise": params(lambda sent, t, draw: t + torch.randn_like(t) * draw.choice((0.1, 1, 100))),
    "zeros": params(lambda sent, t, draw: torch.zeros_like(t)),
    "a constant": params(lambda sent, t, draw: torch.full_like(t, draw.uniform(-9e3, 9e3))),
    "what overflows in a test": params(lambda sent, t, draw: torch.full_like(t, 9e3)),
    "the model that was sent": params(lambda sent, t, draw: sent),
    "its negative": params(lambda sent, t, draw: -sent),
    "shuffled values": params(lambda sent, t, draw: t.flatten()[torch.randperm(t.numel())].reshape(t.shape)),
    "variances of 0": params(lambda sent, t, draw: torch.zeros_like(t), "running_var"),
    "huge variances": params(lambda sent, t, draw: torch.full_like(t, 9e3), "running_var"),
    "means far away": params(lambda sent, t, draw: torch.full_like(t, -9e3), "running_mean"),
}


class Malicious:
    """A run with four sites, of which one lies in every round."""

    def __init__(self, folder: Path) -> None:
        client_app.workshop = lru_cache(maxsize=16)(client_app.workshop.__wrapped__)  # one process plays all sites
        self.folder = folder
        self.federation = federation_of("train.clients_per_round=4", "model.name=resnet8")

    def trial(self, draw: random.Random) -> str:
        """Two rounds; returns what is wrong: a run that stops, or a lie that hurts and is not named."""
        shutil.rmtree(self.folder, ignore_errors=True)
        self.folder.mkdir()
        kind, bad, said = draw.choice((*FORMS, *VALUES)), draw.randrange(4), list[str]()
        engine = flower_engine(fleet_of(self.federation, self.lying(kind, bad, draw), said, quorum=2))
        try:
            with redirect_stderr(StringIO()):  # what sites say of their rounds
                results = [engine.round(2), engine.round(2)]
        except Exception as error:
            return f"{kind} of site {bad} stops the run: {type(error).__name__}: {error}"
        named = any(re.search(rf"client {bad}\b", line) for line in said)
        if others := [line for line in said if not re.search(rf"client {bad}\b", line)]:
            return f"{kind} of site {bad}: another one is named: {others}"
        if kind in FORMS and not all([missing.client for missing in result.missing] == [bad] for result in results):
            return f"{kind} of site {bad} is used"
        largest = max(float(t.abs().max()) for tensors in engine.model() for t in tensors.values())
        return f"{kind} of site {bad} is not named, and a value is {largest:.0f}" if largest > 100 and not named else ""

    def lying(self, kind: str, bad: int, draw: random.Random) -> Handler:
        honest = at_sites(self.folder)

        def handle(message: Message) -> Message | None:
            reply = honest(message)
            if message.metadata.dst_node_id == bad and reply is not None:
                if kind in FORMS:
                    attacked_upload(reply.content, kind)
                else:
                    sent, upload = unpack(message.content["payload"]), unpack(reply.content["upload"])
                    reply.content["upload"] = pack(VALUES[kind](sent, upload, draw))
            return reply

        return handle


def image_files() -> dict[str, bytes]:
    """A small image in each format."""
    pixels = Image.fromarray(np.random.default_rng(0).integers(0, 256, (24, 20, 3), dtype=np.uint8))
    made = {}
    for kind in ("PNG", "JPEG", "WEBP", "TIFF", "BMP"):
        pixels.save(file := BytesIO(), kind)
        made[kind] = file.getvalue()
    try:
        import pydicom
    except ImportError:
        return made
    for syntax in (pydicom.uid.ExplicitVRLittleEndian, pydicom.uid.DeflatedExplicitVRLittleEndian):
        data = pydicom.Dataset()
        data.file_meta = pydicom.FileMetaDataset()
        data.file_meta.TransferSyntaxUID = syntax
        data.file_meta.MediaStorageSOPClassUID = data.SOPClassUID = pydicom.uid.CTImageStorage
        data.file_meta.MediaStorageSOPInstanceUID = data.SOPInstanceUID = "1.2.3"
        data.Rows = data.Columns = 8
        data.BitsAllocated = data.BitsStored = 16
        data.HighBit, data.SamplesPerPixel, data.PixelRepresentation = 15, 1, 0
        data.PhotometricInterpretation, data.WindowCenter, data.WindowWidth = "MONOCHROME2", 32, 64
        data.PixelData = np.arange(64, dtype="<u2").tobytes()
        pydicom.dcmwrite(file := BytesIO(), data, enforce_file_format=True)
        made[f"DICOM {syntax.name}"] = file.getvalue()
    return made


def damaged(content: bytes | bytearray, draw: random.Random) -> bytes:
    """Return a file's content with some places changed, cut out or repeated."""
    content = bytearray(content)
    for _ in range(draw.choice((1, 3, 30))):
        place = draw.randrange(len(content))
        match draw.randrange(4):
            case 0:
                content[place] = draw.randrange(256)
            case 1:
                content[place : place + 4] = draw.choice((b"\xff" * 4, bytes(4), b"\x7f\xff\xff\xff"))
            case 2:
                del content[place + 1 : place + draw.randrange(2, 20)]
            case 3:
                content[place:place] = content[place : place + draw.randrange(20)]
    return bytes(content)


def hostile_file(files: dict[str, bytes], draw: random.Random) -> str:
    """One damaged image: it is read, or rejected in a line; returns what is wrong."""
    kind = draw.choice(sorted(files))
    content = damaged(files[kind], draw)
    try:
        with warnings.catch_warnings(action="ignore"):
            pixels = read_picture(content, 8, 3)
    except (PictureError, UserError) as error:
        return f"{kind}: {str(error)!r} has several lines" if "\n" in str(error) else ""
    except BaseException as error:
        return f"{kind}: {type(error).__name__}: {error} of {content.hex()}"
    return "" if pixels.shape == (8, 8, 3) and pixels.dtype == np.uint8 else f"{kind}: {pixels.shape} {pixels.dtype}"


def weight_files(folder: Path) -> dict[Path, bytes]:
    """A small network's weights in each form that a run can start from."""
    weights = {"a.weight": torch.ones(3, 4), "a.bias": torch.zeros(3)}
    places = [folder / name for name in ("w.pt", "old.pth", "w.safetensors", "sealed.safetensors")]
    torch.save({"state_dict": weights}, places[0])
    torch.save(weights, places[1], _use_new_zipfile_serialization=False)
    save_file(weights, places[2])
    places[3].write_bytes(sealed(weights, {"mean": [0.5], "classes": ["a", "b"]}))
    return {place: place.read_bytes() for place in places}


def hostile_weights(files: dict[Path, bytes], draw: random.Random) -> str:
    """One damaged file of weights: it is read, or rejected in a line; returns what is wrong."""
    place = draw.choice(sorted(files))
    place.write_bytes(damaged(files[place], draw))
    try:
        with warnings.catch_warnings(action="ignore"):
            found = read_weights(place)
    except UserError as error:
        return f"{place.name}: {str(error)!r} has several lines" if "\n" in str(error) else ""
    except BaseException as error:
        return f"{place.name}: {type(error).__name__}: {error} of {place.read_bytes().hex()}"
    return "" if all(isinstance(t, torch.Tensor) for t in found.tensors.values()) else f"{place.name}: no tensors"
