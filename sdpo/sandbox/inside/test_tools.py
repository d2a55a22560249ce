"""A small stand-in for the parts of pytest that test files of code data sets use: raises, approx, fail, skip,
mark.parametrize. The real one is not among a run's packages."""

from __future__ import annotations

import collections
import functools
import importlib
import io
import itertools
import math
import re
import sys
import types
import unittest
from collections.abc import Callable, Iterator
from typing import Any


class UnsupportedTests(Exception):
    """The tests need something that a run does not have: a fault of the row, not of the solution."""


class Raises:
    """`with raises(ValueError, match="..."):` and `raises(ValueError, f, 1)`."""

    def __init__(self, expected: Any, match: str | None = None) -> None:
        self.expected = expected
        self.match = match
        self.value: BaseException | None = None

    def __enter__(self) -> Raises:
        return self

    def __exit__(self, kind: Any, error: BaseException | None, traceback: Any) -> bool:
        if error is None:
            raise AssertionError(f"did not raise {getattr(self.expected, '__name__', self.expected)}")
        if not isinstance(error, self.expected):
            return False
        if self.match is not None and not re.search(self.match, str(error)):
            raise AssertionError(f"the message {str(error)!r} does not match {self.match!r}")
        self.value = error
        return True


class Approx:
    """Equal within a relative and an absolute tolerance, element by element."""

    __hash__ = None  # type: ignore[assignment]

    def __init__(self, expected: Any, rel: float | None = None, abs: float | None = None) -> None:
        self.expected, self.rel, self.abs = expected, rel, abs

    def __eq__(self, other: object) -> bool:
        return self._near(other, self.expected)

    def _near(self, got: Any, expected: Any) -> bool:
        if isinstance(expected, dict):
            return (
                isinstance(got, dict)
                and got.keys() == expected.keys()
                and all(self._near(got[k], v) for k, v in expected.items())
            )
        if isinstance(expected, (list, tuple)):
            return isinstance(got, (list, tuple)) and len(got) == len(expected) and all(map(self._near, got, expected))
        if isinstance(expected, bool) or not isinstance(expected, (int, float)) or not isinstance(got, (int, float)):
            return bool(got == expected)
        if self.rel is None and self.abs is not None:
            return math.isclose(got, expected, rel_tol=0.0, abs_tol=self.abs)
        return math.isclose(
            got,
            expected,
            rel_tol=1e-6 if self.rel is None else self.rel,
            abs_tol=1e-12 if self.abs is None else self.abs,
        )

    def __repr__(self) -> str:
        return f"approx({self.expected!r})"


class Mark:
    """`mark.parametrize` fills `parametrizations`; every other mark leaves the function as it is."""

    def parametrize(self, names: Any, values: Any, **_: Any) -> Any:
        count = len(names.split(",")) if isinstance(names, str) else len(names)
        rows = [tuple(row) if count > 1 else (row,) for row in values]

        def decorate(function: Any) -> Any:
            function.sdpo_rows = [rows, *getattr(function, "sdpo_rows", [])]
            function.sdpo_names = [*split_names(names), *getattr(function, "sdpo_names", [])]
            return function

        return decorate

    def __getattr__(self, name: str) -> Any:
        def mark(*args: Any, **_: Any) -> Any:
            return args[0] if len(args) == 1 and callable(args[0]) else lambda function: function

        return mark


def collect(scope: dict[str, Any]) -> Iterator[Callable[[], None]]:
    """Every test that a test file defines, ready to be called: functions, methods of classes named Test..., unittest
    cases."""
    for name, value in list(scope.items()):
        if getattr(value, "__module__", None) != scope["__name__"]:
            continue
        if isinstance(value, types.FunctionType) and name.startswith("test"):
            yield from each_call(value, scope)
        elif isinstance(value, type) and issubclass(value, unittest.TestCase):
            for method in unittest.defaultTestLoader.getTestCaseNames(value):
                yield functools.partial(run_case, value, method)
        elif isinstance(value, type) and name.startswith("Test"):
            for method, function in list(vars(value).items()):
                if method.startswith("test") and isinstance(function, types.FunctionType):
                    yield from each_call(function, scope, value)


