"""The site has the paths of the repository, so that a link that works in one works in the other."""

from pathlib import Path

from mkdocs.config.defaults import MkDocsConfig
from mkdocs.structure.files import File, Files

ROOT = Path(__file__).parents[2]
OUTSIDE = (
    *("README.md", "CONTRIBUTING.md", "CODE_OF_CONDUCT.md", "RELEASING.md", "CHANGELOG.md", "LICENSE", "CITATION.cff"),
    *("results/README.md", "results/scoreboard.png", "src/fssl/presets/paper/README.md", "src/fssl/bench/reference.py"),
    "src/fssl/label/assign.py",
    *(f"examples/{name}.py" for name in ("own_rule", "own_network", "own_images", "serve")),
)
OURS = "docs/site/"  # these hooks


def on_files(files: Files, config: MkDocsConfig) -> Files:
    """Pages and pictures of docs/ below docs/, the files outside that pages link to, and the look of the theme."""
    theirs = [file for file in files if file.generated_by or not file.abs_src_path.startswith(config.docs_dir)]
    paths = sorted(path.relative_to(ROOT) for path in Path(config.docs_dir).rglob("*") if path.is_file())
    names = [*OUTSIDE, *(name for path in paths if not (name := path.as_posix()).startswith(OURS))]
    return Files([*theirs, *(File.generated(config, name, abs_src_path=str(ROOT / name)) for name in names)])
