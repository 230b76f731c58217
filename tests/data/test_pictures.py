"""Image files of every kind: the exact pixels that come out, and the words for what does not."""

import struct
import zlib
from pathlib import Path

import numpy as np
import pytest
from numpy.typing import NDArray
from PIL import Image

from fssl.data.folder import pictures
from fssl.data.folder.pictures import PictureError, read_picture

COLOR: NDArray[np.uint8] = np.random.RandomState(0).randint(0, 256, (8, 8, 3)).astype(np.uint8)
GREY: NDArray[np.uint8] = np.ascontiguousarray(COLOR[..., 0])


def saved(image: Image.Image, path: Path, **options: object) -> Path:
    image.save(path, **options)
    return path


def complaint(path: Path) -> str:
    with pytest.raises(PictureError) as caught:
        read_picture(path, 8, 3)
    return str(caught.value)


def test_color_and_grey_come_out_as_they_are(tmp_path: Path) -> None:
    color, grey = saved(Image.fromarray(COLOR), tmp_path / "c.png"), saved(Image.fromarray(GREY), tmp_path / "g.png")
    assert np.array_equal(read_picture(color, 8, 3), COLOR)
    assert np.array_equal(read_picture(grey, 8, 1)[..., 0], GREY)
    assert np.array_equal(read_picture(grey, 8, 3), np.dstack([GREY] * 3))
    luma = (COLOR.astype(int) @ [19595, 38470, 7471] + 0x8000) >> 16  # ITU-R 601 in sixteen bits
    assert np.array_equal(read_picture(color, 8, 1)[..., 0], luma)


@pytest.mark.parametrize(("name", "options"), [("x.webp", {"lossless": True}), ("x.PNG", {}), ("png.jpg", {})])
def test_the_content_decides_not_the_suffix(tmp_path: Path, name: str, options: dict[str, object]) -> None:
    path = saved(Image.fromarray(COLOR), tmp_path / "x", format="WEBP" if options else "PNG", **options)
    assert np.array_equal(read_picture(path.rename(tmp_path / name), 8, 3), COLOR)


def test_jpeg(tmp_path: Path) -> None:
    flat = np.full((16, 16, 3), (200, 60, 30), np.uint8)
    found = read_picture(saved(Image.fromarray(flat), tmp_path / "x.jpg", quality=95), 8, 3)
    assert np.abs(found.astype(int) - flat[:8, :8]).max() <= 2


def test_palettes_and_bits(tmp_path: Path) -> None:
    """Four palette colors; then one bit: black and white."""
    palette = Image.fromarray((GREY % 4).astype(np.uint8)).convert("P")
    colors = np.array([[255, 0, 0], [0, 255, 0], [1, 2, 3], [9, 9, 9]], np.uint8)
    palette.putpalette(colors.tobytes())
    assert np.array_equal(read_picture(saved(palette, tmp_path / "p.png"), 8, 3), colors[GREY % 4])
    bits = Image.fromarray(GREY > 99)
    assert np.array_equal(read_picture(saved(bits, tmp_path / "b.png"), 8, 1)[..., 0], (GREY > 99) * 255)


def test_transparent_pixels_show_grey(tmp_path: Path) -> None:
    """Opaque stays, clear is 128 whatever color hides below, half is the mean: (200 + 128) / 2 = 164."""
    pixels = np.zeros((8, 8, 4), np.uint8)
    pixels[:, :3] = (10, 20, 30, 255)
    pixels[:, 3:5] = (255, 0, 255, 0)
    pixels[:, 5:] = (200, 200, 200, 128)
    found = read_picture(saved(Image.fromarray(pixels), tmp_path / "x.png"), 8, 3)
    assert (found[:, :3] == (10, 20, 30)).all()
    assert (found[:, 3:5] == 128).all()
    assert (np.abs(found[:, 5:].astype(int) - 164) <= 1).all()
    assert np.array_equal(read_picture(saved(Image.fromarray(pixels), tmp_path / "x.webp", lossless=True), 8, 3), found)


