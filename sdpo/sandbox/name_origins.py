"""Where a test file's names come from that it uses and does not define: from the library, or from the solution - and
then whether anybody asked for them. A helper that only happens to exist in the solution is a yardstick that the program
made itself."""

from __future__ import annotations

import ast
import builtins
import functools
import importlib
import re
import symtable
from collections.abc import Iterator
from dataclasses import dataclass

SOLUTION_MODULES = ("solution", "main")
ALIASES = {"np": "numpy"}
# Modules that tests use by name; the first ones also give their public names, as where such problems come from.
OPEN_MODULES = (
    *("collections", "typing", "itertools", "functools", "math", "heapq", "bisect", "fractions", "decimal", "datetime"),
    *("copy", "string", "operator", "random", "re", "statistics"),
)
OTHER_MODULES = """
abc array asyncio base64 calendar cmath contextlib dataclasses enum hashlib inspect io json numbers os pathlib queue
secrets struct sys textwrap threading time traceback types unittest uuid warnings
"""
MODULES = frozenset(OPEN_MODULES) | frozenset(OTHER_MODULES.split())
# How a prompt names a class. A capital alone is none, nor a quoted word: a program could call its own class after it.
CLASSES = (
    re.compile(r"\bclass\s+[`'\"]?([A-Z]\w*)"),
    re.compile(r"^[ \t]*class[ \t]+(\w+)[ \t]*[:(]", re.MULTILINE),
    re.compile(r"\b(?:an?|the|your|of)\s+[`'\"]?([A-Z]\w*)[`'\"]?\s+(?:class|object|instance)\b"),
)
SIGNATURE = re.compile(r"^[ \t]*(?:async )?def .*$", re.MULTILINE)
ANNOTATION = re.compile(r"(?:->|:)\s*((?:[\w.|\s]|\[[^\]]{0,200}\])+)")
ASKED = r"\b(?:class|def|function|method|implement|write|create|define|design)\s+(?:an?\s+|the\s+)?[`'\"]?{0}\b"
IMPORT = re.compile(r"^[ \t]*(?:from[ \t]+\S+[ \t]+)?import[ \t].*$", re.MULTILINE)


@dataclass(frozen=True)
class Names:
    """`asked`: of the solution, because the tests import them, the row or the prompt names them, or they are what is
    tested. `borrowed`: of the solution, though nobody asked for them. `classes`: what may be a class of these, and what
    the prompt calls one, whether the tests use it or not; anything else is asked for as a function. `library`: name ->
    (module, attribute or "")."""

    asked: tuple[str, ...]
    borrowed: tuple[str, ...]
    classes: tuple[str, ...]
    library: dict[str, tuple[str, str]]


def sort_names(code: str, tree: ast.Module, entry_point: str | None, prompt: str) -> Names:
    """`prompt`: "" when it is not known; the tests alone then tell what is under test."""
    given = imported(tree) | ({entry_point} if entry_point else set())
    rest = undefined(code) - given - set(dir(builtins)) - {"candidate"}
    library = {name: origin for name in rest if (origin := library_origin(name, tree)) and not asks_for(prompt, name)}
    others = rest - library.keys()
    if not given and not others:  # they test nothing else: a function of the solution has a name of the library
        others, library = rest, {}
    named = {name for name in others if re.search(rf"\b{name}\b", prompt)}
    if prompt.strip() and (given or named):
        borrowed = others - named
    else:
        borrowed = yardsticks(tree, others, entry_point)
    asked = given | (others - borrowed)
    functions = set(re.findall(r"\bdef[ \t]+(\w+)", prompt))
    classes = (classes_of(prompt) | {name for name in asked if name.lstrip("_")[:1].isupper()}) - functions
    return Names(tuple(sorted(asked)), tuple(sorted(borrowed)), tuple(sorted(classes)), library)


def undefined(code: str) -> set[str]:
    """Names that the tests read from their module and never bind there."""
    top = symtable.symtable(code, "tests", "exec")
    bound = {s.get_name() for s in top.get_symbols() if s.is_assigned() or s.is_imported() or s.is_namespace()}
    read: set[str] = set()
    for table in tables(top):
        for symbol in table.get_symbols():
            if symbol.is_declared_global() and symbol.is_assigned():
                bound.add(symbol.get_name())
            if symbol.is_referenced() and (symbol.is_global() or table is top):
                read.add(symbol.get_name())
    return {name for name in read - bound if not name.startswith("__")}


def tables(table: symtable.SymbolTable) -> Iterator[symtable.SymbolTable]:
    yield table
    for child in table.get_children():
        yield from tables(child)


