"""Label an image file with an exported model, without fssl.

fssl run smoke
fssl export runs/smoke --to onnx
pip install onnxruntime pillow
python examples/onnx_file.py smoke.onnx photo.png
"""

import json
import sys

import numpy as np
import onnxruntime
from PIL import Image, ImageOps


def pixels_of(file: str, size: int, channels: int) -> np.ndarray:
    """Return the uint8 pixels [size, size, channels] of a file, as fssl decodes it."""
    with Image.open(file, formats=["PNG", "JPEG", "WEBP", "TIFF", "BMP"]) as opened:
        image = ImageOps.exif_transpose(opened)  # upright
    if image.mode == "F":
        raise ValueError(f"{file}: floating-point pixels")
    if image.mode.startswith("I"):  # 16-bit grey: Pillow itself would clip it
        values = np.asarray(image).astype(np.int64).clip(0, 65535)
        image = Image.fromarray(((values * 255 + 32767) // 65535).astype(np.uint8))
    if image.has_transparency_data:
        grey = Image.new("RGBA", image.size, (128, 128, 128, 255))
        image = Image.alpha_composite(grey, image.convert("RGBA"))
    image = image.convert("RGB").convert("RGB" if channels == 3 else "L")  # CMYK becomes luma by way of color
    return np.asarray(image.resize((size, size), Image.Resampling.BICUBIC)).reshape(size, size, channels)


def predict(model: str, file: str) -> dict[str, float]:
    """Return the probability of every class for an image file."""
    session = onnxruntime.InferenceSession(model, providers=["CPUExecutionProvider"])
    facts = json.loads(session.get_modelmeta().custom_metadata_map["fssl"])
    pixels = pixels_of(file, facts["size"], facts["channels"])
    (probabilities,) = session.run(["probabilities"], {"images": pixels[None]})
    return dict(zip(facts["classes"], probabilities[0].tolist(), strict=True))


if __name__ == "__main__":
    answers = predict(*sys.argv[1:])
    print(max(answers, key=answers.__getitem__))
