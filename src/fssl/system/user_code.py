"""User-defined methods and networks.

The name `margin.py:margin_match` is that function of that file, and `python:margin_match` an object of a script.
"""

import ast
import importlib.util
import re
import sys
import traceback
from collections.abc import Callable, Iterable, Iterator
from functools import cache
from pathlib import Path
from types import ModuleType
from typing import Any, NamedTuple
from zlib import crc32

from ..errors import UserError, error_text
from .files import check_unchanged, short_sum

PYTHON = "python:"  # before the names of methods and networks that are objects of a script
COPY = " (a run folder keeps a copy of its file)"
PLACE = re.compile(r"([^+]+\.py):(\w+)(\+.*)?")  # file, function, plug-ins of a method
# Names with which code reaches others by text, so that no reading tells which ones.
BY_TEXT = {"eval", "exec", "globals", "vars", "locals", "__import__", "import_module"}
DOCUMENTED = (ast.Module, ast.ClassDef, ast.FunctionDef, ast.AsyncFunctionDef)


def user_file(name: str) -> Path | None:
    """The user's own file that a name refers to; None for a built-in name."""
    found = PLACE.fullmatch(name)
    return Path(found[1]) if found else None


class Given(NamedTuple):
    """A builder that a script gave."""

    builder: Callable[..., Any]
    digest: str | None  # of what it builds, if anything shows that


GIVEN: dict[str, Given] = {}  # those that this process knows, by kind and name


def is_users(name: str) -> bool:
    """Whether a name refers to a file or a script of the user's."""
    return name.startswith(PYTHON) or user_file(name) is not None


def remember(what: str, like: object, builder: Callable[..., Any], digest: str | None = None, name: str = "") -> str:
    """Let settings refer to an object of a script.

    Args:
        what: "method" or "network".
        like: The object that gives the name, if there is none yet.
        builder: The function that makes the method or network.
        digest: A checksum of the object, for resumed runs.
        name: The name in the settings of an existing run.

    Returns:
        The name in the settings, for this process.
    """
    name = name or PYTHON + re.sub(r"\W", "_", getattr(like, "__name__", type(like).__name__))
    GIVEN[f"{what} {name}"] = Given(builder, digest)
    return name


def given(what: str, name: str) -> Given:
    """Return the object of a script that a name refers to."""
    if (found := GIVEN.get(f"{what} {name}")) is None:
        where = "fssl.experiment and fssl.load" if what == "network" else "fssl.experiment"
        raise UserError(f"{what} '{name}' is an object of a Python script; pass it as {what}= to {where}")
    return found


def moved(name: str, to: Callable[[Path], Path | str]) -> str:
    """A name with its file elsewhere; a built-in name as it is."""
    found = PLACE.fullmatch(name)
    return f"{to(Path(found[1]))}:{found[2]}{found[3] or ''}" if found else name


def short_name(name: str) -> str:
    """Return a name without the folders of its file, since the checksum identifies the file."""
    return moved(name, lambda file: file.name)


def absolute_name(name: str) -> str:
    """A name with the whole path of its file, for a process in another folder."""
    return moved(name, Path.resolve)


def name_in(folder: Path, name: str) -> str:
    """Return the name with its file in another folder; "" if the name has no file."""
    there = moved(name, lambda file: folder / file.name)
    return there if PLACE.fullmatch(there) else ""  # a folder with a + in its name cannot be part of one


def digest_of(key: str, name: str, expected: str | None) -> str | None:
    """Return the checksum of the function with this name; reject one that differs from the recorded checksum."""
    what = "network" if key == "model" else key
    if name.startswith(PYTHON):
        base = name.partition("+")[0]
        if (digest := given(what, base).digest) is not None:
            check_unchanged(f"{what} '{base}'", digest, f"{key}.digest", expected, "run", "")
        return digest
    file = user_file(name)
    if file is None:
        return None
    if not file.is_file():
        raise UserError(f"there is no file {file.resolve()}{COPY if expected else ''}")
    content = file.read_bytes()
    try:
        digest = source_digest(content, function_of(name))
    except (SyntaxError, ValueError):  # loading the file says what is wrong with it
        digest = short_sum(content)
    check_unchanged(f"{function_of(name)} of {file}", digest, f"{key}.digest", expected, "run", COPY)
    return digest


