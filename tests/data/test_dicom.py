"""DICOM files of real devices: which frame, through which window, which way round; TIFF and BMP as well."""

import sys
from io import BytesIO
from pathlib import Path

import numpy as np
import pytest
from numpy.typing import NDArray
from PIL import Image

from fssl.data.folder import pictures
from fssl.data.folder.listing import list_images
from fssl.data.folder.pictures import PictureError, read_picture, windowed
from fssl.errors import UserError

pydicom = pytest.importorskip("pydicom")
pixels = pytest.importorskip("pydicom.pixels")


def device_file(name: str) -> Path:
    """A file of pydicom or of pydicom-data; nothing is fetched."""
    from pydicom.data import get_testdata_file

    try:
        return Path(get_testdata_file(name, download=False))  # type: ignore[arg-type]
    except TypeError:
        pytest.skip(f"{name} is in the package pydicom-data")


def squeezed(grey: NDArray[np.uint8]) -> NDArray[np.uint8]:
    """As any picture becomes one of 16x16 pixels."""
    return np.asarray(Image.fromarray(grey).resize((16, 16), Image.Resampling.BICUBIC))


def read(name: str, channels: int = 1) -> NDArray[np.uint8]:
    return read_picture(device_file(name), 16, channels)


def test_a_window_is_applied_as_pydicom_does() -> None:
    data = pydicom.dcmread(device_file("MR_small.dcm"))
    expected = pixels.apply_windowing(data.pixel_array, data)  # over the 16 bits that are stored, with a sign
    low, high = -(2**15), 2**15 - 1
    grey = np.rint(255 * (expected - low) / (high - low)).astype(np.uint8)
    assert np.abs(read("MR_small.dcm")[..., 0].astype(int) - squeezed(grey)).max() <= 1
    assert (grey.min(), grey.max()) == (52, 255)


def test_the_ends_of_a_window_are_black_and_white() -> None:
    x = np.array([0, 49, 50, 99.5, 149, 200])
    # Center 100 and width 101: from 49.5 to 149.5, with half of it at 99.5.
    np.testing.assert_allclose(np.clip(windowed(x, 100, 101, "LINEAR"), 0, 1), [0, 0, 0.005, 0.5, 0.995, 1])
    np.testing.assert_allclose(np.clip(windowed(x, 100, 100, "LINEAR_EXACT"), 0, 1), [0, 0, 0, 0.495, 0.99, 1])
    np.testing.assert_allclose(windowed(np.array([100.0]), 100, 50, "SIGMOID"), [0.5])


def test_without_a_window_a_frame_is_stretched() -> None:
    data = pydicom.dcmread(device_file("CT_small.dcm"))
    assert "WindowWidth" not in data
    values = data.pixel_array.astype(float)
    grey = np.rint(255 * (values - values.min()) / (values.max() - values.min())).astype(np.uint8)
    assert np.array_equal(read("CT_small.dcm")[..., 0], squeezed(grey))


def test_monochrome1_is_inverted() -> None:
    """Of these X-rays 0 is white; the window is 550 and 1024 wide, of 10 bits."""
    data = pydicom.dcmread(device_file("RG3_UNCI.dcm"))
    assert data.PhotometricInterpretation == "MONOCHROME1"
    bright = np.clip((data.pixel_array - 549.5) / 1023 + 0.5, 0, 1)
    assert np.array_equal(read("RG3_UNCI.dcm")[..., 0], squeezed(255 - np.rint(255 * bright).astype(np.uint8)))


def test_of_several_frames_the_middle_one_is_taken() -> None:
    data = pydicom.dcmread(device_file("emri_small.dcm"))
    frame = data.pixel_array[5].astype(float)
    assert len(data.pixel_array) == 10
    grey = np.rint(255 * (frame - frame.min()) / (frame.max() - frame.min())).astype(np.uint8)
    assert np.array_equal(read("emri_small.dcm")[..., 0], squeezed(grey))


def test_a_table_of_values_takes_the_place_of_a_window() -> None:
    data = pydicom.dcmread(device_file("vlut_04.dcm"))
    bits = data.VOILUTSequence[0].LUTDescriptor[2]
    table = pixels.apply_voi(pixels.apply_modality_lut(data.pixel_array, data), data) / (2**bits - 1)
    assert np.array_equal(read("vlut_04.dcm")[..., 0], squeezed(np.rint(255 * table).astype(np.uint8)))


