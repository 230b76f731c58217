"""Export a run's model as ONNX, a torch.export program or plain weights, each with facts and tested first."""

import json
import logging
import warnings
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from io import BytesIO
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import torch
from numpy.typing import NDArray
from safetensors.torch import load as load_tensors
from torch import Tensor, nn

from .. import __version__
from ..core.assembly import make_module
from ..core.evaluate import model_facts
from ..data.folder.pictures import BACKDROP
from ..errors import RunError, UserError, error_text, unknown
from ..records.tensors import sealed
from ..system.files import write_file
from ..system.machine import check_file, check_new
from .trained import Trained, load_trained, model_notes

Answer = Callable[[NDArray[np.uint8]], NDArray[np.float32]]  # images to probabilities
FACTS_KEY = "fssl"  # the key of the facts in a file's metadata
INPUT, OUTPUT = "images", "probabilities"
CLOSE = 1e-5  # largest difference from the answers of `predict`
TRIED = (1, 2, 7)  # images in the batches that test a file
DECODE = (
    "the first frame or page; turned upright by EXIF; 16-bit grey to (value * 255 + 32767) // 65535, 16-bit color to"
    f" its upper 8 bits; transparency over {BACKDROP[:3]}; to RGB, without color profiles; for 1 channel then to luma"
    " (ITU-R 601)"
)
RESIZE = "the whole image to a square, bicubic, antialiased; 8 bits (Pillow: Image.resize with BICUBIC)"


class Served(nn.Module):
    """A model from uint8 images [N, H, W, C] to probabilities, with normalization and softmax."""

    scale: Tensor
    shift: Tensor

    def __init__(self, model: Trained) -> None:
        super().__init__()
        self.net = model.module()
        self.register_buffer("scale", model.normalize.scale)
        self.register_buffer("shift", model.normalize.shift)

    def forward(self, images: Tensor) -> Tensor:
        _, logits = self.net((images * self.scale + self.shift).permute(0, 3, 1, 2))
        return torch.softmax(logits, -1)


class Made(NamedTuple):
    """The content of a file, and the function that runs it."""

    content: bytes
    answer: Answer


class Exported(NamedTuple):
    """The file, the largest difference of its answers from those of `predict`, and lines that name its model."""

    file: Path
    difference: float
    notes: list[str]


def export_model(run: Path, to: str, out: Path | None = None, overwrite: bool = False, which: str = "") -> Exported:
    """Write a run's model and its facts.

    Args:
        run: The run folder.
        to: `onnx`, `pt2` or `safetensors`.
        out: The file; its facts go into a file with `.json` after its name. Default: the run's name.
        overwrite: Whether files of these names may be replaced.
        which: "best", "plain" or "ema" for one of several models.
    """
    if to not in FORMATS:
        raise unknown("format", to, FORMATS)
    file = out or Path(f"{run.resolve().name}.{to}")
    facts_file = file.with_name(f"{file.name}.json")
    check_file("out", file, f".{to}")
    check_file("out", facts_file)
    for path in (file, facts_file):
        check_new("out", path, overwrite)
    model = load_trained(run, torch.device("cpu"), which)
    facts = json.dumps(facts_of(model, to), indent=1, ensure_ascii=False)
    made = FORMATS[to](model, facts)
    difference = largest_difference(model, made.answer)
    if not difference <= CLOSE:
        raise RunError(f"{file} is not written: its answers differ from the run's by {difference:.1e}, above {CLOSE}")
    write_file(file, made.content)
    write_file(facts_file, facts + "\n")
    return Exported(file, difference, model_notes(model, run, which))


