"""Train on images of your own, from arrays or from a folder, and label images with the model.

python examples/own_images.py
python examples/own_images.py photos

`photos` has your images in `train/CLASS` and `test/CLASS` (docs/own-images.md). Without it, arrays are made up.
"""

import sys
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

import fssl

SETTINGS = ("method.name=sage", "data.labels_per_class=8", "partition.clients=4", "train.rounds=8")


def stripes(number: int, seed: int) -> tuple[NDArray[np.uint8], NDArray[np.int64]]:
    """Return noisy gray images [number, 16, 16] and their classes: 0 for flat stripes, 1 for upright ones."""
    random = np.random.default_rng(seed)
    labels = random.integers(0, 2, number)
    down, across = np.indices((16, 16))
    along = np.where(labels[:, None, None], across, down)
    shades = 128 + 60 * np.sin(along + random.uniform(0, 6, (number, 1, 1))) + random.normal(0, 60, (number, 16, 16))
    return shades.clip(0, 255).astype(np.uint8), labels


def main(folder: str = "", out: str = "runs/own-images") -> None:
    if folder:
        settings = ("data.name=imagefolder", f"data.dir={folder}", "data.size=32")
        experiment = fssl.experiment("smoke", *SETTINGS, *settings)
        images = Path(folder, "test")
    else:
        mine = fssl.dataset(stripes(200, seed=0), stripes(60, seed=1), classes=("flat", "upright"))
        experiment = fssl.experiment("smoke", *SETTINGS, dataset=mine)
        images, _ = stripes(5, seed=2)
    summary = fssl.run(experiment, out)
    print(f"test accuracy {summary['train_norm']['last']:.1f} %, {out}")
    answers = fssl.load(out).predict(images)
    for name, label, confidence in zip(answers.names, answers.labels, answers.confidence, strict=True):
        print(f"{name}: {label} ({confidence:.2f})")


if __name__ == "__main__":
    main(*sys.argv[1:])
