"""What a test's measures cost beside plain accuracy: 10,000 images, 100 classes, two normalizations, ResNet-8x4.

    python benchmarks/measures.py [--times 50] [--device cuda]

Both tests run in turn, compiled on a GPU as in a run, and end with their copy to the host. One has every measure, the
other the loss and the number of right answers.
"""

import argparse
import time
from collections.abc import Callable
from statistics import median

import torch
import torch.nn.functional as F
from fssl.augment.normalize import Normalize
from torch import Tensor

from fssl.bench.shapes import config_of, images_of
from fssl.core.evaluate import BATCH, TestPool, make_score, make_tester, read_tests
from fssl.core.experiment import prepare
from fssl.core.federation import Federation, on_device
from fssl.core.static_norm import Faster
from fssl.engines.lanes import compiles, faster, set_up_torch
from fssl.engines.named_tensors import to
from fssl.models import Net
from fssl.types import Weights

ROUND = 2.354  # seconds of a paper round on an H200, see results/README.md
WARM_UP = 3


def make_plain_test(net: Net, pool: TestPool, norms: list[Normalize], faster: Faster) -> Callable[[Weights], Tensor]:
    """The same passes over the same batches, with nothing but loss and right answers."""

    def score(weights: Weights, rows: Tensor) -> Tensor:
        images, labels = pool.images[rows], pool.labels[rows]
        scores = []
        for normalize in norms:
            logits = net.infer(weights, normalize(images)).logits
            loss = F.cross_entropy(logits, labels, reduction="sum")
            scores.append(torch.stack([loss, (logits.argmax(-1) == labels).sum()]))
        return torch.stack(scores)

    run = faster(score)
    n, batch = len(pool.labels), BATCH[pool.labels.device.type]

    @torch.no_grad()
    def test(weights: Weights) -> Tensor:
        starts = range(0, n, batch)
        return torch.stack([run(weights, torch.arange(s, s + batch, device=pool.labels.device)) for s in starts]).sum(0)

    return test


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--times", type=int, default=50)
    parser.add_argument("--device", default="auto", help="auto, cuda or cpu; on a CPU this takes hours")
    given = parser.parse_args()
    config = config_of("paper", "sage", [f"compute.device={given.device}"])
    federation = Federation(prepare(config, images_of("paper", config)))
    set_up_torch(federation)
    net, card, fast = federation.net, federation.dataset.card, faster(federation, compiles(federation))
    pool = TestPool(*on_device(federation.test, federation.device))
    norms = [Normalize(card.train_mean, std, federation.device) for std in (card.train_std, (0.2,) * card.channels)]
    full, plain = make_tester(fast(make_score(net)), pool, norms), make_plain_test(net, pool, norms, fast)
    weights = to(net.first, federation.device)
    tests: dict[str, Callable[[], object]] = {
        "every measure": lambda: read_tests(full(weights), card.num_classes),
        "loss and accuracy": lambda: plain(weights).cpu(),
    }
    seconds: dict[str, list[float]] = {name: [] for name in tests}
    for turn in range(WARM_UP + given.times):
        for name, test in tests.items():
            begin = time.perf_counter()
            test()
            if turn >= WARM_UP:
                seconds[name].append(time.perf_counter() - begin)
    for name, times in seconds.items():
        print(f"{name}: {1000 * median(times):.2f} ms ({1000 * min(times):.2f} to {1000 * max(times):.2f})")
    more = median(seconds["every measure"]) - median(seconds["loss and accuracy"])
    print(f"the difference: {1000 * more:.2f} ms, {100 * more / ROUND:.2f} % of a paper round of {ROUND} s")


if __name__ == "__main__":
    main()