def each_call(function: types.FunctionType, scope: dict[str, Any], kind: type | None = None) -> Iterator[Any]:
    """One call per parametrization; of a method on a fresh object of its class."""
    for arguments in parametrizations(function, scope, skip=kind is not None):
        yield functools.partial(run_test, function, arguments, kind)


def run_test(function: Callable[..., Any], arguments: Callable[[], tuple[Any, ...]], kind: type | None) -> None:
    streams = sys.stdout, sys.stderr
    try:
        if kind is None:
            return finish(function(*arguments()))
        holder = kind()
        getattr(holder, "setup_method", no_setup)()
        try:
            finish(function(holder, *arguments()))
        finally:
            getattr(holder, "teardown_method", no_setup)()
    finally:
        sys.stdout, sys.stderr = streams


def no_setup() -> None:
    """Where a test class has none."""


def run_case(kind: type[unittest.TestCase], method: str) -> None:
    case = kind(method)
    kind.setUpClass()
    try:
        case.setUp()
        try:
            finish(getattr(case, method)())
        finally:
            case.tearDown()
    finally:
        case.doCleanups()
        kind.tearDownClass()


def finish(result: Any) -> None:
    """Runs the coroutine of an `async def` test: without that it would pass unseen."""
    if isinstance(result, types.CoroutineType):
        importlib.import_module("asyncio").run(result)


def split_names(names: Any) -> list[str]:
    return [name.strip() for name in names.split(",")] if isinstance(names, str) else list(names)


def parametrizations(
    function: types.FunctionType, scope: dict[str, Any], skip: bool
) -> Iterator[Callable[[], tuple[Any, ...]]]:
    """Makers of the argument lists to call a test function with; parameters without a mark are fixtures of the same
    file. `skip`: the first parameter is `self`."""
    code = function.__code__
    wanted = code.co_varnames[skip : code.co_argcount]
    names = getattr(function, "sdpo_names", [])

    def arguments(given: dict[str, Any]) -> tuple[Any, ...]:
        return tuple(given[name] if name in given else fixture_value(name, scope) for name in wanted)

    for rows in itertools.product(*getattr(function, "sdpo_rows", [])):
        yield functools.partial(arguments, dict(zip(names, itertools.chain(*rows), strict=True)))


class Capture:
    """The fixture `capsys`; `run_test` puts the streams back."""

    Printed = collections.namedtuple("Printed", "out err")

    def __init__(self) -> None:
        self._streams = sys.stdout, sys.stderr = io.StringIO(), io.StringIO()

    def readouterr(self) -> Printed:
        found = self.Printed(*(stream.getvalue() for stream in self._streams))
        for stream in self._streams:
            stream.seek(0)
            stream.truncate()
        return found


def fixture_value(name: str, scope: dict[str, Any]) -> Any:
    maker: Any = scope.get(name)
    if name == "capsys" and maker is None:
        return Capture()
    if not hasattr(maker, "sdpo_fixture"):
        raise UnsupportedTests(f"the tests use the fixture {name!r}, which their file does not define")
    code = maker.__code__
    value = maker(*[fixture_value(inner, scope) for inner in code.co_varnames[: code.co_argcount]])
    return next(value) if isinstance(value, types.GeneratorType) else value


def fixture(function: Any = None, **_: Any) -> Any:
    if function is None:
        return fixture
    function.sdpo_fixture = True
    return function


def raises(expected: Any, *call: Any, match: str | None = None, **kwargs: Any) -> Any:
    if not call:
        return Raises(expected, match)
    with Raises(expected, match) as context:
        call[0](*call[1:], **kwargs)
    return context


def fail(reason: str = "") -> None:
    raise AssertionError(reason)


def skip(reason: str = "") -> None:
    raise unittest.SkipTest(reason)


def make_pytest() -> types.ModuleType:
    module = types.ModuleType("pytest")
    vars(module).update(
        raises=raises, approx=Approx, fail=fail, skip=skip, fixture=fixture, mark=Mark(), main=lambda *_: 0
    )
    vars(module)["param"] = lambda *values, **_: values if len(values) > 1 else values[0]
    return module