def function_of(name: str) -> str:
    """The function after the colon, without plug-ins."""
    found = PLACE.fullmatch(name)
    return found[2] if found else ""


def find_function(what: str, name: str) -> Callable[..., Any]:
    """Return the user's function that makes a method or a network (`what`)."""
    if name.startswith(PYTHON):
        return given(what, name).builder
    file, function = Path(name.rpartition(":")[0]), name.rpartition(":")[2]
    builder = vars(loaded(file.resolve())).get(function)
    if not callable(builder):
        raise UserError(f"{what} '{name}': there is no function '{function}' in {file}")
    if isinstance(builder, type) and what == "method":  # its fields are no settings; a network's class may be called
        raise UserError(f"{what} '{name}': '{function}' is a class; give the function that builds it, {file}:FUNCTION")
    return builder  # type: ignore[no-any-return]  # what it makes is checked when it has made it


def build(builder: Callable[..., Any], what: str, name: str, *args: Any, **kwargs: Any) -> Any:
    """Call a builder; an error in a user's own code is reported in one line."""
    try:
        return builder(*args, **kwargs)
    except (Exception, SystemExit) as error:
        if isinstance(error, UserError) or not is_users(name):
            raise
        raise UserError(f"{what} '{name}' cannot be built: {error_text(error)}") from error


def refuse_without_function(what: str, name: str) -> None:
    """Explain a name that is nearly one of a file: `my.py` and `my.py+sage` lack the function, `my:mine` the ending."""
    file = name.partition("+")[0]
    if file.endswith(".py"):
        raise UserError(f"{what} '{name}': names no function of the file; write {file}:FUNCTION")
    stem, _, function = name.partition(":")
    if user_file(full := f"{stem}.py:{function}") and Path(f"{stem}.py").is_file():
        raise UserError(f"{what} '{name}' is unknown; did you mean '{full}'?")


@cache
def loaded(path: Path) -> ModuleType:
    """The file as a module, run once in this process."""
    name = f"own_{path.stem}_{crc32(bytes(path)):08x}"  # files of one name in two folders are two modules
    spec = importlib.util.spec_from_file_location(name, path)
    if not path.is_file() or spec is None or spec.loader is None:
        raise UserError(f"there is no file {path}")
    module = sys.modules[spec.name] = importlib.util.module_from_spec(spec)  # dataclasses look themselves up there
    try:
        spec.loader.exec_module(module)
    except (Exception, SystemExit) as error:  # the second of a script that is made to be run, not loaded
        del sys.modules[spec.name]
        raise UserError(f"{path} cannot be loaded: {error_text(error)}") from error
    return module


def user_place(error: BaseException, files: Iterable[Path]) -> str:
    """`my.py, line 8`: the last line of a user's own file on the way to an error, or to its cause; "" without one."""
    own, place = {str(file.resolve()) for file in files}, ""
    cause: BaseException | None = error
    while cause is not None:
        frames = [f for f in traceback.extract_tb(cause.__traceback__) if f.filename in own]
        place = f"{Path(frames[-1].filename).name}, line {frames[-1].lineno}" if frames else place
        cause = cause.__cause__
    return place


# What a function of a file is made of: its own source and everything of the file that it uses, comments aside.


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


def used_by(function: str, statements: Iterable[ast.stmt]) -> set[ast.stmt]:
    """The statements that bind the function, what they use, and what acts by itself."""
    makers: dict[str, list[ast.stmt]] = {}
    waiting: list[ast.stmt] = []
    every = list(statements)
    for statement in every:
        names = bound(statement)
        for name in names:
            makers.setdefault(name, []).append(statement)
        if "*" in names:
            waiting.append(statement)  # it acts on import
    waiting += makers.get(function, [])
    needed: set[ast.stmt] = set()
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


def bound(statement: ast.stmt) -> list[str]:
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


def named_in(statement: ast.stmt) -> Iterator[str]:
    """Every name that a statement mentions; texts too, which annotations may be."""
    for node in ast.walk(statement):
        if isinstance(node, ast.Name):
            yield node.id
        elif isinstance(node, ast.Attribute):
            yield node.attr if node.attr in BY_TEXT else ""
        elif isinstance(node, ast.Constant) and isinstance(node.value, str):
            yield node.value
