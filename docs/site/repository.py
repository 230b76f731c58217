"""The site has the paths of the repository, so that a link that works in one works in the other."""

from pathlib import Path
from typing import Any

from mkdocs.config.defaults import MkDocsConfig
from mkdocs.structure.files import File, Files

ROOT = Path(__file__).parents[2]
OUTSIDE = (
    *("README.md", "CONTRIBUTING.md", "CODE_OF_CONDUCT.md", "RELEASING.md", "CHANGELOG.md", "LICENSE", "CITATION.cff"),
    *("results/README.md", "results/scoreboard.png", "src/fssl/presets/paper/README.md", "src/fssl/bench/reference.py"),
    "src/fssl/label/assign.py",
    *(path.relative_to(ROOT).as_posix() for path in sorted((ROOT / "results/benchmark/entries").rglob("*.json"))),
    *(f"examples/{path.name}" for path in sorted((ROOT / "examples").glob("*.py"))),
)
OURS = "docs/site/"  # these hooks


def on_config(config: MkDocsConfig) -> None:
    """In the menu, a pattern such as docs/methods/*.md stands for all of these pages."""
    config.nav = expanded(config.nav)


def expanded(menu: Any) -> Any:
    if isinstance(menu, dict):
        return {title: expanded(part) for title, part in menu.items()}
    if not isinstance(menu, list):
        return menu
    return [page for part in menu for page in (pages_of(part) if isinstance(part, str) else [expanded(part)])]


def pages_of(pattern: str) -> list[str]:
    return sorted(path.relative_to(ROOT).as_posix() for path in ROOT.glob(pattern)) if "*" in pattern else [pattern]


def on_files(files: Files, config: MkDocsConfig) -> Files:
    """Pages and pictures of docs/ below docs/, the files outside that pages link to, and the look of the theme."""
    theirs = [file for file in files if file.generated_by or not file.abs_src_path.startswith(config.docs_dir)]
    paths = sorted(path.relative_to(ROOT) for path in Path(config.docs_dir).rglob("*") if path.is_file())
    names = [*OUTSIDE, *(name for path in paths if not (name := path.as_posix()).startswith(OURS))]
    return Files([*theirs, *(File.generated(config, name, abs_src_path=str(ROOT / name)) for name in names)])
