"""The tests of a code problem, read from a row's ground truth. Bad rows are found at data load, not while grading."""

from __future__ import annotations

import ast
import json
import warnings
from dataclasses import dataclass
from keyword import iskeyword
from tokenize import TokenError
from typing import Any

from sdpo.data.long_integers import in_pieces, read_json
from sdpo.errors import DataError, problem
from sdpo.sandbox import python_syntax
from sdpo.sandbox.assert_code import can_fail, reaches_inside
from sdpo.sandbox.inside.frames import encode
from sdpo.sandbox.limits import Limits

LIMITS = {"cpu_s": (0.05, 86_400), "memory_mb": (16, 1 << 20)}  # what a row may ask for
TESTS_NAME = "tests.py"
# The compiler warns of odd comparisons and escapes in what others write; see extract.py.
warnings.filterwarnings("ignore", module=r"tests(\.py)?\Z")
TYPES = "an object with type function, stdin or assert"


@dataclass(frozen=True)
class FunctionCase:
    args: tuple[Any, ...]
    expected: Any
    hidden: bool = False

    @property
    def answer_bytes(self) -> int:
        return len(json.dumps(encode(self.expected)))


@dataclass(frozen=True)
class FunctionTests:
    name: str
    cases: tuple[FunctionCase, ...]


@dataclass(frozen=True)
class StdinCase:
    input: str
    output: str
    hidden: bool = False


@dataclass(frozen=True)
class StdinTests:
    cases: tuple[StdinCase, ...]


@dataclass(frozen=True)
class AssertTests:
    """`code`: bare asserts, `def check(candidate)`, pytest functions or unittest classes. `hidden_code`: more of them,
    run apart."""

    code: str
    entry_point: str | None = None
    hidden_code: str = ""


CodeTests = FunctionTests | StdinTests | AssertTests


def read_tests(truth: Any) -> CodeTests | None:
    """None when there are no tests to run; DataError when they cannot be read."""
    if isinstance(truth, str):
        try:
            truth = read_json(truth)
        except (ValueError, RecursionError):
            raise DataError(problem("tests", truth[:60], TYPES)) from None
    if truth is None or truth == []:
        return None
    if not isinstance(truth, dict):
        raise DataError(problem("tests", type(truth).__name__, TYPES))
    if "type" not in truth and "inputs" in truth and "outputs" in truth:
        truth = _from_lists(truth)
    kind = truth.get("type")
    if kind == "function":
        return _function_tests(truth)
    if kind == "stdin":
        return _stdin_tests(truth)
    if kind == "assert":
        return _assert_tests(truth)
    raise DataError(problem("tests.type", kind, "function, stdin, assert"))


def read_limits(truth: Any, default: Limits) -> Limits:
    """A row may bring limits of its own: {"cpu_s": 2, "memory_mb": 256}."""
    own = truth.get("limits") if isinstance(truth, dict) else None
    if own is None:
        return default
    if not isinstance(own, dict):
        raise DataError(problem("limits", own, '{"cpu_s": seconds, "memory_mb": megabytes}'))
    for name, value in own.items():
        if name not in LIMITS:
            raise DataError(problem(f"limits.{name}", value, "cpu_s, memory_mb"))
        low, high = LIMITS[name]
        if isinstance(value, bool) or not isinstance(value, (int, float)) or not low <= value <= high:
            raise DataError(problem(f"limits.{name}", value, f"a number in [{low:g}, {high:g}]"))
    return Limits(
        float(own.get("cpu_s", default.cpu_s)),
        int(own.get("memory_mb", default.memory_mb)),
        default.output_kb,
        default.scratch_mb,
    )


def _from_lists(truth: dict) -> dict:
    """The form of APPS and of verl's code data: {"inputs": [...], "outputs": [...]}, for a function with `fn_name`.

    A function's arguments are a text with one JSON value per line, or a list; in the latter form the expected value is
    in a list of its own."""
    given, expected, name = truth["inputs"], truth["outputs"], truth.get("fn_name")
    if not isinstance(given, list) or not isinstance(expected, list) or len(given) != len(expected):
        raise DataError(problem("tests.inputs", type(given).__name__, "a list, as long as the one of outputs"))
    if name is None:
        cases = [{"input": _lines(one), "output": _lines(other)} for one, other in zip(given, expected, strict=True)]
        return {**truth, "type": "stdin", "cases": cases}
    cases = [
        {"args": one, "expected": other[0] if isinstance(one, list) and _single(other) else other}
        for one, other in zip(given, expected, strict=True)
    ]
    return {**truth, "type": "function", "name": name, "cases": cases}


def _lines(value: Any) -> Any:
    return "\n".join(map(str, value)) if isinstance(value, list) else value


