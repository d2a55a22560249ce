"""Size, names and leftovers of the code."""

from __future__ import annotations

import ast
import io
import tokenize
from collections.abc import Iterator
from pathlib import Path

import pytest

MAX_FILE_LINES = 400  # the file must stay below
MAX_FUNCTION_LINES = 80
FORBIDDEN_NAMES = {"utils", "util", "helpers", "helper", "common", "misc"}
BROAD = {"Exception", "BaseException"}


def code_files(repository: Path, *folders: str) -> list[Path]:
    return [path for folder in folders for path in sorted((repository / folder).rglob("*.py"))]


def program(repository: Path) -> list[Path]:
    return code_files(repository, "sdpo", "examples", "recipes")


def listed(found: list[str]) -> str:
    return "\n".join(found)


def long_functions(source: str) -> Iterator[str]:
    for node in ast.walk(ast.parse(source)):
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef):
            lines = (node.end_lineno or node.lineno) - node.lineno + 1
            if lines >= MAX_FUNCTION_LINES:
                yield f"{node.lineno} {node.name} has {lines} lines (below {MAX_FUNCTION_LINES})"


def stubs(source: str) -> Iterator[str]:
    """Where a function only pretends: it raises NotImplementedError, or has no body outside a Protocol or an ABC."""
    tree = ast.parse(source)
    classes = (node for node in ast.walk(tree) if isinstance(node, ast.ClassDef))
    declared = {id(item) for node in classes if _declares(node) for item in node.body}
    for node in ast.walk(tree):
        if isinstance(node, ast.Raise) and "NotImplementedError" in ast.unparse(node):
            yield f"{node.lineno} raises NotImplementedError"
        elif isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef) and id(node) not in declared and _empty(node):
            yield f"{node.lineno} {node.name} has no body"


def _declares(node: ast.ClassDef) -> bool:
    return any(base in ast.unparse(parent) for parent in [*node.bases, *node.keywords] for base in ("Protocol", "ABC"))


def _empty(node: ast.FunctionDef | ast.AsyncFunctionDef) -> bool:
    if any(ast.unparse(decorator).endswith("overload") for decorator in node.decorator_list):
        return False
    # A docstring alone is a body: "nothing to do here" is a decision, `...` is not.
    return [ast.unparse(statement) for statement in node.body] == ["..."]


def unexplained_excepts(source: str) -> Iterator[str]:
    """Broad handlers that swallow (do not end in a bare `raise`) and say why neither on their own line nor on the line
    above or the first inside."""
    tokens = tokenize.generate_tokens(io.StringIO(source).readline)
    comments = {token.start[0] for token in tokens if token.type == tokenize.COMMENT}
    for node in ast.walk(ast.parse(source)):
        if isinstance(node, ast.ExceptHandler) and _broad(node.type) and ast.unparse(node.body[-1]) != "raise":
            inside = range(node.lineno - 1, node.body[0].lineno + 1)
            if comments.isdisjoint(inside):
                yield f"{node.lineno} broad except without a comment that says why"


def _broad(kind: ast.expr | None) -> bool:
    names = kind.elts if isinstance(kind, ast.Tuple) else [kind]
    return any(name is None or isinstance(name, ast.Name) and name.id in BROAD for name in names)


def test_files_are_short(repository: Path) -> None:
    lines = {path: len(path.read_text(encoding="utf-8").splitlines()) for path in program(repository)}
    long = [f"{path.relative_to(repository)}: {n} lines" for path, n in lines.items() if n >= MAX_FILE_LINES]
    assert listed(long) == ""


@pytest.mark.parametrize("check", [long_functions, stubs, unexplained_excepts])
def test_code_is_free_of(check, repository: Path) -> None:
    found = [
        f"{path.relative_to(repository)}:{complaint}"
        for path in program(repository)
        for complaint in check(path.read_text(encoding="utf-8"))
    ]
    assert listed(found) == ""


def test_files_are_named_for_what_they_do(repository: Path) -> None:
    paths = [path.relative_to(repository) for path in [*program(repository), *code_files(repository, "tests")]]
    assert listed([str(path) for path in paths if FORBIDDEN_NAMES & {*path.parts[:-1], path.stem}]) == ""


def test_every_package_folder_has_an_init(repository: Path) -> None:
    folders = {path.parent for path in code_files(repository, "sdpo")}
    without = [folder for folder in sorted(folders) if not (folder / "__init__.py").exists()]
    assert listed([str(folder.relative_to(repository)) for folder in without]) == ""


@pytest.mark.parametrize(
    ("check", "source", "complaints"),
    [
        (long_functions, "def f():\n" + "    x = 1\n" * 79, 1),
        (long_functions, "def f():\n" + "    x = 1\n" * 78, 0),
        (stubs, "def f():\n    raise NotImplementedError('later')", 1),
        (stubs, "def f(): ...", 1),
        (stubs, "class P(Protocol):\n    def f(self) -> int: ...", 0),
        (stubs, "def f():\n    '''Nothing to give back.'''", 0),
        (unexplained_excepts, "try:\n    f()\nexcept Exception:\n    pass", 1),
        (unexplained_excepts, "try:\n    f()\nexcept:\n    pass", 1),
        (unexplained_excepts, "try:\n    f()\nexcept (OSError, BaseException) as e:\n    g(e)", 1),
        (unexplained_excepts, "try:\n    f()\nexcept BaseException:\n    close()\n    raise", 0),
        (unexplained_excepts, "try:\n    f()\nexcept Exception:  # must not stop the run\n    pass", 0),
        (unexplained_excepts, "try:\n    f()\nexcept OSError:\n    pass", 0),
    ],
)
def test_the_checks_see_what_they_should(check, source: str, complaints: int) -> None:
    assert len(list(check(source))) == complaints
