"""The functions that read run folders without PyTorch: runs, comparisons, reports and the paper's tables."""

import warnings
from collections.abc import Sequence
from pathlib import Path

from .errors import UserError
from .paper.markup import grid
from .paper.tables import filled_tables
from .reports.compare import Comparison, Files
from .reports.compare import compare as compare_folders
from .reports.formats import Grid
from .reports.page.write import write_page
from .reports.runs import Run, find_runs
from .system.machine import as_path

__all__ = ["compare", "report", "runs", "tables"]

Folder = str | Path


def runs(*folders: Folder) -> list[Run]:
    """Return every run with a finished round in the folders, and warn of each run that cannot be read.

    Args:
        folders: Run folders, or folders of them.

    Returns:
        The runs; each has `config`, `lines` (the record), `curve` (accuracy by round), `result`, `is_finished`
        (whether its last round is done, or it stopped early), `damaged` (lines of rounds.jsonl that were skipped) and
        `remark` (of an edited record that was accepted).

    Raises:
        UserError: No folder is given, or none of them holds a run.

    Examples:
        >>> {run.config.method.name: run.result for run in fssl.runs("runs")}
    """
    found = find_runs(as_paths("runs", folders))
    for line in found.left_out:
        warnings.warn(line, stacklevel=2)
    return found.runs


def compare(
    *folders: Folder,
    by: str = "",
    against: str = "",
    measure: str = "",
    png: Folder | None = None,
    svg: Folder | None = None,
    pdf: Folder | None = None,
    csv: Folder | None = None,
    tex: Folder | None = None,
    title: str = "",
) -> Comparison:
    """Compare runs as `fssl compare` does: mean and spread over seeds, and verdicts as sentences.

    Args:
        folders: Run folders, or folders of them.
        by: A setting, such as "partition.alpha": the table gets a column for each of its values.
        against: The line of the table that all others are compared with.
        measure: "accuracy", "balanced_accuracy", "macro_f1" or "auroc"; by default the runs' own.
        png: Also draw the picture into this file; `svg` and `pdf` likewise.
        csv: Also write a line per run into this file.
        tex: Also write the tables into this LaTeX file.
        title: Draw one panel instead of three, with this title.

    Returns:
        The comparison: `results` (a dict per run, unrounded), `tables` and `sentences` by task. `print` shows the
        tables, and so does a notebook.

    Raises:
        UserError: There are no runs, or an argument does not fit them.

    Examples:
        >>> print(fssl.compare("runs", png="curves.png"))
    """
    files = Files(as_file(png), as_file(svg), as_file(pdf), as_file(csv), as_file(tex), title)
    files.check()
    compared = compare_folders(as_paths("compare", folders), by, against, measure)
    compared.check(files)
    for _ in compared.write(files):
        pass
    return compared


def report(*folders: Folder, out: Folder = "report.html", measure: str = "") -> Path:
    """Write a report of runs as `fssl report` does: one self-contained HTML file.

    Args:
        folders: Run folders, or folders of them.
        out: The file to write.
        measure: The measure that runs are judged by, as for `fssl.compare`.

    Returns:
        The path of the file.

    Raises:
        UserError: There are no runs, or the file cannot be written.

    Examples:
        >>> fssl.report("runs", out="report.html")
    """
    file = Path(out)
    for note in write_page(as_paths("report", folders), file, measure)["notes"]:
        warnings.warn(note, stacklevel=2)
    return file


def tables(*folders: Folder, out: Folder = "tables", short: bool = False) -> dict[str, Grid]:
    """Fill the SAGE paper's Tables 1 to 8 with runs as `fssl tables` does.

    Args:
        folders: Run folders, or folders of them.
        out: The folder for the files: Markdown, CSV, LaTeX and the scoreboard.
        short: Whether to use runs with fewer rounds than the paper's as well.

    Returns:
        Each table by its name, such as "Table 1": `head` and `rows` of texts, our numbers next to the printed ones.

    Raises:
        UserError: No folder is given, or none of them holds a run.

    Examples:
        >>> fssl.tables("runs")["Table 1"].rows
    """
    result, _ = filled_tables(as_paths("tables", folders), Path(out), short)
    return {f"Table {filled.table.number}": grid(filled) for filled in result.tables}


def as_paths(name: str, folders: Sequence[Folder]) -> list[Path]:
    """Return run folders as paths; reject a call without any."""
    if not folders:
        raise UserError(f'fssl.{name}: expected folders of runs, for example fssl.{name}("runs")')
    return [as_path("folder", folder) for folder in folders]


def as_file(file: Folder | None) -> Path | None:
    return None if file is None else Path(file)
