"""Export the embedded digits as folders of PNG files: three sites, to try a federation with your own images."""

from pathlib import Path

from PIL import Image

from ...errors import UserError
from ...system.machine import obstacle
from ..partition import make_partition
from ..sources import load

SITES = ("site-1", "site-2", "site-3")
PER_CLASS = 10  # labeled images of each digit, over all sites
ALPHA = 1.0  # sites differ in size and in their mix of digits


def export_digits(root: Path, at_server: bool = False) -> None:
    """Write `clients/site-N/`, `test/` and, if it has the labels, `server/` into a new folder, always the same way."""
    if root.exists() and not (root.is_dir() and not any(root.iterdir())):
        raise UserError(f"'{root}' already exists; choose a new folder")
    if reason := obstacle(root):
        raise UserError(f"'{root}' cannot be written: {reason}")
    card, train, test, *_ = load("digits")
    dealt = make_partition(
        train.labels,
        card.num_classes,
        kind="dirichlet",
        alpha=ALPHA,
        clients=len(SITES),
        per_class=PER_CLASS,
        who="server" if at_server else "all-clients",
    )
    files = {root / "test" / str(label) / f"{row:04d}.png": test.images[row] for row, label in enumerate(test.labels)}
    files |= {root / "server" / str(train.labels[row]) / f"{row:04d}.png": train.images[row] for row in dealt.server}
    for name, labeled, unlabeled in zip(SITES, dealt.labeled, dealt.unlabeled, strict=True):
        site = root / "clients" / name
        files |= {site / "labeled" / str(train.labels[row]) / f"{row:04d}.png": train.images[row] for row in labeled}
        files |= {site / "unlabeled" / f"{row:04d}.png": train.images[row] for row in unlabeled}
    for path, pixels in files.items():
        path.parent.mkdir(parents=True, exist_ok=True)
        Image.fromarray(pixels[..., 0]).save(path)
