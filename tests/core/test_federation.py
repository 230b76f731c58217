"""What a federation says of itself before it trains."""

from conftest import tiny_config
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
