"""Write measures of predictions with known truth: numbers, tables, and a page with the confusion matrix."""

import json
from collections.abc import Iterable, Iterator, Sequence
from html import escape
from pathlib import Path
from string import Template
from typing import Any

from ..errors import escape_unprintable
from ..probes.host import BINS, Answers
from ..records.rounds import MEASURES
from ..system.files import as_csv, write_file

PAGE = "index.html"
QUALITY_FILES = (
    PAGE,
    "measures.json",
    "classes.csv",
    "confusion.csv",
    "confusion.svg",
)  # the files in a folder of measures
RIGHT, WRONG = "#0072B2", "#D55E00"  # as on the report's page
FEW_CLASSES = 25  # most classes whose cells have room for a number
BOARD = 720  # units of the drawing for the cells of all classes
COLUMNS = ("images", "precision", "recall", "f1", "auroc")
DOCUMENT = Path(__file__).with_suffix(".html")


def measures_text(answers: Answers) -> str:
    """Return all measures except accuracy in one line."""
    known = {title: getattr(answers, name) for name, title in MEASURES.items() if name != "accuracy"}
    return ", ".join(f"{title} {value:.2f} %" for title, value in known.items() if value is not None)


def write_measures(folder: Path, answers: Answers, classes: Sequence[str], title: str) -> None:
    """Write numbers, tables by class, the confusion matrix and its picture, and a page with all of them."""
    facts = answers.facts()
    numbers = {name: getattr(answers, name) for name in MEASURES}
    columns = facts["classes"]
    rows = [{"class": name, **{c: columns[c][i] for c in COLUMNS}} for i, name in enumerate(classes)]
    confusion = (
        {"class": name, **dict(zip(classes, row, strict=True))}
        for name, row in zip(classes, facts["confusion"], strict=True)
    )
    contents = (
        page(answers, classes, title, rows),
        json.dumps({"class_names": [*classes], **numbers, **facts}) + "\n",
        as_csv(["class", *COLUMNS], rows),
        as_csv(["class", *classes], confusion),
        matrix_picture(answers, classes, alone=True),
    )
    for name, content in zip(QUALITY_FILES, contents, strict=True):
        write_file(folder / name, content)


def page(answers: Answers, classes: Sequence[str], title: str, rows: Iterable[dict[str, Any]]) -> str:
    numbers = {words: getattr(answers, name) for name, words in MEASURES.items()}
    shown = ((words, "–" if value is None else f"{value:.2f} %") for words, value in numbers.items())
    images = ("images", f"{answers.confusion.sum():,}")
    return Template(DOCUMENT.read_text("utf-8")).substitute(
        title=quoted(title),
        numbers="".join(f"<div><dt>{words}</dt><dd>{text}</dd></div>" for words, text in (*shown, images)),
        matrix=matrix_picture(answers, classes),
        table=table(rows),
        calibration=calibration_picture(answers),
    )


def quoted(text: str) -> str:
    """Return text escaped for HTML and SVG; a folder's name may contain any bytes."""
    return escape(escape_unprintable(text)).encode("utf-8", "replace").decode()


def table(rows: Iterable[dict[str, Any]]) -> str:
    def cell(value: Any) -> str:
        return f"<td>{'–' if value is None else f'{value:.1f}' if isinstance(value, float) else value}</td>"

    body = (f"<tr><th>{quoted(row['class'])}</th>{''.join(cell(row[c]) for c in COLUMNS)}</tr>" for row in rows)
    head = "".join(f"<th>{name}</th>" for name in ("class", *COLUMNS[:3], "F1", "AUROC"))
    return f"<table><thead><tr>{head}</tr></thead><tbody>{''.join(body)}</tbody></table>"


def matrix_picture(answers: Answers, classes: Sequence[str], alone: bool = False) -> str:
    """Return the matrix as SVG; with `alone`, as a separate file in black on white."""
    step = BOARD / len(classes)
    names = [quoted(name if len(name) <= FEW_CLASSES else f"{name[: FEW_CLASSES - 1]}…") for name in classes]
    size = min(15.0, 0.8 * step)
    margin = 40 + 0.6 * size * max(map(len, names))
    parts = [*cells(answers, names, margin, step), *labels(names, margin, step, size)]
    whole = BOARD + margin + 10
    head = f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {whole:.0f} {whole:.0f}" role="img" '
    look = 'font-family="system-ui, sans-serif" aria-label="Confusion matrix">'
    paper = f'<rect width="{whole:.0f}" height="{whole:.0f}" fill="#ffffff"/>' if alone else ""
    return "".join([head, look, paper, *parts, "</svg>\n"])


