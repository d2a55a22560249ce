"""The tests' side of an assert test: runs the test code against proxies of the solution and reports every assert.

The code was parsed, rewritten and compiled in the grader; here it only runs. A rewritten assert calls `check(index,
...)`.
"""

from __future__ import annotations

import contextlib
import importlib
import marshal
import os
import sys
import types
import unittest
from collections.abc import Callable
from typing import Any

from . import stage, test_tools
from .frames import describe, write_frame
from .judge_side import FILE, TESTS_MODULE, JudgeSide, LinkBroken, SolutionLoadError

MAX_CASES = 200
MAX_TEXT = 300


def run() -> None:
    payload = marshal.loads(stage.read_payload())
    stage.set_streams()
    judge = Judge(payload, JudgeSide(stage.LINK, payload["withhold"]))
    report: dict[str, Any] = {}
    try:
        judge.run()
    except SolutionLoadError as error:
        report["load_error"] = error.fault
    except LinkBroken:
        pass  # `broken` tells, also where the tests swallowed this
    report |= judge.side.broken
    report |= {"cases": judge.cases, "passed": judge.passed, "weak": judge.side.weak[:5], "unusable": judge.unusable}
    report["edited"] = judge.side.edited
    write_frame(stage.CHANNEL, report)
    os._exit(0)


class Failure(AssertionError):
    """An assert that did not hold; already recorded."""


class Judge:
    def __init__(self, payload: dict[str, Any], side: JudgeSide) -> None:
        self.payload = payload
        self.side = side
        self.passed = 0
        self.cases: list[dict[str, Any]] = []
        if payload["trusting"]:
            side.weak.append("the tests may execute what the program returns")
        self.unusable = ""  # why the tests themselves cannot run here

    def run(self) -> None:
        names = self.side.import_names(*(self.payload[kind] for kind in ("asked", "borrowed", "classes")))
        entry = self.payload["entry_point"]
        if entry and entry not in names:
            return self.record({"missing": entry})
        module = stage.new_module(TESTS_MODULE, FILE)
        sys.modules["solution"] = sys.modules["main"] = solution = types.ModuleType("solution")
        vars(solution).update(names)
        sys.modules["pytest"] = test_tools.make_pytest()
        # A name of the solution never replaces a built-in function: `all` or `len` would decide the asserts. The
        # function under test is the one exception, because the row names it.
        builtin_names = vars(sys.modules["builtins"])
        vars(module).update(
            {name: value for name, value in names.items() if name not in builtin_names or name == entry}
        )
        if entry:
            vars(module).setdefault("candidate", names[entry])
        for name, (library, attribute) in self.payload["library"].items():
            with contextlib.suppress(ImportError, AttributeError):  # then the tests find no such name
                found = importlib.import_module(library)
                vars(module)[name] = getattr(found, attribute) if attribute else found
        vars(module)["__sdpo__"] = self
        self.guarded(exec, self.payload["code"], vars(module), counts=self.payload["exercises"])
        if entry and self.payload["has_check"] and callable(check := vars(module).get("check")):
            self.guarded(check, names[entry])
        for test in test_tools.collect(vars(module)):
            self.guarded(test)

    def guarded(self, action: Callable[..., Any], *args: Any, counts: bool = True) -> None:
        """Runs a piece of the tests; what it raises becomes a case. One that ends well without an assert of its own,
        as `with raises(...)` does, has passed if it `counts`."""
        before = self.passed + len(self.cases)
        try:
            action(*args)
            self.passed += counts and self.passed + len(self.cases) == before
        except LinkBroken:
            raise
        except Failure:
            pass
        except unittest.SkipTest:
            pass
        except (test_tools.UnsupportedTests, ModuleNotFoundError) as error:
            if hasattr(error, "solution_fault"):
                self.record(self.describe_error(error))
            else:
                self.unusable = str(error)[:MAX_TEXT]
        except BaseException as error:  # the tests' or the solution's: both are verdicts on the solution
            self.record(self.describe_error(error))

    def describe_error(self, error: BaseException) -> dict[str, Any]:
        fault = getattr(error, "solution_fault", None)
        line = self.line_of(error)
        if fault is not None:
            return {"fault": fault, "statement": line}
        text = describe(error) if not isinstance(error, AssertionError) else str(error)[:MAX_TEXT]
        if isinstance(error, AssertionError):
            return {"statement": line, "message": text}
        return {"statement": line, "error": f"{type(error).__name__}: {str(error)[:MAX_TEXT]}"}

    def line_of(self, error: BaseException) -> str:
        """The statement of the tests that was running."""
        statement = ""
        traceback = error.__traceback__
        while traceback is not None:
            if traceback.tb_frame.f_code.co_filename == FILE:
                statement = self.payload["statements"].get(traceback.tb_lineno, statement)
            traceback = traceback.tb_next
        return statement

    def record(self, case: dict[str, Any]) -> None:
        if len(self.cases) < MAX_CASES:
            self.cases.append(case)

    # called by the rewritten asserts

    def check(self, holds: Any, statement: str, stop: bool, *sides: Any) -> None:
        """One assert. `sides`: the two operands of a comparison. `stop`: raise, because the code after it relies on
        it."""
        ok = bool(holds)
        if ok:
            self.passed += 1
            return
        case = {"statement": statement, "failed": True}
        if sides:
            case["left"], case["right"] = (describe(value, MAX_TEXT) for value in sides)
        self.record(case)
        if stop:
            raise Failure(statement)