def test_transparency_of_palettes_and_of_grey_with_alpha(tmp_path: Path) -> None:
    palette = Image.new("P", (8, 8), 1)
    palette.putpalette([255, 0, 0, 0, 255, 0])
    palette.paste(0, (0, 0, 4, 8))
    found = read_picture(saved(palette, tmp_path / "p.png", transparency=0), 8, 3)
    assert (found[:, :4] == 128).all()
    assert (found[:, 4:] == (0, 255, 0)).all()
    clear = Image.merge("LA", (Image.new("L", (8, 8), 7), Image.new("L", (8, 8), 0)))
    assert (read_picture(saved(clear, tmp_path / "la.png"), 8, 1) == 128).all()
    named = read_picture(saved(Image.fromarray(GREY), tmp_path / "l.png", transparency=int(GREY[0, 0])), 8, 1)
    assert np.array_equal(named[..., 0], np.where(GREY[0, 0] == GREY, 128, GREY))


def test_sixteen_bits_are_scaled_not_clipped(tmp_path: Path) -> None:
    """65535 is 255, 32768 is 127.5 and rounds to 128, 300 is 1.17 and rounds to 1."""
    values = np.zeros((8, 8), np.uint16)
    values[0, :5] = (0, 300, 32767, 32768, 65535)
    found = read_picture(saved(Image.fromarray(values), tmp_path / "x.png"), 8, 1)
    assert found[0, :5, 0].tolist() == [0, 1, 127, 128, 255]
    assert np.array_equal(read_picture(tmp_path / "x.png", 8, 3), np.dstack([found] * 3))


def png_of(width: int, height: int, depth: int, color: int, data: bytes) -> bytes:
    def chunk(kind: bytes, content: bytes) -> bytes:
        return struct.pack(">I", len(content)) + kind + content + struct.pack(">I", zlib.crc32(kind + content))

    header = chunk(b"IHDR", struct.pack(">IIBBBBB", width, height, depth, color, 0, 0, 0))
    return b"\x89PNG\r\n\x1a\n" + header + chunk(b"IDAT", zlib.compress(data)) + chunk(b"IEND", b"")


def test_sixteen_bits_of_color_keep_their_upper_half(tmp_path: Path) -> None:
    rows = b"".join(b"\0" + COLOR[y].astype(">u2").__mul__(257).astype(">u2").tobytes() for y in range(8))
    (tmp_path / "x.png").write_bytes(png_of(8, 8, 16, 2, rows))
    assert np.array_equal(read_picture(tmp_path / "x.png", 8, 3), COLOR)


def test_cmyk(tmp_path: Path) -> None:
    """No ink is white; full cyan takes all red away."""
    image = Image.new("CMYK", (16, 16), (0, 0, 0, 0))
    image.paste((255, 0, 0, 0), (0, 0, 8, 16))
    found = read_picture(saved(image, tmp_path / "x.jpg", quality=100), 16, 3).astype(int)
    assert np.abs(found[:, 8:] - 255).max() <= 2
    assert np.abs(found[:, :8] - (0, 255, 255)).max() <= 2
    grey = read_picture(tmp_path / "x.jpg", 16, 1).astype(int)
    assert np.abs(grey[:, :8] - 179).max() <= 2  # 0.587 * 255 + 0.114 * 255


TURNS = {
    1: lambda a: a,
    2: lambda a: a[:, ::-1],
    3: lambda a: a[::-1, ::-1],
    4: lambda a: a[::-1],
    5: lambda a: a.transpose(1, 0, 2),
    6: lambda a: np.rot90(a, -1),
    7: lambda a: np.rot90(a, 2).transpose(1, 0, 2),
    8: lambda a: np.rot90(a, 1),
}


@pytest.mark.parametrize("orientation", TURNS)
@pytest.mark.parametrize("suffix", ["png", "webp"])
def test_images_are_turned_upright(tmp_path: Path, orientation: int, suffix: str) -> None:
    exif = Image.Exif()
    exif[0x0112] = orientation
    path = saved(Image.fromarray(COLOR), tmp_path / f"x.{suffix}", exif=exif, lossless=True)
    assert np.array_equal(read_picture(path, 8, 3), TURNS[orientation](COLOR))