def cells(answers: Answers, names: Sequence[str], margin: float, step: float) -> Iterator[str]:
    """Yield a square for each pair of classes that occurs, with its number where there is room."""
    gap = 1.5 if len(names) <= FEW_CLASSES else 0
    for i, (row, total) in enumerate(zip(answers.confusion.tolist(), answers.images.tolist(), strict=True)):
        for j, number in enumerate(row):
            share = number / total if total else 0
            x, y, color = margin + j * step, margin + i * step, RIGHT if i == j else WRONG
            depth = f"{max(share**0.6, 0.06):.3f}" if number else "0.05" if i == j else "0"
            title = f"<title>{names[i]}, taken for {names[j]}: {number:,} of {total:,} ({100 * share:.1f} %)</title>"
            box = f'width="{step - gap:.2f}" height="{step - gap:.2f}" rx="{3 if gap else 0}"'
            yield f'<rect x="{x:.2f}" y="{y:.2f}" {box} fill="{color}" fill-opacity="{depth}">{title}</rect>'
            if number and len(names) <= FEW_CLASSES:
                ink = ' style="fill:#ffffff"' if share > 0.5 else ""
                place = f'x="{x + (step - gap) / 2:.1f}" y="{y + (step - gap) / 2:.1f}"'
                middle = f'text-anchor="middle" dominant-baseline="central" font-size="{min(16, 0.34 * step):.1f}"'
                yield f'<text {place} {middle}{ink} pointer-events="none">{number}</text>'


def labels(names: Sequence[str], margin: float, step: float, size: float) -> Iterator[str]:
    """Yield class names to the left of the rows, and turned above the columns, and the titles of both."""
    every = max(1, round(9 / step))  # with many classes, only as many as are readable
    size, edge, middle = size if every == 1 else 9.0, margin - 8, margin + BOARD / 2
    for i, name in enumerate(names):
        if i % every == 0:
            at = margin + (i + 0.5) * step
            yield words(name, edge, at, size, "end")
            yield words(name, at, edge, size, "start", turned=True)
    yield words("predicted", middle, 14, 14, quiet=True)
    yield words("true", 14, middle, 14, quiet=True, turned=True)


def words(
    text: str, x: float, y: float, size: float, anchor: str = "middle", quiet: bool = False, turned: bool = False
) -> str:
    """Return a text of the drawing, upright or turned to the left."""
    turn = f"translate({x:.1f} {y:.1f})" + (" rotate(-90)" if turned else "")
    look = f'text-anchor="{anchor}" dominant-baseline="central" font-size="{size:.1f}"'
    kind = ' class="quiet"' if quiet else ""
    return f'<text transform="{turn}" {look}{kind}>{text}</text>'


def calibration_picture(answers: Answers) -> str:
    """Draw bars of the right answers by confidence, and the line of a calibrated model."""
    wide, high, left, base = 560.0, 300.0, 50.0, 320.0
    right_end = left + wide
    parts = [f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {right_end + 20:.0f} 370" role="img">']
    for share in (0.0, 0.5, 1.0):
        y, text = base - share * high, f"{100 * share:.0f} %"
        parts.append(f'<line class="axis" x1="{left}" x2="{right_end}" y1="{y}" y2="{y}"/>')
        parts += [
            words(text, left - 6, y, 12, "end", True),
            words(text, left + share * wide, base + 16, 12, quiet=True),
        ]
    for i, (images, confidence, right) in enumerate(answers.bins.T.tolist()):
        if images:
            tall, x = high * right / images, left + i * wide / BINS
            title = (
                f"{images:.0f} images: sure to {100 * confidence / images:.1f} %, {100 * right / images:.1f} % right"
            )
            box = f'x="{x + 1:.1f}" y="{base - tall:.1f}" width="{wide / BINS - 2:.1f}" height="{tall:.1f}"'
            parts.append(f'<rect {box} fill="{RIGHT}" fill-opacity="0.75"><title>{title}</title></rect>')
    ends = f'x1="{left}" y1="{base}" x2="{right_end}" y2="{base - high}"'
    parts.append(f'<line {ends} stroke="{WRONG}" stroke-dasharray="6 4"/>')
    parts.append(words("confidence", left + wide / 2, base + 40, 13, quiet=True))
    return "".join([*parts, "</svg>\n"])
