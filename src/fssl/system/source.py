"""What a function of a file is made of: its own source and everything of the file that it uses, comments aside."""

import ast
from collections.abc import Iterable, Iterator

from .digest import short_sum

Statement = ast.stmt
# Names with which code reaches others by text, so that no reading tells which ones.
BY_TEXT = {"eval", "exec", "globals", "vars", "locals", "__import__", "import_module"}
DOCUMENTED = (ast.Module, ast.ClassDef, ast.FunctionDef, ast.AsyncFunctionDef)


def source_digest(text: str | bytes, function: str) -> str:
    """A checksum of the statements that a function needs, in the file's order.

    Comments, layout, docstrings and what the function does not use make no difference. Used is whatever is named,
    directly or through others; so are statements that act on import, and all of a file that looks names up by text.
    """
    module = without_docstrings(ast.parse(text))
    needed = used_by(function, module.body)
    return short_sum("\n".join(ast.unparse(s) for s in module.body if s in needed).encode())


def without_docstrings(tree: ast.Module) -> ast.Module:
    for node in ast.walk(tree):
        if isinstance(node, DOCUMENTED) and ast.get_docstring(node, clean=False) is not None:
            node.body = node.body[1:] or [ast.Pass()]
    return tree


def used_by(function: str, statements: Iterable[Statement]) -> set[Statement]:
    """The statements that bind the function, what they use, and what acts by itself."""
    makers: dict[str, list[Statement]] = {}
    waiting: list[Statement] = []
    every = list(statements)
    for statement in every:
        names = bound(statement)
        for name in names:
            makers.setdefault(name, []).append(statement)
        if "*" in names:
            waiting.append(statement)  # it acts on import
    waiting += makers.get(function, [])
    needed: set[Statement] = set()
    while waiting:
        statement = waiting.pop()
        if statement in needed:
            continue
        needed.add(statement)
        mentioned = set(named_in(statement))
        if mentioned & BY_TEXT:
            return set(every)
        waiting += [maker for name in mentioned for maker in makers.get(name, [])]
    return needed


def bound(statement: Statement) -> list[str]:
    """The names that a statement does nothing but bind; "*" for one that does more."""
    if isinstance(statement, ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef):
        return [statement.name]
    if isinstance(statement, ast.Import | ast.ImportFrom):
        return [(alias.asname or alias.name).partition(".")[0] for alias in statement.names]
    targets: list[ast.expr] = []
    if isinstance(statement, ast.Assign):
        targets = statement.targets
    elif isinstance(statement, ast.AnnAssign):
        targets = [statement.target]
    if targets and all(isinstance(target, ast.Name) for target in targets):
        return [target.id for target in targets if isinstance(target, ast.Name)]
    return ["*"]


def named_in(statement: Statement) -> Iterator[str]:
    """Every name that a statement mentions; texts too, which annotations may be."""
    for node in ast.walk(statement):
        if isinstance(node, ast.Name):
            yield node.id
        elif isinstance(node, ast.Attribute):
            yield node.attr if node.attr in BY_TEXT else ""
        elif isinstance(node, ast.Constant) and isinstance(node.value, str):
            yield node.value
