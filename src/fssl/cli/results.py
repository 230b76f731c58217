"""Commands about runs: show, predict, export, compare, tables, figures, report and pack."""

from pathlib import Path
from typing import Annotated

import typer

from ..errors import UserError, complain, several
from .options import Overwrite, console, say

OneRun = Annotated[Path, typer.Argument(help="A run folder.")]
Runs = Annotated[list[Path], typer.Argument(help="Run folders, or folders of them.")]
WhichModel = Annotated[str, typer.Option(help="Choose from several: best, plain or ema; default: model.safetensors.")]
Measure = Annotated[str, typer.Option(help="accuracy, balanced_accuracy, macro_f1 or auroc; default: the runs' own.")]


def show(run: OneRun) -> None:
    """Show a run's results and a small curve. The run may still be training.

    Example: `fssl show runs/smoke`
    """
    from ..reports.show import print_run

    print_run(console, run)


def predict(
    run: OneRun,
    images: Annotated[Path | None, typer.Argument(help="An image or a folder; default: the run's test images.")] = None,
    out: Annotated[Path, typer.Option(help="The file to write.")] = Path("predictions.csv"),
    data_dir: Annotated[Path | None, typer.Option(help="The dataset's folder, if it has moved.")] = None,
    probabilities: Annotated[
        bool, typer.Option("--probabilities", help="Add one probability column per class.")
    ] = False,
    overwrite: Overwrite = False,
    model: WhichModel = "",
    measures: Annotated[Path | None, typer.Option(help="Folder for measures and a confusion matrix.")] = None,
) -> None:
    """Label images with a run's model, and write image, class and confidence to a CSV file.

    Images below the folder are prepared as in training; other files are listed and skipped. If all images are in
    folders named like classes, a table shows how many of each class are correct, and `--measures` writes precision,
    recall, F1, AUROC, calibration and the confusion matrix into files and a page. An unfinished run uses its newest
    checkpoint.

    Example: `fssl predict runs/own photos --model best --measures measures`
    """
    from ..records.store import RunFolder

    if images and data_dir:
        raise UserError(
            "data.dir has no effect with images: it is the folder of the run's own test images; remove one", "data.dir"
        )
    RunFolder(run).check_run()
    from ..inference.predict import Output
    from ..inference.predict import predict as label

    label(console, run, images, Output(out, overwrite, probabilities), data_dir, model, measures)


def export(
    run: OneRun,
    to: Annotated[str, typer.Option(help="onnx, pt2 (a program of torch.export) or safetensors (plain weights).")],
    out: Annotated[Path | None, typer.Option(help="The file to write; default: the run's name and the format.")] = None,
    overwrite: Overwrite = False,
    model: WhichModel = "",
) -> None:
    """Write a run's model for other programs, and a JSON file that describes its input and output.

    ONNX files and PyTorch programs take uint8 images, normalize them and return probabilities. fssl writes a file only
    if its answers equal those of `fssl predict`.

    Example: `fssl export runs/smoke --to onnx --out served/digits.onnx`
    """
    from ..inference.export import export_model

    new_folder = out and not out.parent.exists()
    file, difference, notes = export_model(run, to, out, overwrite, model)
    if new_folder:
        say(f"new folder: {file.parent}")
    say(
        f"{file} and {file.name}.json; its answers equal those of the run's model (largest difference {difference:.0e})"
    )
    for line in notes:
        say(line)


def compare(
    runs: Runs,
    by: Annotated[
        list[str] | None, typer.Option(help="One setting, e.g. partition.alpha: a column for each of its values.")
    ] = None,
    png: Annotated[Path | None, typer.Option(help="Also draw curves (or results, with --by) into this PNG.")] = None,
    svg: Annotated[Path | None, typer.Option(help="The same picture as SVG.")] = None,
    pdf: Annotated[Path | None, typer.Option(help="The same picture as PDF, for LaTeX.")] = None,
    title: Annotated[str, typer.Option(help="Draw one panel instead of three, with this title.")] = "",
    csv: Annotated[Path | None, typer.Option(help="Also write a line per run into this CSV file.")] = None,
    tex: Annotated[Path | None, typer.Option(help="Also write the tables into this LaTeX file (booktabs).")] = None,
    against: Annotated[str, typer.Option(help="Compare this line of the table with each of the others.")] = "",
    measure: Measure = "",
) -> None:
    """Compare runs: mean and spread over seeds, optionally a picture, CSV and LaTeX.

    Runs that differ only in their seed are repetitions of one setting. Methods are compared within a
    task: all settings are equal except method and seed. If a method ran with and without SAGE, the gain is shown.

    Example: `fssl compare runs --by partition.alpha --png alpha.png --tex alpha.tex`
    """
    if by and len(by) > 1:
        raise UserError(f"--by {' --by '.join(by)}: results are shown by one setting; give --by once")
    from ..reports.compare import Files, compare_runs

    compare_runs(console, runs, Files(png, svg, pdf, csv, tex, title), by[0] if by else "", against, measure)


