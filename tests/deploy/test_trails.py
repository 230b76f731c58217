"""What a site and a server write down of messages, and how `fssl deploy audit` shows it."""

import csv
import json
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import pytest
import torch

from helpers.command import Fssl

pytest.importorskip("flwr", reason="Flower is not installed: pip install 'fssl[flower]'")
from flwr.app import ConfigRecord, Context, Message, RecordDict
from flwr.supercore.task_identity import TaskIdentity

from fssl.engines.flower.messages import SiteError, pack
from fssl.engines.flower.trail import AuditedGrid, audited, note_names
from fssl.records.audit import TRAIL, append, read_trail

TaskIdentity.task_id = TaskIdentity.run_id = TaskIdentity.node_id = 1  # messages want to know who sends them
UPLOAD = {"weights.params.fc": torch.zeros(3), "weights.buffers.mean": torch.zeros(2)}


def order() -> Message:
    message = Message(RecordDict({"payload": pack(UPLOAD)}), dst_node_id=5, message_type="train")
    message.metadata.__dict__["_run_id"] = 9
    return message


def site(folder: Path | None) -> Context:
    return cast("Context", SimpleNamespace(node_config={"folder": str(folder)} if folder else {}))


def honest(message: Message, context: Context) -> Message:
    facts = ConfigRecord({"client": 1, "round": 2, "num_samples": 30, "file": "/data/secret.png"})
    return Message(RecordDict({"upload": pack(UPLOAD), "facts": facts}), reply_to=message)


def test_a_site_writes_what_came_and_what_left_and_no_values(tmp_path: Path) -> None:
    note_names.cache_clear()
    audited(order(), site(tmp_path), honest)
    found = read_trail(tmp_path / TRAIL)
    assert found.faults == []
    assert [entry.what for entry in found.entries] == ["tensors", "came", "tensors", "left"]
    assert found.entries[2].facts == {"record": "upload", "names": sorted(UPLOAD)}
    left = found.entries[3].facts
    assert {key: left[key] for key in ("run", "kind")} == {"run": "9", "kind": "train"}
    assert left["holds"]["upload"]["tensors"] == 2
    assert left["holds"]["upload"]["bytes"] >= 4 * 5
    facts = left["holds"]["facts"]
    assert {key: facts[key] for key in facts if key != "bytes"} == {"client": 1, "round": 2, "num_samples": 30}
    assert "secret" not in (tmp_path / TRAIL).read_text()


def test_a_site_writes_why_it_rejected_an_order(tmp_path: Path) -> None:
    def reject(message: Message, context: Context) -> Message:
        raise SiteError("privacy.aggregation = 'plain', but the operator of this site requires 'secagg+'")

    with pytest.raises(SiteError):
        audited(order(), site(tmp_path), reject)
    last = read_trail(tmp_path / TRAIL).entries[-1]
    assert (last.what, last.facts["reason"][:30]) == ("rejected", "privacy.aggregation = 'plain',")


def test_nothing_leaves_a_site_that_cannot_write_it_down(tmp_path: Path) -> None:
    (tmp_path / TRAIL).mkdir()
    with pytest.raises(SiteError, match="the site's audit trail cannot be written"):
        audited(order(), site(tmp_path), honest)


def test_a_simulation_writes_nothing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    assert not audited(order(), site(None), honest).has_error()
    assert not list(tmp_path.iterdir())


def test_a_server_writes_what_goes_where(tmp_path: Path) -> None:
    reply = honest(order(), site(None))
    grid = SimpleNamespace(push_messages=lambda messages: ["1"], pull_messages=lambda ids: [reply], get_node_ids=list)
    watched = AuditedGrid(cast("Any", grid), tmp_path / TRAIL, "run", [])
    assert (watched.push_messages([order()]), watched.pull_messages(["1"]), watched.get_node_ids()) == (
        ["1"],
        [reply],
        [],
    )
    entries = [entry for entry in read_trail(tmp_path / TRAIL).entries if entry.what != "tensors"]
    assert [(entry.what, [*entry.facts["holds"]]) for entry in entries] == [
        ("left", ["payload"]),
        ("came", ["facts", "upload"]),
    ]
    assert entries[0].facts["site"] == "node 5"


def test_the_command_shows_checks_and_exports(fssl: Fssl, tmp_path: Path) -> None:
    (tmp_path / "home/site-1").mkdir(parents=True)
    file = tmp_path / "home/site-1" / TRAIL
    append(file, "connected", server="=1+1")
    append(file, "left", holds={"upload": {"bytes": 7}})
    said = fssl("deploy", "audit", "site-1", "--home", "home", "--csv", "a.csv", "--json", "a.json")
    assert said.code == 0
    digest = read_trail(file).entries[-1].digest
    assert f"2 entries, chain whole; the last digest is {digest}" in " ".join(said.out.split())
    (head, first, second) = csv.reader((tmp_path / "a.csv").read_text().splitlines())
    assert head == ["number", "time", "what", "details", "digest"]
    assert (first[3], second[3]) == ("server =1+1", 'holds {"upload": {"bytes": 7}}')
    assert [entry["digest"] for entry in json.loads((tmp_path / "a.json").read_text())][-1] == digest
    file.write_text(file.read_text().replace(":7", ":8"))
    broken = fssl("deploy", "audit", "site-1", "--home", "home")
    assert broken.code == 1
    assert "line 2: entry 2 was changed, or the one before it" in broken.err
    missing = fssl("deploy", "audit", "site-2", "--home", "home")
    assert (missing.code, missing.err) == (2, "fssl: home/site-2 has no audit.jsonl; trails here: site-1\n")
