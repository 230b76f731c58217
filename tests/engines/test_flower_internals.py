"""What we change in Flower's SuperNode, on its own state of messages."""

from types import SimpleNamespace
from typing import Any

import pytest

pytest.importorskip("flwr", reason="Flower is not installed: pip install 'fssl[flower]'")
from flwr.supercore.object_store import ObjectStoreFactory
from flwr.supernode.nodestate import NodeStateFactory

from fssl.engines.flower.internals import keep_in_step, unanswered


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
