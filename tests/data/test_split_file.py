"""Partitions from files: the way there and back, damage, and runs that are made of one."""

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from safetensors.torch import load_file

from fssl.config import as_tables
from fssl.core.experiment import prepare
from fssl.core.federation import Federation
from fssl.data.partition import make_partition
from fssl.data.sources import load
from fssl.data.split_file import read_partition, save_partition
from fssl.errors import RunError, UserError
from fssl.records.store import LOCK
from helpers.command import SMALL, Fssl, records
from helpers.small import tiny_config

GOOD: list[Any] = [
    {"labeled": [0, 4], "unlabeled": []},
    {"labeled": [1], "unlabeled": [5, 2]},
    {"labeled": [], "unlabeled": [3]},
]


def write(content: Any, path: Path = Path("split.json")) -> Path:
    path.write_text(json.dumps(content))
    return path


@pytest.fixture(autouse=True)
def in_a_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)


def test_a_partition_comes_back_as_it_was() -> None:
    labels = np.random.RandomState(3).randint(0, 5, 200)
    dealt = make_partition(labels, 5, kind="dirichlet", alpha=0.1, clients=7, per_class=3)
    assert min(map(len, dealt.labeled)) == 0
    save_partition(dealt, Path("split.json"))
    found, digest = read_partition(Path("split.json"), 200)
    for ours, theirs in zip(found, dealt, strict=True):
        assert all(np.array_equal(a, b) and a.dtype == b.dtype for a, b in zip(ours, theirs, strict=True))
    assert read_partition(Path("split.json"), 200, digest)[1] == digest
    with pytest.raises(UserError, match=r"split\.json' has changed: partition\.digest is 'abc' in the settings"):
        read_partition(Path("split.json"), 200, "abc")


def test_the_documented_form_is_read() -> None:
    found, _ = read_partition(write({"clients": GOOD}), 6)
    assert [rows.tolist() for rows in found.labeled] == [[0, 4], [1], []]
    assert [rows.tolist() for rows in found.unlabeled] == [[], [5, 2], [3]]


def replaced(number: int, **changes: Any) -> dict[str, Any]:
    return {"clients": [client | (changes if k == number else {}) for k, client in enumerate(GOOD)]}


@pytest.mark.parametrize(
    ("content", "message"),
    [
        ([], 'expected {"clients": [...]}'),
        ({"clients": []}, 'expected {"clients": [...]}'),
        ({"clients": GOOD, "server": []}, 'expected {"clients": [...]}'),
        ({"clients": [[0, 1]]}, 'client 0: expected {"labeled": [...], "unlabeled": [...]}'),
        ({"clients": [*GOOD[:2], {"labeled": [3]}]}, 'client 2: expected {"labeled"'),
        (replaced(1, labels=[]), 'client 1: expected {"labeled"'),
        (replaced(1, labeled="1"), "client 1, 'labeled': expected a list of whole numbers"),
        (replaced(1, labeled=[1.0]), "client 1, 'labeled': expected a list of whole numbers"),
        (replaced(2, unlabeled=[True]), "client 2, 'unlabeled': expected a list of whole numbers"),
        (replaced(2, unlabeled=[]), "client 2 has no image"),
        (replaced(2, unlabeled=[3, 6]), "client 2 has row 6, expected 0 to 5"),
        (replaced(2, unlabeled=[-1]), "client 2 has row -1, expected 0 to 5"),
        (replaced(2, unlabeled=[10**30]), f"client 2 has row {10**30}, expected 0 to 5"),
        (replaced(2, unlabeled=[3, 4]), "row 4 belongs to clients 0 and 2"),
        (replaced(1, labeled=[1, 2]), "row 2 belongs to client 1, twice"),
        ({"clients": GOOD[:2]}, "1 of 6 images have no client: rows 3"),
        ({"clients": [{"labeled": [0], "unlabeled": []}]}, "5 of 6 images have no client: rows 1, 2, 3 and 2 more"),
        ({"clients": [{"labeled": [], "unlabeled": [*range(6)]}]}, "no client has a labeled image"),
    ],
)
def test_what_is_no_partition_is_rejected_in_one_line(content: Any, message: str) -> None:
    with pytest.raises(UserError) as refused:
        read_partition(write(content), 6)
    assert str(refused.value).startswith(f"partition.file = 'split.json': {message}")
    assert "\n" not in str(refused.value)


