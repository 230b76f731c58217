"""Text and tables for LaTeX."""

from collections.abc import Iterable, Sequence

from ..errors import printable

SPECIAL = {"\\": r"\textbackslash{}", "±": r"$\pm$", "α": r"$\alpha$", "−": "$-$", "×": r"$\times$", "κ": r"$\kappa$"}
SPECIAL |= {c: f"\\{c}" for c in "&%$#_{}"} | {"~": r"\textasciitilde{}", "^": r"\textasciicircum{}", "–": "--"}
SPECIAL |= {"<": r"\textless{}", ">": r"\textgreater{}", "|": r"\textbar{}"}


def escape_latex(text: str) -> str:
    """Text that LaTeX prints as it is, in one line."""
    return "".join(SPECIAL.get(c, c) for c in printable(text))


def bold(text: str) -> str:
    return rf"\textbf{{{text}}}"


def latex_row(texts: Iterable[str]) -> str:
    return " & ".join(texts) + r" \\"


def tabular(remarks: Iterable[str], head: Sequence[str], rows: Iterable[Sequence[str]]) -> str:
    """A table without a float of its own, after remarks that only the source shows; needs booktabs."""
    lines = [
        *(f"% {printable(remark)}" for remark in remarks),
        rf"\begin{{tabular}}{{l{'c' * (len(head) - 1)}}}",
        r"\toprule",
        latex_row(map(escape_latex, head)),
        r"\midrule",
        *map(latex_row, rows),
        r"\bottomrule",
        r"\end{tabular}",
    ]
    return "\n".join(lines) + "\n"