def tables(
    runs: Runs,
    out: Annotated[Path, typer.Option(help="Folder for the files.")] = Path("tables"),
    table: Annotated[int | None, typer.Option(help="Also print this table, 1 to 8.")] = None,
    dataset: Annotated[str | None, typer.Option(help="With --table: this dataset only.")] = None,
    short: Annotated[bool, typer.Option("--short", help="Also take runs with fewer rounds than the paper's.")] = False,
    setting: Annotated[
        str | None,
        typer.Option(help="Another paper's table instead: proxyfl, proxyfl-20, semifl, flfl or twin-sight."),
    ] = None,
) -> None:
    """Fill the paper's Tables 1 to 8 with runs, next to the printed numbers: Markdown, CSV and LaTeX.

    A run's settings decide its cells, not the name of its folder. Cells whose setting differs from the
    paper's are marked with the reason. Empty cells are counted, and runs without a cell are listed. A scoreboard shows
    which of the paper's numbers have runs, and how far apart they are, next to the run-to-run noise.

    Example: `fssl tables runs --table 2 --out paper/tables`
    """
    if setting is not None:
        from ..paper.tables import make_other

        if table is not None or dataset is not None:
            raise UserError("--table and --dataset have no effect with --setting, another paper's table; remove them")
        return make_other(console, runs, out, setting, short)
    from ..paper.tables import Shown, make_tables

    make_tables(console, runs, out, Shown(table, dataset), short)


def figures(
    runs: Runs,
    out: Annotated[Path, typer.Option(help="Folder for the files.")] = Path("figures"),
    only: Annotated[list[str] | None, typer.Option(help="A figure's name, e.g. 2a (repeatable).")] = None,
) -> None:
    """Draw the paper's figures from runs: PNG, SVG and PDF, with an index of captions and sources.

    A figure shows the runs that exist; index and screen list the commands for missing ones. Figure 16 needs no run.

    Example: `fssl figures runs/paper-600 --only 4 --only 15 --out paper/figures`
    """
    from ..paper.figures import make_figures

    make_figures(console, runs, out, only or [])


def report(
    runs: Runs,
    out: Annotated[Path, typer.Option(help="The file to write.")] = Path("report.html"),
    watch: Annotated[bool, typer.Option("--watch", help="Serve the page on this machine while runs train.")] = False,
    port: Annotated[int, typer.Option(min=0, max=65535, help="With --watch; 0 chooses a free one.")] = 0,
    measure: Measure = "",
) -> None:
    """Write a report: one HTML file with text, tables and charts, which needs no network.

    The page shows results with filters, curves that you can zoom, pseudo-labels by class, each client's images,
    hardware, and the command of each run. `--watch` serves it to browsers on this machine and updates it.

    Example: `fssl report runs/demo --out demo.html`
    """
    if watch:
        from ..reports.page.live import watch as serve

        return serve(runs, port, say, measure)
    from ..reports.page.write import write_page

    data = write_page(runs, out, measure)
    say(f"report: {out} ({several(data['facts']['runs'], 'run')}, {out.stat().st_size / 1e6:.1f} MB)")
    if data["notes"]:
        notes, lines = several(len(data["notes"]), "note"), several(data["damaged"], "damaged line")
        complain(f"{notes} on the records, {lines} skipped: see the page")


def pack(
    runs: Runs,
    undo: Annotated[bool, typer.Option("--undo", help="Write the plain rounds.jsonl again.")] = False,
) -> None:
    """Pack the records of runs for publishing: without loss, a tenth of the size.

    `rounds.json.xz` replaces `rounds.jsonl`. Every command reads either file, and a resumed run unpacks it.

    Example: `fssl pack runs/demo`
    """
    from ..reports.pack import pack_runs

    for line in pack_runs(runs, undo):
        say(line)


records = typer.Typer(
    help='Manage the records of runs.\n\nExample: `fssl records accept runs/mine --remark "why"`',
    no_args_is_help=True,
    rich_markup_mode="markdown",
)


@records.command()
def accept(
    runs: Annotated[list[Path], typer.Argument(help="Run folders whose records were edited on purpose.")],
    remark: Annotated[str, typer.Option(help="What was edited, and why; shown in tables and pages.")],
) -> None:
    """Accept edited records, so that other commands read them again.

    `accepted.json` keeps the remark. An accepted run cannot be resumed. Damaged lines stay damaged.

    Example: `fssl records accept runs/mine --remark "model.start named a private folder"`
    """
    from ..records.accepted import accept as seal
    from ..records.store import RunFolder

    for run in runs:
        say(f"{run}: accepted ({seal(RunFolder(run), remark)})")