def test_an_upright_photograph(tmp_path: Path) -> None:
    """A JPEG with its dark half on the left that is to be turned clockwise: the dark half comes to the top."""
    pixels = np.full((16, 32, 3), 250, np.uint8)
    pixels[:, :16] = 5
    exif = Image.Exif()
    exif[0x0112] = 6
    found = read_picture(saved(Image.fromarray(pixels), tmp_path / "x.jpg", exif=exif), 8, 3).astype(int)
    assert found[:3].max() < 20
    assert found[5:].min() > 235


def test_any_shape_is_squeezed_with_nothing_cut_off(tmp_path: Path) -> None:
    """A wide image whose ends are red and blue: both are still there, and each pixel is a mean, not a sample."""
    wide = np.zeros((8, 64, 3), np.uint8)
    wide[:, :16], wide[:, 48:] = (255, 0, 0), (0, 0, 255)
    found = read_picture(saved(Image.fromarray(wide), tmp_path / "w.png"), 8, 3)
    assert (found[:, 0] == (255, 0, 0)).all()
    assert (found[:, -1] == (0, 0, 255)).all()
    stripes = np.zeros((64, 64), np.uint8)
    stripes[:, ::2] = 255
    mean = read_picture(saved(Image.fromarray(stripes), tmp_path / "s.png"), 8, 1).astype(int)
    assert np.abs(mean[1:-1, 1:-1] - 127).max() <= 2
    assert (read_picture(saved(Image.new("L", (1, 300), 77), tmp_path / "t.png"), 8, 1) == 77).all()
    assert (read_picture(saved(Image.new("L", (2, 2), 77), tmp_path / "u.png"), 32, 3) == 77).all()


def test_moving_images_show_their_first_frame(tmp_path: Path) -> None:
    first, second = (Image.new("RGB", (8, 8), (v, v, v)) for v in (10, 240))
    for name in ("x.png", "x.webp"):
        path = saved(first, tmp_path / name, save_all=True, append_images=[second], lossless=True)
        assert (read_picture(path, 8, 1) == 10).all()


def test_a_decompression_bomb_is_rejected_before_it_is_decoded(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = tmp_path / "x.png"
    monkeypatch.setattr(Image.Image, "load", None)  # decoding would fail in another way
    path.write_bytes(png_of(10_000, 9_000, 1, 0, b""))
    assert complaint(path) == "10000 x 9000 pixels, expected at most 89 million"
    path.write_bytes(png_of(60_000, 60_000, 1, 0, b""))
    assert complaint(path) == "too many pixels, expected at most 89 million"
    monkeypatch.setattr(Image, "MAX_IMAGE_PIXELS", None)  # someone's program switched Pillow's check off
    assert complaint(path) == "60000 x 60000 pixels, expected at most 89 million"


def test_the_largest_image_is_still_read(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(pictures, "MAX_PIXELS", 64)
    path = saved(Image.fromarray(COLOR), tmp_path / "x.png")
    assert np.array_equal(read_picture(path, 8, 3), COLOR)
    saved(Image.new("L", (5, 13)), path)
    assert "5 x 13 pixels" in complaint(path)


def test_a_huge_file_is_rejected_unread(tmp_path: Path) -> None:
    path = tmp_path / "x.webp"
    with path.open("wb") as file:
        file.truncate(pictures.MAX_BYTES + 2**20)
    assert complaint(path) == "257 MiB, expected at most 256"


@pytest.mark.parametrize("suffix", ["png", "jpg", "webp"])
def test_damaged_files(tmp_path: Path, suffix: str) -> None:
    big = Image.fromarray(np.random.RandomState(1).randint(0, 256, (99, 99, 3)).astype(np.uint8))
    path = saved(big, tmp_path / f"x.{suffix}")
    whole = path.read_bytes()
    path.write_bytes(whole[: len(whole) // 2])
    assert complaint(path).startswith("damaged or truncated (")
    path.write_bytes(b"")
    assert complaint(path) == "an empty file"
    path.write_bytes(b"GIF89a and more")
    assert complaint(path) == "not a PNG, JPEG, WebP, TIFF, BMP or DICOM image"
    path.unlink()
    assert complaint(path) == "cannot be read (No such file or directory)"
