"""Prepares test code for the judge: finds the names it takes from the solution and rewrites its asserts so that a
failure says what was compared. Done once per problem, in the grader; the compiled code travels to the judge."""

from __future__ import annotations

import ast
import functools
import marshal
from typing import Any

from . import python_syntax
from .inside.judge import FILE
from .name_origins import SOLUTION_MODULES, sort_names

MAX_STATEMENT = 400


@functools.lru_cache(maxsize=4096)
def prepare(code: str, entry_point: str | None, prompt: str = "", withhold: bool = False) -> bytes:
    """Marshalled payload of the judge. SyntaxError when the tests are not Python (found at data load)."""
    tree = python_syntax.parse(code, FILE)
    names = sort_names(code, tree, entry_point, prompt)
    has_check = any(isinstance(node, ast.FunctionDef) and node.name == "check" for node in tree.body)
    statements = {
        node.lineno: text_of(node) for node in ast.walk(tree) if isinstance(node, ast.stmt) and is_simple(node)
    }
    used = {*names.asked, *names.borrowed, "candidate"}
    exercises = any(not isinstance(node, DEFINITIONS) and names_in(node) & used for node in tree.body)
    rewritten = ast.fix_missing_locations(Rewriter().visit(tree))
    payload: dict[str, Any] = {
        "code": compile(rewritten, FILE, "exec", dont_inherit=True),
        "asked": names.asked,
        "borrowed": names.borrowed,
        "library": names.library,
        "withhold": withhold,  # changes of arguments by functions that also return something
        "classes": names.classes,
        "entry_point": entry_point,
        "has_check": has_check,
        "exercises": exercises,  # whether the file does something with the solution when it is merely run
        "trusting": runs_what_it_is_given(tree),
        "statements": statements,
    }
    return marshal.dumps(payload)


DEFINITIONS = (ast.FunctionDef, ast.ClassDef, ast.AsyncFunctionDef, ast.Import, ast.ImportFrom)
EVALUATORS = frozenset({"eval", "exec", "compile", "pickle", "cPickle", "dill", "marshal", "shelve", "joblib", "yaml"})


def names_in(node: ast.AST) -> set[str]:
    return {n.id for n in ast.walk(node) if isinstance(n, ast.Name)}


def runs_what_it_is_given(tree: ast.Module) -> bool:
    """Whether the tests may execute what the solution returns: it could then report their verdict for them."""
    imported = {
        alias.name.split(".")[0]
        for node in ast.walk(tree)
        if isinstance(node, (ast.Import, ast.ImportFrom))
        for alias in [*node.names, ast.alias(getattr(node, "module", None) or "")]
    }
    return bool(EVALUATORS & (names_in(tree) | imported))


def can_fail(tree: ast.Module) -> bool:
    """Whether anything in the tests can turn an answer down: an assert, a raise, a call such as assertEqual, raises,
    fail or exit. Tests that only run the solution would reward whatever runs."""
    for node in ast.walk(tree):
        if isinstance(node, (ast.Assert, ast.Raise)):
            return True
        if isinstance(node, ast.Call):
            name = getattr(node.func, "attr", getattr(node.func, "id", ""))
            if name.startswith("assert") or name in ("raises", "fail", "exit"):
                return True
    return False


def reaches_inside(tree: ast.Module) -> str | None:
    """How the tests reach into the solution other than by calling it, e.g. "patch('builtins.input')": it runs in
    another process, where that has no effect. Standard output is the exception, because it is handed on."""
    patchers = _imported_patchers(tree)
    inside = ("sys.stdin", "builtins.", *(f"{name}." for name in _imported_as(tree, SOLUTION_MODULES)))
    for node in ast.walk(tree):
        if isinstance(node, ast.Call) and _patches(ast.unparse(node.func), patchers) and not _of_output(node):
            return ast.unparse(node)[:80]
        targets = node.targets if isinstance(node, ast.Assign) else [getattr(node, "target", None)]
        for name in (ast.unparse(t) for t in targets if isinstance(t, ast.Attribute)):
            if name.startswith(inside):
                return f"{name} = ..."
    return None


