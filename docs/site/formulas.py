"""Formulas become MathML, which browsers show without a script."""

import html
import re

from latex2mathml.converter import convert
from mkdocs.config.defaults import MkDocsConfig
from mkdocs.plugins import get_plugin_logger
from mkdocs.structure.files import Files
from mkdocs.structure.pages import Page

log = get_plugin_logger("formulas")
FORMULA = re.compile(r'<(span|div) class="arithmatex">\\([(\[])(.*?)\\[)\]]</\1>', re.DOTALL)
SAME = {r"\arg\m": r"\operatorname{arg}\,\m", r"\Big\|": r"\Big‖"}  # what the converter does not know


def on_page_content(content: str, page: Page, config: MkDocsConfig, files: Files) -> str:
    """The page with every formula drawn; one that cannot be drawn is a warning, which ends a strict build."""

    def drawn(found: re.Match[str]) -> str:
        latex = html.unescape(found[3]).strip()
        made = mathml(latex, "block" if found[2] == "[" else "inline")
        if "\\" in made:
            log.warning(f"{page.file.src_uri}: not drawn: {latex}")
        return made

    return FORMULA.sub(drawn, content)


def mathml(latex: str, display: str) -> str:
    """The formula, or its source where that is no formula; commands that are not known keep their backslash."""
    try:
        for ours, same in SAME.items():
            latex = latex.replace(ours, same)
        return convert(latex, display=display)
    except Exception:  # of many kinds
        return html.escape(latex)
