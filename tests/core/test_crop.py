"""What a run crops: images with a margin, or enlarged ones, with the same random numbers."""

from collections.abc import Callable

import numpy as np
import pytest
import torch
from PIL import Image
from torch import Tensor
from torch.utils._pytree import tree_leaves

from fssl.augment.pillow import strong_pil, weak_pil
from fssl.config import expand, presets, read_toml
from fssl.core.federation import Federation
from fssl.core.step import rows_of
from fssl.engines.local import LocalEngine

Make = Callable[..., Federation]
CROPS = ("data.crop=pad", "data.crop=resize")


def by_pillow(federation: Federation, view: str, enlarge: bool) -> Tensor:
    """The inputs that a client's first round shows of a view, one image after another."""
    draw, make = federation.plan(1, 0).draw, strong_pil if view.endswith("strong") else weak_pil
    rows, noise = rows_of(view, draw).flatten().tolist(), draw.noise[view].flatten(0, -2).tolist()
    pictures = (Image.fromarray(np.squeeze(federation.dataset.train.images[row])) for row in rows)
    made = np.stack([make(picture, n, enlarge) for picture, n in zip(pictures, noise, strict=True)])
    return federation.pool.normalize(torch.from_numpy(made).view(len(rows), *federation.dataset.train.images.shape[1:]))


@pytest.mark.parametrize("crop", CROPS)
def test_a_step_shows_the_crops_of_the_setting(crop: str, make_federation: Make) -> None:
    """All views, weak and strong: those of the image by itself, whatever the pool holds."""
    federation = make_federation(crop, "method.name=sage", "train.steps_per_round=3")
    views = federation.recipe.views
    assert {*views} == {"x", "u_weak", "u_strong"}
    batch = federation.pool.batch(federation.plan(1, 0).draw, views, with_truth=False)
    for view in views:
        assert torch.equal(batch.views[view].flatten(0, 1), by_pillow(federation, view, crop == CROPS[1]))


def test_random_numbers_are_the_same(make_federation: Make) -> None:
    pad, resize = (tree_leaves(make_federation(crop).plan(2, 1).draw) for crop in CROPS)
    assert all(torch.equal(a, b) for a, b in zip(pad, resize, strict=True))


def test_a_test_and_statistics_see_whole_images(make_federation: Make) -> None:
    """Only views are enlarged: the same model has the same measures and the same static BatchNorm."""
    found = []
    for crop in CROPS:
        federation = make_federation(crop, "partition.labels=server", "server.static_norm=sites")
        weights, at_server = federation.net.first, federation.make_collect()
        assert at_server is not None
        at_client, test = federation.make_client_measure(), LocalEngine(federation).test
        found.append(tree_leaves((at_server(weights), at_client(weights, 0), test(weights))))
    assert all(a == b if isinstance(a, int) else torch.equal(a, b) for a, b in zip(*found, strict=True))


def test_who_published_enlarged_images() -> None:
    found = {name for name in presets() if any(c.data.crop == "resize" for _, c in expand(read_toml(name)))}
    assert found == {"benchmark/track-c", "settings/cbafed", "settings/rscfed", "settings/semianagg"}