def _imported_as(tree: ast.Module, modules: tuple[str, ...]) -> set[str]:
    """The names that the tests give to modules by `import`."""
    imports = (node for node in ast.walk(tree) if isinstance(node, ast.Import))
    return {alias.asname or alias.name for node in imports for alias in node.names if alias.name in modules}


def _imported_patchers(tree: ast.Module) -> set[str]:
    """The dotted names under which the tests know mock's `patch`: a function of another origin may be called so."""
    found = {f"{name}.patch" for name in _imported_as(tree, ("mock", "unittest.mock"))}
    imports = (node for node in ast.walk(tree) if isinstance(node, ast.ImportFrom))
    for module, alias in ((node.module, alias) for node in imports for alias in node.names):
        name = alias.asname or alias.name
        if module in ("mock", "unittest.mock") and alias.name == "patch":
            found.add(name)
        elif module == "unittest" and alias.name == "mock":
            found.add(f"{name}.patch")
    return found


def _patches(called: str, patchers: set[str]) -> bool:
    return any(called == name or called.startswith(f"{name}.") for name in patchers)


def _of_output(call: ast.Call) -> bool:
    """`patch("sys.stdout")` or `patch.object(sys, "stdout")`, and the same for stderr."""
    words = [ast.unparse(node).strip("'\"") for node in call.args[:2]]
    return ".".join(words[: 2 if ast.unparse(call.func).endswith(".object") else 1]) in ("sys.stdout", "sys.stderr")


def is_simple(node: ast.stmt) -> bool:
    return isinstance(node, (ast.Assert, ast.Expr, ast.Assign, ast.AnnAssign, ast.AugAssign, ast.Return, ast.Delete))


def text_of(node: ast.stmt) -> str:
    """One line of source, without the assert's message."""
    if isinstance(node, ast.Assert):
        node = ast.Assert(node.test, None)
    return ast.unparse(node)[:MAX_STATEMENT]


class Rewriter(ast.NodeTransformer):
    """`assert left == right` becomes two temporaries and a call of the judge.

    A failed assert that stands directly in the module, in check() or in a test function is recorded and the next one
    still runs; deeper ones raise, because the code around them relies on that.
    """

    def __init__(self) -> None:
        self.flat = True

    def visit_FunctionDef(self, node: ast.FunctionDef) -> ast.AST:
        return self._body(node, node.name == "check" or node.name.startswith("test"))

    def visit_ClassDef(self, node: ast.ClassDef) -> ast.AST:
        return self._body(node, False)

    def visit_AsyncFunctionDef(self, node: ast.AsyncFunctionDef) -> ast.AST:
        return self._body(node, False)

    def generic_visit(self, node: ast.AST) -> ast.AST:
        if isinstance(node, (ast.For, ast.While, ast.If, ast.With, ast.Try)):
            return self._body(node, False)
        return super().generic_visit(node)

    def _body(self, node: Any, flat: bool) -> ast.AST:
        before, self.flat = self.flat, flat and self.flat
        node = super().generic_visit(node)
        self.flat = before
        return node

    def visit_Assert(self, node: ast.Assert) -> list[ast.stmt]:
        statement = ast.Constant(text_of(node))
        stop = ast.Constant(not self.flat)
        judge = ast.Name("__sdpo__", ast.Load())
        lines: list[ast.stmt] = []
        test, sides = node.test, []
        if isinstance(test, ast.Compare) and len(test.ops) == 1:
            for name, value in (("__sdpo_left__", test.left), ("__sdpo_right__", test.comparators[0])):
                lines.append(ast.Assign([ast.Name(name, ast.Store())], value))
                sides.append(ast.Name(name, ast.Load()))
            test = ast.Compare(sides[0], test.ops, [sides[1]])
        call = ast.Call(ast.Attribute(judge, "check", ast.Load()), [test, statement, stop, *sides], [])
        lines.append(ast.Expr(call))
        return [ast.copy_location(line, node) for line in lines]
