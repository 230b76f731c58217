"""One self-contained HTML file: the page's files, the plotting library and the data."""

import base64
import gzip
import hashlib
import html
import json
from collections.abc import Iterable
from functools import cache
from pathlib import Path
from string import Template
from typing import Any

from ...errors import UserError
from ...system.files import write_file
from ...system.machine import check_file, cores
from ..runs import choose_measure, find_runs
from .content import content, for_page

PAGE_FILES = Path(__file__).parent


def write_page(paths: list[Path], out: Path, measure: str = "") -> dict[str, Any]:
    """Write the report of all runs below `paths`; return the data it shows."""
    check_file("out", out, ".html", ".htm")
    plotly()  # fail before the work if it is missing
    choose_measure([], measure)  # reject an unknown measure
    data = content(find_runs(paths, for_page, cores()).by_measure(measure), page_title(paths))
    write_file(out, page(data["title"], data))
    return data


def page_title(paths: Iterable[Path]) -> str:
    return ", ".join(path.resolve().name or str(path) for path in paths)


def page(title: str, data: dict[str, Any] | None) -> str:
    """Return the page with its data; without data it requests them from its server."""
    script = (PAGE_FILES / "page.js").read_text("utf-8")
    return Template((PAGE_FILES / "index.html").read_text("utf-8")).substitute(
        title=html.escape(title).encode("utf-8", "replace").decode(),  # a folder's name may contain any bytes
        policy=html.escape(policy(script, is_live=data is None)),
        style=(PAGE_FILES / "page.css").read_text("utf-8"),
        script=script,
        plotly=compress_text(plotly()),
        data="" if data is None else compress_text(json.dumps(data, separators=(",", ":"), allow_nan=False)),
        mode="live" if data is None else "file",
    )


def policy(script: str, is_live: bool) -> str:
    """Return the page's content security policy: only its two scripts, and no connections (if live, to its server)."""
    scripts = " ".join(f"'sha256-{digest(text)}'" for text in (script, plotly()))
    rules = {
        "default-src": "'none'",
        "script-src": scripts,
        "style-src": "'unsafe-inline'",  # the plotting library sets styles
        "img-src": "data: blob:",
        "connect-src": "'self'" if is_live else "'none'",
        "base-uri": "'none'",
        "form-action": "'none'",
    }
    return "; ".join(f"{name} {value}" for name, value in rules.items())


def digest(text: str) -> str:
    return base64.b64encode(hashlib.sha256(text.encode()).digest()).decode()


def compress_text(text: str) -> str:
    """Return text as base64 of gzip: a third of the size, and nothing in it can end an HTML element."""
    return base64.b64encode(gzip.compress(text.encode(), 6, mtime=0)).decode()


@cache
def plotly() -> str:
    """Return the plotting library's source."""
    # Plotly's Python package contains the browser's part, so nothing is downloaded, and pip updates it. Its 4.8 MB are
    # 1.9 MB when compressed, and include zoom, hover and export.
    try:
        from plotly.offline import get_plotlyjs
    except ImportError:
        raise UserError("a report needs a package: pip install 'fssl[report]'") from None
    return str(get_plotlyjs())
