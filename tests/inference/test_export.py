"""Models for other programs: the same answers in every format, in Python and from a server."""

import json
import runpy
import sys
from concurrent.futures import ThreadPoolExecutor
from io import BytesIO
from pathlib import Path

import numpy as np
import pytest
import torch
from PIL import Image
from safetensors import safe_open
from safetensors.torch import load_file

import fssl as package
from fssl.config import override, parse, read_toml
from fssl.console import Quiet
from fssl.core.experiment import prepare
from fssl.core.images import load_dataset
from fssl.data.cards import Agreed
from fssl.data.dataset import own_dataset
from fssl.data.folder.pictures import read_picture
from fssl.errors import UserError
from fssl.inference import export
from fssl.inference.inputs import from_pixels
from fssl.inference.trained import Trained, load_trained
from fssl.models.resnet import ResNet8
from fssl.runner.conduct import run_experiment
from fssl.system.user_code import loaded
from helpers.command import Fssl

SMALL = [
    *("train.rounds=2", "train.steps_per_round=4", "data.labels_per_class=8", "partition.clients=4"),
    *("train.clients_per_round=2", "compute.device=cpu", "model.name=resnet8", "model.width=1"),
]
CONFIG = parse(override(read_toml("smoke"), SMALL))
ROOT = Path(__file__).parents[2]
EXAMPLE = ROOT / "examples" / "onnx_file.py"


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("export") / "smoke"
    run_experiment(prepare(CONFIG), folder, Quiet())
    return folder


@pytest.fixture(scope="module")
def model(run: Path) -> Trained:
    return load_trained(run, torch.device("cpu"))


@pytest.fixture(scope="module")
def images() -> np.ndarray:
    return load_dataset(CONFIG).test.images


@pytest.mark.slow
def test_an_onnx_file_answers_as_the_run_does(fssl: Fssl, run: Path, model: Trained, images: np.ndarray) -> None:
    runtime = pytest.importorskip("onnxruntime")
    pytest.importorskip("onnxscript")
    code, said, errors = fssl("export", run, "--to", "onnx")
    assert (code, errors) == (0, "")
    assert "smoke.onnx and smoke.onnx.json" in said
    session = runtime.InferenceSession("smoke.onnx", providers=["CPUExecutionProvider"])
    for number in (1, 360):
        (p,) = session.run(["probabilities"], {"images": images[:number]})
        np.testing.assert_allclose(p, model.probabilities(images[:number]), atol=1e-5)
    (taken,) = session.get_inputs()
    assert (taken.shape, taken.type) == (["batch", 8, 8, 1], "tensor(uint8)")
    facts = json.loads(Path("smoke.onnx.json").read_text())
    assert json.loads(session.get_modelmeta().custom_metadata_map["fssl"]) == facts
    assert facts["classes"] == [str(c) for c in range(10)]
    assert (facts["size"], facts["channels"], facts["round"], facts["format"]) == (8, 1, 2, "onnx")
    for rule in ("EXIF", "(value * 255 + 32767) // 65535", "transparency over (128, 128, 128)", "luma"):
        assert rule in facts["decode"]
    assert "bicubic" in facts["resize"]


@pytest.mark.slow
def test_a_program_answers_as_the_run_does(fssl: Fssl, run: Path, model: Trained, images: np.ndarray) -> None:
    assert fssl("export", run, "--to", "pt2", "--out", "new/digits.pt2").code == 0
    extra = {"facts.json": ""}
    program = torch.export.load("new/digits.pt2", extra_files=extra).module()
    for number in (1, 360):
        p = program(torch.from_numpy(images[:number].copy()))
        np.testing.assert_allclose(p.numpy(), model.probabilities(images[:number]), atol=1e-5)
    assert json.loads(extra["facts.json"]) == json.loads(Path("new/digits.pt2.json").read_text())


