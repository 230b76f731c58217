"""`fssl docs`: the pages in a terminal, and messages that point to them."""

import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

import fssl as package
from fssl.catalog.listings import docs_folder, first_line, pages
from helpers.command import exit_code

ROOT = Path(__file__).parents[2]
SOURCE = Path(package.__file__).parent


@pytest.fixture
def fssl(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> Callable[..., tuple[Any, str, str]]:
    def call(*words: str) -> tuple[Any, str, str]:
        code = exit_code(monkeypatch, *words)
        said = capsys.readouterr()
        return code, said.out, said.err

    return call


def test_every_page_is_a_topic_of_its_own() -> None:
    assert docs_folder().resolve() == ROOT / "docs"
    files = [*docs_folder().glob("*.md"), *docs_folder().glob("methods/*.md")]
    assert {*pages().values()} == {*files}
    assert [page for page in files if not first_line(page)] == []


def test_topics_are_listed_with_a_line_each(fssl: Callable[..., tuple[Any, str, str]]) -> None:
    code, out, _ = fssl("docs")
    assert code == 0
    lines = {line.split()[0]: line for line in out.splitlines() if line.split()}
    assert pages().keys() <= lines.keys()
    assert "Where are your labels?" in lines["labels"]


@pytest.mark.parametrize("topic", ["labels", "sage", "security"])
def test_a_page_is_printed_as_it_is(topic: str, fssl: Callable[..., tuple[Any, str, str]]) -> None:
    assert fssl("docs", topic) == (0, pages()[topic].read_text(), "")


def test_an_unknown_topic_is_one_line_with_near_names(fssl: Callable[..., tuple[Any, str, str]]) -> None:
    code, out, err = fssl("docs", "lables")
    assert (code, out, err.count("\n")) == (2, "", 1)
    assert err.startswith("fssl: topic 'lables' is unknown; did you mean 'labels'?")


def test_messages_point_to_topics_that_exist_and_to_no_file_of_a_clone() -> None:
    texts = {path: path.read_text() for path in [*SOURCE.rglob("*.py"), *SOURCE.rglob("*.toml")]}
    named = {topic for text in texts.values() for topic in re.findall(r"fssl docs ([\w-]+)", text)}
    assert {"deploy", "own-images", "adding-a-method"} <= named <= pages().keys()
    links = re.compile(r"\bdocs/[\w/-]+\.md")
    assert [str(path) for path, text in texts.items() if links.search(text)] == []