@pytest.mark.parametrize("content", [b"", b'{"clients": [', b"\xff\xfe", b"[" * 100_000])
def test_what_is_no_json_is_rejected(content: bytes) -> None:
    Path("split.json").write_bytes(content)
    with pytest.raises(UserError, match=r"^partition\.file = 'split\.json': expected a JSON file$"):
        read_partition(Path("split.json"), 6)


def digits_split(file: str, seed: int = 0) -> None:
    """What `run` below deals by itself."""
    labels = load("digits").train.labels
    dealt = make_partition(labels, 10, kind="dirichlet", alpha=0.5, clients=6, per_class=8, seed=seed)
    save_partition(dealt, Path(file))


def test_a_run_from_a_file_is_the_run_that_was_dealt(fssl: Fssl) -> None:
    digits_split("partition.json")  # a name that a run folder has for something else
    dealt = ("--set", "partition.kind=dirichlet", "--set", "partition.alpha=0.5")
    assert fssl("run", "smoke", *SMALL, *dealt, "--out", "dealt").code == 0
    assert fssl("run", "smoke", *SMALL, "--set", "partition.file=partition.json", "--out", "listed").code == 0
    assert records("dealt") == records("listed")
    models = [load_file(f"{run}/model.safetensors") for run in ("dealt", "listed")]
    assert all(torch.equal(models[0][key], models[1][key]) for key in models[0])
    assert Path("listed/split.json").read_bytes() == Path("partition.json").read_bytes()
    assert json.loads(Path("listed/partition.json").read_text()) == json.loads(Path("dealt/partition.json").read_text())
    recorded = Path("listed/config.toml").read_text()
    assert "clients = 6" in recorded
    assert f'digest = "{read_partition(Path("partition.json"), 1437)[1]}"' in recorded
    assert "alpha" not in recorded.partition("[partition]")[2].partition("[model]")[0]


def test_a_run_resumes_with_its_own_file_only(fssl: Fssl) -> None:
    digits_split("split.json")
    assert fssl("run", "smoke", *SMALL, "--set", "partition.file=split.json", "--out", "run").code == 0
    on = ("run", "run", "--resume", "--set", "train.rounds=3")
    digits_split("other.json", seed=1)
    said = fssl(*on, "--set", "partition.file=other.json")
    assert (said.code, said.err.count("\n")) == (2, 1)
    assert "other.json' has changed: partition.digest is" in said.err
    again = ("run", "smoke", *SMALL, "--resume", "--out", "run", "--set", "partition.file=other.json")
    assert "contains another run: partition.digest is" in fssl(*again).err
    assert "contains another run" in fssl("run", "smoke", *SMALL, "--resume", "--out", "run").err
    assert fssl(*on, "--set", "partition.file=run/split.json").code == 0


