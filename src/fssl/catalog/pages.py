"""The pages of the documentation: an installed package brings them along, a clone has them in docs/."""

from pathlib import Path

PACKAGE = Path(__file__).parents[1]


def folder() -> Path:
    """Where the pages lie."""
    installed = PACKAGE / "docs"
    return installed if installed.is_dir() else PACKAGE.parents[1] / "docs"


def pages() -> dict[str, Path]:
    """Every page by its topic, those of methods last."""
    home = folder()
    general = {page.stem.lower(): page for page in home.glob("*.md")}  # SECURITY.md is written so
    return {**dict(sorted(general.items())), **{page.stem: page for page in sorted(home.glob("methods/*.md"))}}


def title(page: Path) -> str:
    """What its first line says."""
    with page.open(encoding="utf-8") as lines:
        return next(lines).lstrip("# ").rstrip()