def imported(tree: ast.Module) -> set[str]:
    """Names of the solution that the tests import from it or read from its module."""
    names: set[str] = set()
    for node in ast.walk(tree):
        if isinstance(node, ast.ImportFrom) and node.module in SOLUTION_MODULES:
            names |= {alias.name for alias in node.names if alias.name != "*"}
        elif isinstance(node, ast.Attribute) and isinstance(node.value, ast.Name) and node.value.id in SOLUTION_MODULES:
            names.add(node.attr)
    return {name for name in names if not name.startswith("__")}


def library_origin(name: str, tree: ast.Module) -> tuple[str, str] | None:
    """A module where the tests only read attributes of it that it has; else a public name of a usual module."""
    if name in ALIASES:
        return ALIASES[name], ""
    if name in MODULES:
        read = {n.attr for n in ast.walk(tree) if isinstance(n, ast.Attribute) and is_name(n.value, name)}
        bare = sum(is_name(node, name) for node in ast.walk(tree)) > sum(
            isinstance(node, ast.Attribute) and is_name(node.value, name) for node in ast.walk(tree)
        )
        if not bare and all(hasattr(importlib.import_module(name), attribute) for attribute in read):
            return name, ""
    return (module, name) if (module := open_names().get(name)) else None


def is_name(node: ast.AST, name: str) -> bool:
    return isinstance(node, ast.Name) and node.id == name


@functools.cache
def open_names() -> dict[str, str]:
    """Public name -> module; the first module that has it."""
    found: dict[str, str] = {}
    for module in OPEN_MODULES:
        space = vars(importlib.import_module(module))
        for name in space.get("__all__") or [name for name in space if not name.startswith("_")]:
            found.setdefault(name, module)
    return found


def asks_for(prompt: str, name: str) -> bool:
    """Whether the prompt wants a function or class of this name written; an import or an annotation does not."""
    return name in prompt and re.search(ASKED.format(name), IMPORT.sub("", prompt), re.IGNORECASE) is not None


def classes_of(prompt: str) -> set[str]:
    """Names that the prompt uses as classes: "a class Node", "a `Node` object", def build() -> Node. Of names that the
    library has (List), only those that the prompt wants written."""
    found = {name for pattern in CLASSES for name in pattern.findall(prompt)}
    for line in SIGNATURE.findall(prompt):
        found.update(*(re.findall(r"\b[A-Z]\w*", annotation) for annotation in ANNOTATION.findall(line)))
    known = open_names().keys() | vars(builtins).keys()
    return {name for name in found if name not in known or asks_for(prompt, name)}


def yardsticks(tree: ast.Module, names: set[str], entry_point: str | None) -> set[str]:
    """Of these names, those that an assert measures another one with, as in `f(2) == helper(2)`. What is only an
    argument of the function under test, or the only name of its asserts, is what the tests are about."""
    subjects = {entry_point or "candidate", "candidate"}
    origins: dict[str, set[str]] = {name: {name} for name in names | subjects}
    assigned = [node for node in ast.walk(tree) if isinstance(node, (ast.Assign, ast.For, ast.NamedExpr))]
    for _ in range(2):  # a variable may be made from one that is assigned further down
        for node in assigned:
            value = node.iter if isinstance(node, ast.For) else node.value
            for target in node.targets if isinstance(node, ast.Assign) else [node.target]:
                for variable in (n.id for n in ast.walk(target) if isinstance(n, ast.Name)):
                    if variable not in names:
                        origins.setdefault(variable, set()).update(_deciding(value, names | subjects, origins))
    found: set[str] = set()
    for check in ast.walk(tree):
        if isinstance(check, ast.Assert) or isinstance(check, ast.Call) and _asserts(check):
            deciding = _deciding(check.test if isinstance(check, ast.Assert) else check, names | subjects, origins)
            if len({"candidate" if name in subjects else name for name in deciding}) > 1:
                found |= deciding
    return found & names - subjects


def _asserts(call: ast.Call) -> bool:
    return getattr(call.func, "attr", getattr(call.func, "id", "")).startswith("assert")


def _deciding(node: ast.AST, called: set[str], origins: dict[str, set[str]]) -> set[str]:
    """Names whose answer is in the value of an expression; arguments of a call to the solution are not."""
    if isinstance(node, ast.Call) and isinstance(node.func, ast.Name) and node.func.id in called:
        return {node.func.id}
    if isinstance(node, ast.Name):
        return origins.get(node.id, set())
    return set().union(*(_deciding(child, called, origins) for child in ast.iter_child_nodes(node)))
