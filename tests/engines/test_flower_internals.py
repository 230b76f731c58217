"""What we change in Flower's SuperNode, on its own state of messages."""

import hashlib
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

pytest.importorskip("flwr", reason="Flower is not installed: pip install 'fssl[flower]'")
from flwr.cli.build import build_fab_from_disk
from flwr.supercore.fab import Fab
from flwr.supercore.object_store import ObjectStoreFactory
from flwr.supercore.task_identity import TaskIdentity
from flwr.supernode.nodestate import NodeStateFactory

from fssl import __version__
from fssl.engines.flower.bundle import app_digest, app_files, code_digest
from fssl.engines.flower.internals import keep_in_step, unanswered
from helpers.soak_operator import Site, packed

TaskIdentity.task_id = TaskIdentity.run_id = TaskIdentity.node_id = 1  # messages want to know who sends them


def message(name: str, reply_to: str = "") -> Any:
    return SimpleNamespace(metadata=SimpleNamespace(message_id=name, reply_to_message_id=reply_to, run_id=1))


class Node:
    """Flower's two halves of a turn, as far as they move messages."""

    def __init__(self) -> None:
        self.sent: list[str] = []
        self.state: Any = NodeStateFactory(objectstore_factory=ObjectStoreFactory()).state()
        self.arrives: list[tuple[str, bool]] = []  # messages, and whether all of them comes
        keep_in_step(self)

    def _pull_and_store_message(self, state: Any) -> int | None:
        if not self.arrives:
            return None
        name, is_whole = self.arrives.pop(0)
        state.store_message(message(name))
        return 1 if is_whole else None

    def _push_messages(self, state: Any) -> None:
        replies = state.get_messages_legacy(is_reply=True)
        assert replies, "it would wait for ever"
        for reply in replies[:1]:
            self.sent.append(reply.metadata.message_id)
            state.delete_messages(message_ids=[reply.metadata.message_id, reply.metadata.reply_to_message_id])


def test_a_message_that_did_not_arrive_is_forgotten() -> None:
    node = Node()
    node.arrives = [("half", False), ("whole", True)]
    assert node._pull_and_store_message(state=node.state) is None
    assert unanswered(node.state) == []
    assert node._pull_and_store_message(state=node.state) == 1
    assert unanswered(node.state) == ["whole"]


def test_an_answer_to_another_message_does_not_count() -> None:
    """As when a program's crash is noticed long after its message."""
    node = Node()
    node.arrives = [("now", True)]
    node.state.store_message(message("late answer", "before"))
    node._pull_and_store_message(state=node.state)
    with pytest.raises(AssertionError, match="it would wait for ever"):
        node._push_messages(state=node.state)
    assert node.sent == ["late answer"]
    node.state.store_message(message("answer", "now"))
    node._push_messages(state=node.state)
    assert node.sent == ["late answer", "answer"]
    assert unanswered(node.state) == []


def test_the_own_app_is_let_in(tmp_path: Path) -> None:
    """As Flower's command packs it from a folder, with what lies around there."""
    for name, text in app_files().items():
        (tmp_path / name).parent.mkdir(exist_ok=True)
        (tmp_path / name).write_text(text)
    content = build_fab_from_disk(tmp_path)
    assert hashlib.sha256(content).hexdigest() == app_digest()
    site = Site()
    assert site.turn(Fab(app_digest(), content, {})) == 9
    assert (site.looked_into, site.answers) == (1, [])


CHANGED = {
    "code": {"fsslapp/client_app.py": "import os"},
    "an empty line": {"fsslapp/client_app.py": app_files()["fsslapp/client_app.py"] + "\n"},
    "a file more": {"fsslapp/more.py": "import os"},
    "a setting": {"pyproject.toml": app_files()["pyproject.toml"].replace("quorum = 2", "quorum = 1")},
}


@pytest.mark.parametrize("what", CHANGED)
@pytest.mark.parametrize("says", ["the truth", "what is expected"])
def test_another_app_is_answered_by_an_error_and_not_looked_into(what: str, says: str) -> None:
    """Also if the server says that it is ours."""
    site, fab = Site(), packed({**app_files(), **CHANGED[what]})
    assert site.turn(fab, claimed=app_digest() if says == "what is expected" else "") == 9
    (answer,) = site.answers
    assert site.looked_into == 0
    assert answer.metadata.reply_to_message_id is not None
    assert site.rejected == [answer.error.reason]
    assert f"rejected the server's app {fab.hash_str[:12]}, without running it" in answer.error.reason
    assert f"this site has fssl {__version__}, code {code_digest()[:12]}" in answer.error.reason


def test_another_version_is_named_and_cannot_fill_the_log() -> None:
    site = Site()
    site.turn(packed({**app_files(), **CHANGED["code"]}), version="0.0.9\x1b[2J" + 1000 * "x")
    assert "the server runs fssl 0.0.9[2Jxxx" in site.answers[0].error.reason
    assert len(site.answers[0].error.reason) < 400
