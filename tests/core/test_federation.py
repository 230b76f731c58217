"""What a federation says of itself before it trains, and how it tests."""

from functools import partial

import pytest
import torch
from strict import Strict

from conftest import tiny_config
from fssl.augment.normalize import Normalize
from fssl.core.experiment import prepare
from fssl.core.federation import Federation

ONE_KNOWS = ("partition.labels=knowing-clients", "partition.labeled_clients=1", "partition.kind=shards")


def notes(*settings: str) -> list[str]:
    return Federation(prepare(tiny_config(*settings))).notes


def test_classes_without_a_label_are_pointed_out() -> None:
    """One client with labels, of few classes; where all labels are known, or at the server, there is nothing to say."""
    one = Federation(prepare(tiny_config(*ONE_KNOWS, "partition.classes_per_client=5")))
    assert one.labeled_counts is not None
    lacking = [str(c) for c, number in enumerate(one.labeled_counts.sum(0)) if not number]
    assert lacking
    assert one.notes == [
        f"{len(lacking)} of 10 classes have no label anywhere, and cannot be learned: {', '.join(lacking)}"
    ]
    assert notes(*ONE_KNOWS, "partition.classes_per_client=5", "method.name=fedavg-sl") == []
    assert notes("partition.labels=server") == []
    assert notes() == []


def test_all_tests_of_a_run_share_one_compiled_function(monkeypatch: pytest.MonkeyPatch) -> None:
    """Two normalizations and two halves of the test images, at one size of batch."""
    backend = Strict()
    monkeypatch.setattr(torch, "compile", partial(torch.compile, backend=backend))
    torch._dynamo.reset()
    federation = Federation(prepare(tiny_config("data.test=final")))
    federation.norms["authors_norm"] = Normalize([0.5] * 3, [0.2] * 3, "cpu")
    weights = federation.net.first
    for make in (federation.make_tester, federation.make_validator):
        compiled, plain = make(True), make(False)
        assert compiled is not None
        assert plain is not None
        assert torch.equal(compiled(weights), plain(weights))
    assert backend.graphs == 1
    of_test = federation.make_tester(False)(weights)
    assert not torch.equal(of_test[0], of_test[1])