def facts_of(model: Trained, to: str) -> dict[str, Any]:
    """Return the facts that a program needs to prepare the file's input and read its output."""
    known, shape = model_facts(model.config, model.card), [model.card.size, model.card.size, model.card.channels]
    facts = {"fssl": __version__, "format": to, "round": model.round, **known, "decode": DECODE, "resize": RESIZE}
    if to == "safetensors":
        choices = ("name", "width", "norm", "stem")
        network = {key: getattr(model.config.model, key) for key in choices}
        size, channels = model.card.size, model.card.channels
        pixels = {"type": "float32", "shape": ["batch", channels, size, size], "is": "(value / 255 - mean) / std"}
        return {**facts, "network": network, "input": pixels, "output": "features and logits"}
    return {
        **facts,
        "input": {"name": INPUT, "type": "uint8", "shape": ["batch", *shape]},
        "output": {"name": OUTPUT, "type": "float32", "shape": ["batch", len(model.classes)]},
    }


def to_safetensors(model: Trained, facts: str) -> Made:
    """Return a safetensors file whose tensors have the names that the network's `load_state_dict` expects."""
    content = sealed(model.tensors(), json.loads(facts))
    fresh = make_module(model.config, model.card)  # with other weights, to notice a missing one
    fresh.load_state_dict(load_tensors(content), strict=False)
    fresh.eval().requires_grad_(False)

    def answer(images: NDArray[np.uint8]) -> NDArray[np.float32]:
        logits: Tensor = fresh(model.normalize(torch.from_numpy(images)))[1]
        return logits.softmax(-1).numpy()

    return Made(content, answer)


def to_pt2(model: Trained, facts: str) -> Made:
    file = BytesIO()
    with exporting(model):
        program = torch.export.export(Served(model), (example(model),), dynamic_shapes={INPUT: {0: any_batch()}})
        torch.export.save(program, file, extra_files={"facts.json": facts})
        content = file.getvalue()
        run = torch.export.load(BytesIO(content)).module()
    return Made(content, lambda images: run(torch.from_numpy(images)).numpy())


def to_onnx(model: Trained, facts: str) -> Made:
    try:
        import onnx  # noqa: F401  # torch reports it late, with a long message
        import onnxruntime
        import onnxscript  # noqa: F401
    except ImportError as error:
        raise UserError(f"exporting to ONNX needs packages: pip install 'fssl[export]' ({error_text(error)})") from None
    with exporting(model):
        program = torch.onnx.export(
            Served(model),
            (example(model),),
            dynamo=True,
            dynamic_shapes={INPUT: {0: any_batch()}},
            input_names=[INPUT],
            output_names=[OUTPUT],
            verbose=False,
        )
        assert program is not None
        proto = program.model_proto
        proto.metadata_props.add(key=FACTS_KEY, value=facts)
        content = proto.SerializeToString()
    session = onnxruntime.InferenceSession(content, providers=["CPUExecutionProvider"])
    return Made(content, lambda images: session.run([OUTPUT], {INPUT: images})[0])


FORMATS: dict[str, Callable[[Trained, str], Made]] = {
    "onnx": to_onnx,
    "pt2": to_pt2,
    "safetensors": to_safetensors,
}


def any_batch() -> Any:
    return torch.export.Dim("batch")


def example(model: Trained) -> Tensor:
    """Return two example images; with one, torch would treat the batch size as a constant."""
    return torch.from_numpy(noise(model, 2))


def noise(model: Trained, number: int) -> NDArray[np.uint8]:
    shape = (number, model.card.size, model.card.size, model.card.channels)
    return np.random.default_rng(number).integers(0, 256, shape, np.uint8)


def largest_difference(model: Trained, answer: Answer) -> float:
    """Return the largest difference between the answers of a file and the run's model, for several batch sizes."""
    batches = [noise(model, number) for number in TRIED]
    return max(float(np.abs(answer(images) - model.probabilities(images)).max()) for images in batches)


@contextmanager
def exporting(model: Trained) -> Iterator[None]:
    """Hide torch's progress messages; raise UserError for a network that torch cannot export."""
    with warnings.catch_warnings(action="ignore"):
        logging.disable(logging.WARNING)
        try:
            yield
        except Exception as error:  # torch raises errors of many types
            reason = error_text(error)[:300]
            raise UserError(f"network '{model.net.name}' cannot be exported: {reason}") from error
        finally:
            logging.disable(logging.NOTSET)