def test_a_run_resumes_by_its_folder_wherever_its_file_is(
    fssl: Fssl, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """By its own copy, which is not its name on record; a copy that was changed does not count."""
    digits_split("mine.json")
    assert fssl("run", "smoke", *SMALL, "--set", "partition.file=mine.json", "--out", "run").code == 0
    begun = Path("run/config.toml").read_text()
    digits_split("mine.json", seed=1)
    assert fssl("run", "run", "--resume", "--set", "train.rounds=3").code == 0
    Path("mine.json").unlink()
    (tmp_path / "elsewhere").mkdir()
    monkeypatch.chdir("elsewhere")
    assert fssl("run", "../run", "--resume", "--set", "train.rounds=4").code == 0
    assert Path("../run/config.toml").read_text() == begun.replace("rounds = 2", "rounds = 4")
    assert len(records("../run")) == 4
    digits_split("../run/split.json", seed=1)
    said = fssl("run", "../run", "--resume", "--set", "train.rounds=5")
    kept = "(a run folder keeps a copy: partition.file = 'RUN/split.json')"
    lost = f"partition.file = 'mine.json' cannot be read: No such file or directory {kept}"
    assert said == (2, "", f"fssl: {lost}\n")


@pytest.mark.slow
def test_a_run_that_never_began_a_round_keeps_the_name_of_its_file(fssl: Fssl) -> None:
    digits_split("mine.json")
    assert fssl("run", "smoke", *SMALL, "--set", "partition.file=mine.json", "--out", "run").code == 0
    Path("bare").mkdir()
    for name in ("config.toml", "split.json", LOCK):
        Path("run", name).rename(Path("bare", name))
    Path("mine.json").unlink()
    assert fssl("run", "bare", "--resume").code == 0
    assert 'file = "mine.json"' in Path("bare/config.toml").read_text()


def test_a_failed_step_is_taken_again_wherever_the_file_is(fssl: Fssl, monkeypatch: pytest.MonkeyPatch) -> None:
    """The copy is next to the step; a changed one is ignored."""
    digits_split("mine.json")
    failing = ("--set", "partition.file=mine.json", "--set", "train.lr=1e20", "--debug")
    assert fssl("run", "smoke", *SMALL, *failing, "--out", "run").code == 1
    digits_split("mine.json", seed=1)
    said = fssl("replay", "run/failed-step.safetensors")
    assert (said.code, "NotFiniteError" in said.err) == (1, True), said.err
    Path("mine.json").unlink()
    monkeypatch.chdir("run")
    said = fssl("replay", "failed-step.safetensors")
    assert (said.code, "NotFiniteError" in said.err) == (1, True), said.err
    digits_split("split.json", seed=1)
    said = fssl("replay", "failed-step.safetensors")
    assert (said.code, said.err.count("\n")) == (2, 1)
    expected = "its partition.file = 'mine.json' differs from its run folder's; check it, then trust it (--trust)"
    assert expected in said.err
    said = fssl("replay", "failed-step.safetensors", "--trust")
    assert said.err.startswith("fssl: partition.file = 'mine.json' cannot be read: No such file or directory")


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        (
            ["partition.kind=iid"],
            "partition.kind = 'iid' has no effect with partition.file = 'split.json': the file assigns images",
        ),
        (["data.labels_per_class=5"], "data.labels_per_class = 5 has no effect with partition.file"),
        (["partition.labels=all-clients"], "partition.labels = 'all-clients' has no effect with partition.file"),
        (["partition.clients=7"], "partition.clients = 7, but there are 6 clients in 'split.json'"),
        (["train.clients_per_round=7"], "train.clients_per_round = 7: there are only 6 clients in 'split.json'"),
        (["partition.digest=abc"], "partition.file = 'split.json' has changed"),
        (["data.name=synthetic"], "expected 0 to 999"),
        (["data.name=folder"], "partition.file = 'split.json' has no effect with data.name = 'folder'"),
        (["partition.file=gone.json"], "partition.file = 'gone.json' cannot be read: No such file or directory"),
        (["partition.file=."], "partition.file = '.' cannot be read: Is a directory"),
    ],
)
def test_what_does_not_go_with_a_file_is_rejected(fssl: Fssl, settings: list[str], message: str) -> None:
    digits_split("split.json")
    more = [word for setting in settings for word in ("--set", setting)]
    said = fssl("run", "smoke", "--set", "partition.file=split.json", *more, "--out", "run")
    assert (said.code, said.out, said.err.count("\n")) == (2, "", 1)
    assert message in said.err
    assert not Path("run").exists()


def test_a_checksum_needs_a_file(fssl: Fssl) -> None:
    said = fssl("run", "smoke", "--set", "partition.digest=abc")
    assert said == (
        2,
        "",
        "fssl: partition.digest = 'abc' has no effect with partition.file unset; remove it, or give partition.file\n",
    )


def test_clients_of_a_file_train() -> None:
    """Of three clients the first knows all its labels, the second some, the third none."""
    size = len(load("synthetic").train.labels)
    rows = np.random.RandomState(0).permutation(size).tolist()
    clients = [(rows[:50], []), (rows[50:60], rows[60:100]), ([], rows[100:])]
    write({"clients": [{"labeled": labeled, "unlabeled": unlabeled} for labeled, unlabeled in clients]})
    federation = Federation(prepare(tiny_config("partition.file=split.json")))
    assert [(site.counts.labeled, site.counts.pool) for site in federation.sites] == [
        (50, 50),
        (10, 50),
        (0, size - 100),
    ]


def test_sites_of_a_deployment_read_no_such_file() -> None:
    pytest.importorskip("flwr", reason="Flower is not installed: pip install 'fssl[flower]'")
    from fssl.deploy.home import ServerPart
    from fssl.deploy.orders import check
    from fssl.engines.flower.client_app import OwnSite, at_site
    from fssl.engines.flower.fleet import for_clients

    config = tiny_config("partition.file=split.json")
    assert for_clients(config).partition.file == str(Path("split.json").resolve())  # in a simulation they do
    with pytest.raises(RunError, match=r"^partition\.file: sites read no files that the server names$"):
        at_site(config, OwnSite(0, 4, Path(), None))
    said = r"^partition\.file = 'split.json' does not work with a deployment: sites have no such file; remove it$"
    with pytest.raises(UserError, match=said):
        check(ServerPart(Path(), "127.0.0.1", [], 9000, [], 1, 1, 1), as_tables(config), Path("run"), resume=False)