@pytest.mark.parametrize(
    "name", ["examples_rgb_color.dcm", "examples_palette.dcm", "SC_rgb_jpeg_dcmtk.dcm", "examples_jpeg2k.dcm"]
)
def test_colors_are_colors(name: str) -> None:
    data = pydicom.dcmread(device_file(name))
    expected = pixels.pixel_array(data)
    if data.PhotometricInterpretation == "PALETTE COLOR":
        expected = (pixels.apply_color_lut(expected, data) >> 8).astype(np.uint8)
    assert np.array_equal(read(name, 3), squeezed(expected))


def test_a_file_without_a_suffix_is_found_by_its_mark(tmp_path: Path) -> None:
    (tmp_path / "IM00001").write_bytes(device_file("CT_small.dcm").read_bytes())
    (tmp_path / "README").write_text("not an image")
    listing = list_images(tmp_path)
    assert [file.name for file in listing.files()] == ["IM00001"]
    assert list(listing.skipped) == ["README: no image suffix"]
    assert np.array_equal(read_picture((tmp_path / "IM00001").read_bytes(), 16, 1), read("CT_small.dcm"))


@pytest.mark.parametrize(
    ("name", "why"),
    [
        ("rtplan.dcm", "a DICOM file without pixels (RTPLAN)"),
        ("MR_truncated.dcm", "damaged or truncated ("),
    ],
)
def test_what_is_no_picture_says_why(name: str, why: str, caplog: pytest.LogCaptureFixture) -> None:
    with pytest.raises(PictureError) as error:
        read(name)
    assert str(error.value).startswith(why)
    assert not caplog.records  # pydicom's own remarks on it


def test_a_missing_package_is_one_line(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "pydicom", None)
    with pytest.raises(UserError, match=r"DICOM files need a package: pip install 'fssl\[medical\]'"):
        read("CT_small.dcm")


@pytest.mark.parametrize("kind", ["tiff", "bmp"])
def test_tiff_and_bmp_are_read_as_png_is(kind: str) -> None:
    photo = np.random.default_rng(0).integers(0, 256, (20, 30, 3), np.uint8)
    files = {form: BytesIO() for form in (kind, "png")}
    for form, file in files.items():
        Image.fromarray(photo).save(file, form)
    first, second = (read_picture(file.getvalue(), 16, 3) for file in files.values())
    assert np.array_equal(first, second)


def test_a_tiff_of_16_bits_is_scaled_and_one_of_floats_rejected() -> None:
    deep, floats = BytesIO(), BytesIO()
    Image.fromarray(np.full((4, 4), 32896, np.uint16)).save(deep, "tiff")
    Image.fromarray(np.zeros((4, 4), np.float32)).save(floats, "tiff")
    assert (read_picture(deep.getvalue(), 8, 1) == 128).all()
    with pytest.raises(PictureError, match="floating-point numbers, expected 8 or 16 bits"):
        read_picture(floats.getvalue(), 8, 1)


# Hostile and odd files.


def small_file(**header: object) -> "pydicom.Dataset":
    """A grey picture of 8x8 pixels with a gradient, through a window that shows all of it."""
    from pydicom.dataset import FileMetaDataset

    data = pydicom.Dataset()
    data.file_meta = FileMetaDataset()
    data.file_meta.TransferSyntaxUID = pydicom.uid.ExplicitVRLittleEndian
    data.file_meta.MediaStorageSOPClassUID = data.SOPClassUID = pydicom.uid.CTImageStorage
    data.file_meta.MediaStorageSOPInstanceUID = data.SOPInstanceUID = "1.2.3"
    data.Rows = data.Columns = 8
    data.BitsAllocated = data.BitsStored = 16
    data.HighBit, data.SamplesPerPixel, data.PixelRepresentation = 15, 1, 0
    data.PhotometricInterpretation, data.RescaleSlope, data.RescaleIntercept = "MONOCHROME2", 1, 0
    data.PixelData = np.arange(64, dtype="<u2").tobytes()
    for name, value in header.items():
        setattr(data, name, value)
    return data


def written(data: "pydicom.Dataset", deflated: bool = False) -> bytes:
    if deflated:
        data.file_meta.TransferSyntaxUID = pydicom.uid.DeflatedExplicitVRLittleEndian
    pydicom.dcmwrite(file := BytesIO(), data, enforce_file_format=True)
    return file.getvalue()