def test_plain_weights_go_into_the_network_strictly(fssl: Fssl, run: Path, model: Trained, images: np.ndarray) -> None:
    said = fssl("export", run, "--to", "safetensors")
    assert (said.code, "new folder" in said.out) == (0, False)
    said = fssl("export", run, "--to", "safetensors", "--out", "deep/er/weights.safetensors")
    assert (said.code, "new folder: deep/er\n" in said.out) == (0, True)
    net = ResNet8(1, 10, 1)
    net.load_state_dict(load_file("smoke.safetensors"))
    facts = json.loads(Path("smoke.safetensors.json").read_text())
    x = (torch.from_numpy(images.copy()).float() / 255 - torch.tensor(facts["mean"])) / torch.tensor(facts["std"])
    with torch.no_grad():
        _, logits = net.eval()(x.permute(0, 3, 1, 2))
    np.testing.assert_allclose(logits.softmax(-1).numpy(), model.probabilities(images), atol=1e-5)
    with safe_open("smoke.safetensors", "pt") as file:
        assert {**json.loads(file.metadata()["fssl"]), "sha256": None} == {**facts, "sha256": None}
    assert facts["network"] == {"name": "resnet8", "width": 1, "norm": "batch", "stem": "cifar"}


@pytest.mark.slow
def test_what_cannot_be_exported_is_rejected_in_one_line(
    fssl: Fssl, run: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "smoke.pt2").write_text("mine")
    (tmp_path / "b.pt2.json").mkdir()
    for words, expected in (
        (["nowhere", "--to", "onnx"], "nowhere is not a run folder"),
        ([run, "--to", "onx"], "format 'onx' is unknown; did you mean 'onnx'?"),
        (
            [run, "--to", "pt2"],
            "smoke.pt2: already exists; choose another name, or overwrite it (--out, --overwrite)",
        ),
        ([run, "--to", "pt2", "--out", "a.onnx"], "expected a name that ends with .pt2"),
        ([run, "--to", "pt2", "--out", "b.pt2", "--overwrite"], "b.pt2.json: is a folder; expected a file"),
        ([run, "--to", "pt2", "--out", f"{'x' * 226}.pt2"], ".pt2.json: the name is too long"),
        ([run], "Missing option"),
    ):
        code, _, said = fssl("export", *words)
        assert (code, expected in said, said.count("\n")) == (2, True, 1), said
    assert (tmp_path / "smoke.pt2").read_text() == "mine"
    assert not (tmp_path / "b.pt2").exists()
    assert fssl("export", run, "--to", "pt2", "--overwrite").code == 0
    monkeypatch.setitem(sys.modules, "onnxruntime", None)
    code, _, said = fssl("export", run, "--to", "onnx")
    assert (code, "needs packages: pip install 'fssl[export]'" in said, said.count("\n")) == (2, True, 1)


