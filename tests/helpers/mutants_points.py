"""Single points of Python source that may be changed, and into what: the mutants of a file."""

import ast
import re
from collections.abc import Container, Iterator, Sequence
from itertools import pairwise
from typing import Any, NamedTuple

OPERATORS = {
    "<": ("<=", ">="),
    "<=": ("<", ">"),
    ">": (">=", "<="),
    ">=": (">", "<"),
    "==": ("!=",),
    "!=": ("==",),
    "is": ("is not",),
    "is not": ("is",),
    "in": ("not in",),
    "not in": ("in",),
    "and": ("or",),
    "or": ("and",),
    "+": ("-",),
    "-": ("+",),
    "*": ("/",),
    "/": ("*",),
    "//": ("*",),
    "%": ("*",),
    "&": ("|",),
    "|": ("&",),
}
OPERATOR = re.compile(rb"not\s+in\b|is\s+not\b|\b(?:and|or|in|is)\b|[<>=!]=|//|[<>+\-*/%&|]")
COMMENT = re.compile(rb"#[^\n]*")
PAIRS = (("min", "max"), ("amin", "amax"), ("argmin", "argmax"), ("minimum", "maximum"), ("any", "all"))
NAMES = {one: other for pair in PAIRS for one, other in (pair, pair[::-1])}
LEFT_ALONE = (ast.JoinedStr, ast.Assert)  # texts, and what cannot happen
OPPOSED = (ast.Compare, ast.BoolOp, ast.UnaryOp, ast.Constant)  # conditions that another mutant turns around


class Mutant(NamedTuple):
    """Another text at one place of a file."""

    start: int  # in bytes, as `end`
    end: int
    old: str
    new: str
    lines: range  # of the place
    head: range  # lines of the statement around it; of one with a body, those before that
    at_import: bool  # not in the body of a function

    def applied(self, source: bytes) -> bytes:
        return source[: self.start] + self.new.encode() + source[self.end :]


def mutants(source: bytes, lines: Container[int]) -> list[Mutant]:
    """Every mutant of some lines of a file that is Python itself, by place."""
    tree = ast.parse(source)
    every = Walk(source).below(tree, Around(range(0), True, False))
    found = {(m.start, m.end, m.new): m for m in every if any(line in lines for line in m.lines)}
    return [found[place] for place in sorted(found) if is_other(found[place].applied(source), tree)]


def is_other(source: bytes, tree: ast.Module) -> bool:
    """Whether this is Python, and not the same."""
    try:
        return ast.dump(ast.parse(source)) != ast.dump(tree)
    except SyntaxError:
        return False


class Around(NamedTuple):
    """What a node lies in."""

    head: range
    at_import: bool
    is_hint: bool


class Walk:
    """A walk through a file."""

    def __init__(self, source: bytes) -> None:
        self.source, self.begins = source, [0]
        for line in source.split(b"\n"):
            self.begins.append(self.begins[-1] + len(line) + 1)

    def below(self, node: ast.AST, around: Around) -> Iterator[Mutant]:
        """The mutants of a node and of all nodes in it."""
        if isinstance(node, LEFT_ALONE):
            return
        if isinstance(node, ast.stmt | ast.ExceptHandler | ast.match_case):
            around = around._replace(head=head(node))
        if isinstance(node, ast.Call):  # in a hint: the range of a setting
            around = around._replace(is_hint=False)
        if not around.is_hint:
            for start, end, new in self.changes(node):
                lines = range(self.line(start), self.line(end) + 1)
                old = self.source[start:end].decode()
                yield Mutant(start, end, old, new, lines, around.head, around.at_import)
        hints = [getattr(node, name, None) for name in ("annotation", "returns")]
        inside = node.body if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef) else []
        for child in ast.iter_child_nodes(node):
            at_import, is_hint = around.at_import and child not in inside, around.is_hint or child in hints
            yield from self.below(child, around._replace(at_import=at_import, is_hint=is_hint))

    def changes(self, node: Any) -> Iterator[tuple[int, int, str]]:
        """Texts to put in the place of a node or of a part of it."""
        match node:
            case ast.Expr(value=ast.Call() | ast.Await()) | ast.Raise():
                yield self.other(node, "pass")
            case ast.Compare(left=left, comparators=others):
                yield from self.operators([left, *others])
            case ast.BinOp(left=left, right=right) | ast.AugAssign(target=left, value=right):
                yield from self.operators([left, right])
            case ast.BoolOp(op=op, values=values):
                yield from self.operators(values)
                for i in range(len(values)):
                    rest = values[:i] + values[i + 1 :]
                    yield self.other(node, rest[0] if len(rest) == 1 else ast.BoolOp(op, rest))
            case ast.UnaryOp(op=ast.Not() | ast.USub(), operand=operand) if not isinstance(operand, ast.Constant):
                yield self.other(node, operand)
            case ast.Constant(value=bool(value)):
                yield self.other(node, str(not value))
            case ast.Constant(value=int(value)):
                yield from (self.other(node, str(value + step)) for step in (1, -1))
            case ast.Constant(value=float(value)):
                yield self.other(node, str(2 * value or 1.0))
            case ast.Name(id=name) | ast.Attribute(attr=name) if name in NAMES:
                _, end = self.place(node)
                yield end - len(name), end, NAMES[name]
            case ast.Slice(lower=lower, upper=upper):
                yield from (self.other(bound, "") for bound in (lower, upper) if bound)
            case ast.comprehension(ifs=conditions):
                yield from (self.other(condition, "True") for condition in conditions)
            case ast.If(test=test) | ast.While(test=test) | ast.IfExp(test=test) if not isinstance(test, OPPOSED):
                yield self.other(test, ast.UnaryOp(ast.Not(), test))

    def operators(self, operands: Sequence[ast.expr]) -> Iterator[tuple[int, int, str]]:
        """Other operators between operands; everything else there is brackets and comments."""
        for left, right in pairwise(operands):
            begin, end = self.place(left)[1], self.place(right)[0]
            between = COMMENT.sub(lambda found: b" " * len(found[0]), self.source[begin:end])
            if found := OPERATOR.search(between):
                for new in OPERATORS[" ".join(found[0].decode().split())]:
                    yield begin + found.start(), begin + found.end(), new

    def other(self, node: Any, new: str | ast.expr) -> tuple[int, int, str]:
        """Something else in the place of a node; later lines keep their numbers."""
        start, end = self.place(node)
        filled = "\n" * self.source.count(b"\n", start, end)
        return start, end, new + filled if isinstance(new, str) else f"({ast.unparse(new)}{filled})"

    def place(self, node: Any) -> tuple[int, int]:
        """Where a node begins and ends, in bytes."""
        return (
            self.begins[node.lineno - 1] + node.col_offset,
            self.begins[node.end_lineno - 1] + node.end_col_offset,
        )

    def line(self, place: int) -> int:
        return self.source.count(b"\n", 0, place) + 1


def head(node: Any) -> range:
    """The lines of a statement; of one with a body, those before that."""
    first, body = first_line(node), getattr(node, "body", None)
    return range(first, max(first + 1, first_line(body[0]))) if body else range(first, node.end_lineno + 1)


def first_line(node: Any) -> int:
    """The line that a statement begins in, with its decorators."""
    if isinstance(node, ast.match_case):
        return first_line(node.pattern)
    return min([node.lineno, *(each.lineno for each in getattr(node, "decorator_list", []))])