def test_a_deflated_file_is_the_same_picture() -> None:
    plain = read_picture(written(small_file()), 8, 1)
    assert np.array_equal(read_picture(written(small_file(), deflated=True), 8, 1), plain)
    assert (plain.min(), plain.max()) == (0, 255)


def test_a_deflated_file_cannot_fill_the_memory(monkeypatch: pytest.MonkeyPatch) -> None:
    """100 MB of zeros are 100 kB when deflated: no more than the bound is ever made of them."""
    import tracemalloc

    bomb = small_file()
    bomb.add_new((0x0009, 0x0010), "LO", "ours")
    bomb.add_new((0x0009, 0x1001), "OB", bytes(100 * 2**20))
    content = written(bomb, deflated=True)
    assert len(content) < 2**18
    del bomb
    monkeypatch.setattr(pictures, "MOST_INFLATED", 2**20)
    tracemalloc.start()
    with pytest.raises(PictureError, match=r"^inflates to more than 1 MiB$"):
        read_picture(content, 8, 1)
    assert tracemalloc.get_traced_memory()[1] < 20 * 2**20
    tracemalloc.stop()


@pytest.mark.parametrize(
    ("header", "why"),
    [
        ({"WindowWidth": "nan", "WindowCenter": 5}, "its window has center 5 and width nan"),
        ({"WindowWidth": 9, "WindowCenter": "nan"}, "its window has center nan and width 9"),
        ({"WindowWidth": 0, "WindowCenter": 5}, "its window has center 5 and width 0; correct it, or remove both"),
        ({"WindowWidth": -4, "WindowCenter": 5}, "its window has center 5 and width -4"),
        ({"RescaleSlope": "nan"}, "values in the modality's units are not finite"),
    ],
)
@pytest.mark.filterwarnings("ignore:Invalid value for VR DS")
def test_a_window_that_is_none_is_no_black_image(header: dict[str, object], why: str) -> None:
    content = written(small_file(**header))
    with pytest.raises(PictureError, match=why):
        read_picture(content, 8, 1)


@pytest.mark.parametrize(
    ("name", "syntax", "reason"),
    [
        ("JPEG-lossy.dcm", "JPEG Extended (Process 2 and 4)", "pillow: no support for samples with 12-bit precision"),
        ("MR_small_jpeg_ls_lossless.dcm", "JPEG-LS Lossless Image Compression", "plugins are missing dependencies"),
    ],
)
def test_a_file_that_lacks_a_decoder_is_not_called_damaged(
    name: str, syntax: str, reason: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    def without_decoder(*given: object, **options: object) -> None:
        raise RuntimeError(f"Unable to decode: {reason}")

    monkeypatch.setattr("pydicom.pixels.pixel_array", without_decoder)
    monkeypatch.setattr("fssl.data.folder.pictures.find_spec", lambda name: None)
    with pytest.raises(PictureError) as error:
        read(name)
    assert str(error.value) == f"{syntax}: its decoder is not installed: pip install 'fssl[medical]'"


@pytest.mark.parametrize("name", ["JPGExtended.dcm", "MR_small_jpeg_ls_lossless.dcm", "JPEG-LL.dcm"])
def test_decoders_of_the_extra_read_what_pydicom_and_pillow_do_not(name: str) -> None:
    """The first has 12 bits; the second is the same image as an uncompressed file."""
    pytest.importorskip("libjpeg", reason="pylibjpeg-libjpeg is not installed: pip install 'fssl[medical]'")
    data = pydicom.dcmread(device_file(name))
    values = pixels.pixel_array(data)
    assert (int(data.BitsStored), int(values.max()) > 255) in {(12, True), (16, True)}
    assert len(np.unique(read(name))) > 50
    if name.startswith("MR_small"):
        assert np.array_equal(read(name), read("MR_small.dcm"))


def test_a_damaged_jpeg_is_called_so_where_its_decoder_is_installed() -> None:
    pytest.importorskip("libjpeg", reason="pylibjpeg-libjpeg is not installed: pip install 'fssl[medical]'")
    with pytest.raises(PictureError, match=r"^damaged or truncated \("):
        read("JPEG-lossy.dcm")