def test_a_file_with_other_answers_is_not_written(fssl: Fssl, run: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    made = export.Made(b"", lambda images: np.full((len(images), 10), 0.1, np.float32))
    monkeypatch.setitem(export.FORMATS, "pt2", lambda model, facts: made)
    code, _, said = fssl("export", run, "--to", "pt2")
    assert (code, "its answers differ from the run's by" in said) == (1, True)
    assert not list(Path().glob("smoke*"))


def test_a_file_without_all_weights_is_not_written(fssl: Fssl, run: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    save = export.sealed
    monkeypatch.setattr(export, "sealed", lambda tensors, facts: save(dict([*tensors.items()][1:]), facts))
    code, _, said = fssl("export", run, "--to", "safetensors")
    assert (code, "its answers differ from the run's by" in said) == (1, True)
    assert not list(Path().glob("smoke*"))


# In Python.


def test_files_bytes_arrays_and_tensors_get_the_same_answers(
    model: Trained, images: np.ndarray, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    expected = model.probabilities(images[:3])
    files = [Path(f"{i}/photo.png") for i in range(3)]
    for file, image in zip(files, images, strict=False):
        file.parent.mkdir()
        Image.fromarray(image[..., 0]).save(file)
    tensor = torch.from_numpy(images[:3].copy())
    given = {
        "folder": Path(),
        "text": ".",
        "files": files,
        "bytes": [file.read_bytes() for file in files],
        "array": images[:3],
        "color": images[:3].repeat(3, -1),
        "tensor": tensor,
        "channels first": tensor.permute(0, 3, 1, 2),
        "floats": tensor.double() / 255,
    }
    for name, what in given.items():
        said = model.predict(what)
        np.testing.assert_allclose(said.probabilities, expected, atol=1e-6, err_msg=name)
        assert said.labels == [model.classes[c] for c in expected.argmax(-1)]
    assert model.predict(files).names == [str(file) for file in files]
    assert model.predict(".").names == [str(file) for file in files]
    assert model.predict(".").truth.tolist() == [0, 1, 2]  # type: ignore[union-attr]
    for one in (images[0], images[0, :, :, 0], files[0], files[0].read_bytes()):
        np.testing.assert_allclose(model.predict(one).probabilities, expected[:1], atol=1e-6)


def test_pixels_of_another_size_become_the_model_s_as_files_do(model: Trained, tmp_path: Path) -> None:
    photo = np.random.default_rng(0).integers(0, 256, (30, 20, 3), np.uint8)
    Image.fromarray(photo).save(tmp_path / "photo.png")
    small = read_picture(tmp_path / "photo.png", 8, 1)
    for what in (photo, torch.from_numpy(photo).permute(2, 0, 1)[None], tmp_path / "photo.png"):
        assert np.array_equal(model.predict(what).probabilities, model.probabilities(small[None]))


@pytest.mark.parametrize("number", range(1, 6))
def test_gray_images_without_a_channel_are_as_many_as_they_are(model: Trained, images: np.ndarray, number: int) -> None:
    """As those of a dataset: three are no color image, and four none with transparency."""
    gray = images[:number, :, :, 0]
    large = gray.repeat(2, 1).repeat(2, 2)
    pair = (gray, [0] * number)
    assert len(own_dataset(pair, pair, (), None, None).train.images) == number
    for what, alone in ((gray, gray), (torch.from_numpy(gray.copy()), gray), (gray / 255, gray), (large, large)):
        said = model.predict(what)
        assert said.names == [str(i) for i in range(number)]
        expected = np.concatenate([model.predict(image).probabilities for image in alone])
        np.testing.assert_allclose(said.probabilities, expected, atol=1e-6)


def test_a_model_of_colors_takes_no_gray_images_for_a_batch() -> None:
    color = Agreed(("a", "b"), 8, 3).card()
    assert from_pixels(np.zeros((3, 8, 8), np.uint8), color).shape == (1, 8, 8, 3)
    for number in (2, 5):
        with pytest.raises(UserError, match=rf"shape \[{number}, 8, 8\], expected .*, \[C, H, W\] or \[H, W\]"):
            from_pixels(np.zeros((number, 8, 8), np.uint8), color)


@pytest.mark.parametrize("shape", [(0, 30, 30, 1), (0, 8, 8, 1), (0, 3, 20, 30), (0, 8, 8)])
def test_no_images_get_no_answers(model: Trained, shape: tuple[int, ...]) -> None:
    said = model.predict(np.zeros(shape, np.uint8))
    assert (said.labels, said.names, said.probabilities.shape) == ([], [], (0, 10))


def test_floats_of_any_precision_are_taken(model: Trained, images: np.ndarray) -> None:
    coarse = (torch.from_numpy(images[:3].copy()).float() / 255).bfloat16()
    expected = model.probabilities(coarse.float().numpy())
    for what in (coarse, coarse.half(), coarse.double(), coarse.requires_grad_()):
        assert np.array_equal(model.predict(what).probabilities, expected), what.dtype


@pytest.mark.parametrize(
    ("images", "expected"),
    [
        (np.zeros((2, 8, 8, 7), np.uint8), r"images have the shape \[2, 8, 8, 7\], expected \[N, H, W, C\]"),
        (np.zeros((2, 2, 8, 8, 1), np.uint8), r"expected .* \[H, W, C\], \[N, H, W\] or \[H, W\]"),
        (np.zeros((8, 8, 1), np.int64), "images are int64, expected uint8, or floats from 0 to 1"),
        (np.full((8, 8, 1), 200.0), "floats are from 200 to 200, expected 0 to 1"),
        (np.zeros((9, 9, 1)), r"floats have the shape \[9, 9, 1\], expected \[N, 8, 8, 1\]"),
        ("nowhere.png", "'nowhere.png': no such file or folder"),
        (b"text", "image 0: not a PNG"),
        ([], "expected a file or a folder"),
        (7, "expected a file or a folder"),
    ],
)
def test_what_is_no_image_is_rejected(model: Trained, images: object, expected: str) -> None:
    with pytest.raises(UserError, match=expected):
        model.predict(images)  # type: ignore[arg-type]


def test_threads_may_share_a_model(model: Trained, images: np.ndarray) -> None:
    expected = model.probabilities(images[:64])
    with ThreadPoolExecutor(4) as pool:
        for p in pool.map(lambda _: model.predict(images[:64]).probabilities, range(16)):
            assert np.array_equal(p, expected)


def test_python_exports_by_the_file_s_ending(run: Path, tmp_path: Path) -> None:
    file = package.export(run, tmp_path / "x.safetensors")
    assert file.is_file()
    with pytest.raises(UserError, match=r"x\.safetensors: already exists; choose another name, or overwrite it"):
        package.export(run, file)
    with pytest.raises(UserError, match="format 'bin' is unknown"):
        package.export(run, tmp_path / "x.bin")


def test_the_server_of_the_examples_answers_as_predict_does(run: Path, model: Trained, images: np.ndarray) -> None:
    client_of = pytest.importorskip("fastapi.testclient").TestClient
    client, file = client_of(loaded(ROOT / "examples" / "serve.py").server(str(run))), BytesIO()
    Image.fromarray(images[0, :, :, 0]).save(file, "png")
    for kind in ("application/octet-stream", "image/png"):
        answer = client.post("/predict", content=file.getvalue(), headers={"Content-Type": kind})
        assert answer.status_code == 200
        assert answer.json() == pytest.approx(dict(zip(model.classes, model.probabilities(images[:1])[0], strict=True)))
    bad = client.post("/predict", content=b"text", headers={"Content-Type": "application/octet-stream"})
    assert (bad.status_code, "not a PNG" in bad.text) == (422, True)


def files_of_every_kind(folder: Path) -> list[Path]:
    """The same noise as files of all modes that a decoder may give."""
    rng = np.random.default_rng(0)
    color, alpha = rng.integers(0, 256, (20, 30, 3), np.uint8), rng.integers(0, 256, (20, 30), np.uint8)
    photo, upright = Image.fromarray(color), Image.Exif()
    upright[0x0112] = 6
    deep = Image.fromarray(rng.integers(0, 65536, (20, 30), np.uint16))
    clear, palette = photo.copy(), photo.quantize(16)
    clear.putalpha(Image.fromarray(alpha))
    made: dict[str, tuple[Image.Image, dict[str, object]]] = {
        "rgb.png": (photo, {}),
        "l.png": (photo.convert("L"), {}),
        "deep.png": (deep, {}),
        "deep.tif": (deep, {}),
        "turned.jpg": (photo, {"exif": upright}),
        "turned.tif": (photo, {"exif": upright}),
        "clear.png": (clear, {}),
        "clear.webp": (clear, {"lossless": True}),
        "la.png": (clear.convert("LA"), {}),
        "p.png": (palette, {}),
        "clear-p.png": (palette, {"transparency": 3}),
        "cmyk.jpg": (photo.convert("CMYK"), {}),
        "cmyk.tif": (photo.convert("CMYK"), {}),
        "bits.png": (photo.convert("1"), {}),
        "rgb.bmp": (photo, {}),
        "small.png": (photo.resize((8, 8)), {}),
    }
    for name, (image, options) in made.items():
        image.save(folder / name, **options)
    return [folder / name for name in made]


@pytest.mark.slow
def test_the_example_answers_as_predict_does_for_files_of_every_kind(
    run: Path, model: Trained, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    pytest.importorskip("onnxruntime")
    pytest.importorskip("onnxscript")
    monkeypatch.chdir(tmp_path)
    package.export(run, "smoke.onnx")
    program = runpy.run_path(str(EXAMPLE))
    for file in files_of_every_kind(tmp_path):
        expected, answers = model.predict(file), program["predict"]("smoke.onnx", file)
        np.testing.assert_allclose([*answers.values()], expected.probabilities[0], atol=1e-5, err_msg=file.name)
        assert np.array_equal(program["pixels_of"](file, 8, 3), read_picture(file, 8, 3)), file.name
    monkeypatch.setattr(sys, "argv", [str(EXAMPLE), "smoke.onnx", str(file)])
    runpy.run_path(str(EXAMPLE), run_name="__main__")
    assert capsys.readouterr().out == f"{expected.labels[0]}\n"
    Image.fromarray(np.zeros((9, 9), np.float32)).save("floats.tif")
    with pytest.raises(ValueError, match=r"floats\.tif: floating-point pixels"):
        program["pixels_of"]("floats.tif", 8, 1)
