"""The documentation as a site: it builds without a warning, has every page, and needs nothing from elsewhere."""

import os
import re
import subprocess
import sys
import threading
from collections.abc import Iterator
from functools import partial
from html.parser import HTMLParser
from http.server import SimpleHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import NamedTuple
from urllib.parse import unquote

import pytest

import fssl

pytest.importorskip("mkdocs")
pytest.importorskip("material")
pytest.importorskip("mkdocstrings")
pytest.importorskip("latex2mathml")

pytestmark = pytest.mark.slow
ROOT = Path(__file__).parents[1]
DOCS = sorted((ROOT / "docs").rglob("*.md"))
LOADED = {"script": "src", "img": "src", "iframe": "src", "source": "src", "link": "href"}


class Page(NamedTuple):
    """What a built page loads, where it leads, and where one may lead to in it."""

    loads: list[str]
    links: list[str]
    anchors: set[str]


class Reader(HTMLParser):
    def __init__(self) -> None:
        super().__init__()
        self.page = Page([], [], set())

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        given = {key: value or "" for key, value in attrs}
        if (key := LOADED.get(tag)) in given:
            self.page.loads.append(given[key])
        if tag == "a" and "href" in given:
            self.page.links.append(given["href"])
        self.page.anchors.update(value for name, value in given.items() if name in ("id", "name"))


def read(path: Path) -> Page:
    reader = Reader()
    reader.feed(path.read_text())
    return reader.page


@pytest.fixture(scope="module")
def site(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """As `make docs` builds it: a warning is an error."""
    folder = tmp_path_factory.mktemp("site")
    words = [sys.executable, "-m", "mkdocs", "build", "--strict", "--site-dir", str(folder)]  # --quiet also lets pass
    environment = {**os.environ, "NO_MKDOCS_2_WARNING": "1"}
    done = subprocess.run(words, cwd=ROOT, env=environment, capture_output=True, text=True, timeout=300)
    assert done.returncode == 0, done.stderr
    assert "WARNING" not in done.stderr
    return folder


@pytest.fixture(scope="module")
def built(site: Path) -> dict[Path, Page]:
    return {path: read(path) for path in site.rglob("*.html") if path.name != "404.html"}


def test_every_page_is_in_the_menu() -> None:
    menu = (ROOT / "mkdocs.yml").read_text().partition("\nnav:\n")[2]
    patterns = re.findall(r"([\w./*-]+\.md)$", menu, re.MULTILINE)
    listed = [str(page.relative_to(ROOT)) for pattern in patterns for page in ROOT.glob(pattern)]
    assert len(listed) == len({*listed})
    missing = {str(page.relative_to(ROOT)) for page in DOCS} - {*listed}
    assert not missing, f"add to nav in mkdocs.yml: {sorted(missing)}"


def test_pages_load_nothing_from_elsewhere(site: Path, built: dict[Path, Page]) -> None:
    outside = re.compile(r"^(\w+:)?//")
    assert len(built) > len(DOCS)
    assert {url for page in built.values() for url in page.loads if outside.match(url)} == set()
    styles = "".join(style.read_text() for style in site.rglob("*.css"))
    assert re.findall(r"url\(\"?'?(?:https?:)?//[^)]*|@import[^;]*", styles) == []


def test_links_and_anchors_of_the_site_lead_somewhere(built: dict[Path, Page]) -> None:
    assert sum(len(page.links) for page in built.values()) > 1000
    assert sorted(lost_links(built)) == []


def lost_links(built: dict[Path, Page]) -> Iterator[str]:
    for path, page in built.items():
        for link in {*page.links, *page.loads}:
            name, _, anchor = unquote(link).partition("#")
            if re.match(r"\w+:", name):
                continue
            target = (path.parent / name).resolve() if name else path
            has_anchor = not anchor or target not in built or anchor in built[target].anchors
            if not target.is_file() or not has_anchor:
                yield f"{path.name}: {link}"


def test_lists_and_formulas_are_drawn(built: dict[Path, Page]) -> None:
    """What the library does not take for a list or a table stays in a paragraph as it is."""
    for path in built:
        text = re.sub(r"<pre.*?</pre>", "", path.read_text(), flags=re.DOTALL)
        assert not re.search(r"^(- |\| )", text, re.MULTILINE), path
        assert "arithmatex" not in text, path
    (sage,) = (path for path in built if path.name == "sage.html")
    assert sage.read_text().count("<math") > 10


def test_the_reference_has_what_scripts_use(built: dict[Path, Page]) -> None:
    (reference,) = (page for path, page in built.items() if path.name == "api.html")
    places = {name: "reading" if name in fssl.READING else "api" for name in fssl.__all__}
    assert {f"fssl.{place}.{name}" for name, place in places.items()} <= reference.anchors
    assert {"fssl.methods.Method.step", "fssl.models.Net.fit"} <= reference.anchors


def test_the_leaderboard_sorts_by_a_column(site: Path, tmp_path: Path) -> None:
    """A click on a head sorts by it, a second one the other way; what is unknown stays last."""
    from helpers.browser import Browser  # skips where there is none

    browser = Browser(tmp_path)
    try:
        browser.driver.get((site / "docs" / "leaderboard.html").as_uri())
        browser.wait("return document.querySelector('th button') !== null")

        def column(name: str) -> list[str]:
            heads = [head.text for head in browser.all("table th")]
            place = heads.index(name) + 1
            return [cell.text for cell in browser.all(f"table tbody tr > :nth-child({place})")]

        def click(name: str) -> None:
            next(button for button in browser.all("th button") if button.text == name).click()

        methods = column("method")
        click("GiB")
        rising = column("GiB")
        click("GiB")
        falling = column("GiB")
        click("method")
        assert column("method") == sorted(methods)
    finally:
        browser.driver.quit()
    known = [float(text) for text in rising if text != "–"]
    assert (known, rising[len(known) :]) == (sorted(known), ["–"] * (len(rising) - len(known)))
    assert [float(text) for text in falling if text != "–"] == known[::-1]
    assert falling[len(known) :] == rising[len(known) :]
    assert len({*known}) > 2


def test_search_finds_a_page_without_another_host(site: Path, tmp_path: Path) -> None:
    """In a browser, from the little server that docs/install.md names."""
    from helpers.browser import Browser  # skips where there is none

    server = ThreadingHTTPServer(("127.0.0.1", 0), partial(SimpleHTTPRequestHandler, directory=str(site)))
    threading.Thread(target=server.serve_forever, daemon=True).start()
    browser = Browser(tmp_path)
    try:
        home = f"http://127.0.0.1:{server.server_port}/"
        browser.driver.get(f"{home}index.html?q=dirichlet")
        found = browser.wait("return [...document.querySelectorAll('.md-search-result__link')].map(link => link.href)")
        asked = browser.run("return performance.getEntriesByType('resource').map(entry => entry.name)")
    finally:
        browser.driver.quit()
        server.shutdown()
    assert any("labels.html" in link for link in found)
    assert len(asked) > 3
    assert [address for address in asked if not address.startswith((home, "data:", "blob:"))] == []