def _single(value: Any) -> bool:
    return isinstance(value, list) and len(value) == 1


def _cases(truth: dict) -> list[dict]:
    cases = truth.get("cases")
    if cases is None:
        return []
    if isinstance(cases, str):
        try:
            cases = read_json(cases)
        except (ValueError, RecursionError):
            raise DataError(problem("tests.cases", cases[:60], "a list of objects, or JSON text of one")) from None
    if not isinstance(cases, list) or not all(isinstance(case, dict) for case in cases):
        raise DataError(problem("tests.cases", type(cases).__name__, "a list of objects"))
    return cases


def _field(case: dict, name: str, index: int) -> Any:
    if name not in case:
        raise DataError(problem(f"tests.cases[{index}]", sorted(case), f"an object with {name!r}"))
    return case[name]


def _function_tests(truth: dict) -> FunctionTests | None:
    name = truth.get("name")
    if not isinstance(name, str) or not all(p.isidentifier() and not iskeyword(p) for p in name.split(".")):
        raise DataError(problem("tests.name", name, "the name of a function, or Class.method"))
    cases = []
    for index, case in enumerate(_cases(truth)):
        args, expected = _field(case, "args", index), _field(case, "expected", index)
        if isinstance(args, str):  # one JSON value per line, and the expected value written as JSON too
            args = _json_lines(args, index)
            expected = _json_or_text(expected)
        if not isinstance(args, list):
            raise DataError(
                problem(f"tests.cases[{index}].args", args, "a list, or a text with one JSON value per line")
            )
        cases.append(FunctionCase(tuple(args), expected, bool(case.get("hidden", False))))
    return FunctionTests(name, tuple(cases)) if cases else None


def _json_lines(text: str, index: int) -> list[Any]:
    try:
        return [read_json(line) for line in text.split("\n") if line.strip()]
    except (ValueError, RecursionError):
        raise DataError(problem(f"tests.cases[{index}].args", text[:60], "one JSON value per line")) from None


def _json_or_text(value: Any) -> Any:
    if not isinstance(value, str):
        return value
    try:
        return read_json(value)
    except (ValueError, RecursionError):
        return value


def _stdin_tests(truth: dict) -> StdinTests | None:
    cases = []
    for index, case in enumerate(_cases(truth)):
        given, output = _field(case, "input", index), _field(case, "output", index)
        if not isinstance(given, str) or not isinstance(output, str):
            raise DataError(problem(f"tests.cases[{index}]", case, "text for input and output"))
        cases.append(StdinCase(given, output, bool(case.get("hidden", False))))
    return StdinTests(tuple(cases)) if cases else None


def _assert_tests(truth: dict) -> AssertTests | None:
    entry_point = truth.get("entry_point")
    if entry_point is not None and not (isinstance(entry_point, str) and entry_point.isidentifier()):
        raise DataError(problem("tests.entry_point", entry_point, "a function name"))
    public, hidden = (_test_code(truth, name, entry_point) for name in ("code", "hidden_code"))
    return AssertTests(public, entry_point, hidden) if public or hidden else None


def _test_code(truth: dict, field: str, entry_point: str | None) -> str:
    """Empty when there is nothing in it that can fail."""
    code = truth.get(field, "" if "hidden_code" in truth or field == "hidden_code" else None)
    if isinstance(code, list):  # a list of assert statements
        code = "\n".join(map(str, code))
    if not isinstance(code, str):
        raise DataError(problem(f"tests.{field}", type(code).__name__, "Python text"))
    try:
        code = in_pieces(code)
        tree = python_syntax.parse(code, TESTS_NAME)
        compile(tree, TESTS_NAME, "exec", dont_inherit=True)  # finds what the grammar allows, e.g. a bare return
    except (SyntaxError, TokenError, ValueError, RecursionError, MemoryError) as error:
        raise DataError(problem(f"tests.{field}", code[:60], f"Python text ({error})")) from None
    if (way := reaches_inside(tree)) is not None:
        wanted = "tests that only call the solution, which runs in another process"
        raise DataError(problem(f"tests.{field}", way, wanted))
    if entry_point is None and _needs_entry_point(tree):
        raise DataError(problem("tests.entry_point", None, "the function that check(candidate) is given"))
    return code if can_fail(tree) else ""


def _needs_entry_point(tree: ast.Module) -> bool:
    """check(candidate) is defined and nothing in the tests calls it."""
    defined = any(isinstance(node, ast.FunctionDef) and node.name == "check" and node.args.args for node in tree.body)
    called = any(
        isinstance(n, ast.Call) and isinstance(n.func, ast.Name) and n.func.id == "check" for n in ast.walk(tree)
    )
    return defined and not called
