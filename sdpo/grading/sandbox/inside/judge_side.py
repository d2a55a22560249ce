"""The tests' end of the link to the solution: asks it, and serves what it may ask back."""

from __future__ import annotations

import sys
import types
from typing import Any

from .exports import (
    OPERATIONS,
    PLAIN_BASES,
    Exports,
    built_in,
    built_in_class,
    error_base,
    is_value,
    kind_of,
    make_error,
    name_of,
)
from .frames import FrameError, decode, encode
from .link import Link
from .proxies import make_proxy, numpy_array, remote_number

_OFFERED = "call getattr setattr len iter next getitem setitem bool str repr contains"
TESTS_MODULE = "tests"  # name of the module that the tests run as
OFFERED = frozenset(_OFFERED.split())
GENERIC_NAMES = frozenset({"BaseException", "GeneratorExit"})
INTROSPECTIVE = (
    *(types.FunctionType, types.MethodType, types.BuiltinFunctionType, types.ModuleType, types.CodeType),
    *(types.GeneratorType, types.CoroutineType, types.AsyncGeneratorType, types.FrameType, types.TracebackType),
)
FORMATTING = frozenset({"format", "format_map", "vformat", "get_field"})  # "{0.a.b[c]}" reads any attribute


class LinkBroken(BaseException):
    """The solution is gone, or speaks nonsense. Not an Exception: tests that expect one must not be content."""


class SolutionLoadError(Exception):
    """The solution does not load. `fault` says why."""

    def __init__(self, fault: dict) -> None:
        super().__init__(str(fault.get("type")))
        self.fault = fault


def references(args: list, index: int) -> int:
    """How many places hold an argument of a call to the solution."""
    return sys.getrefcount(args[index])


def _count_unseen() -> int:
    """The same for an argument that only the call itself holds: nobody sees what becomes of it."""

    def proxy(*args: Any) -> int:
        return ask([proxy, *args])

    def ask(args: list) -> int:
        return references(args, 1)

    return proxy([])


UNSEEN = _count_unseen()


class JudgeSide:
    """`broken`: how the link ended before its time, for the report."""

    def __init__(self, fd: int) -> None:
        self.link = Link(fd, self.serve_one)
        self.exports = Exports()
        self.proxies: dict[int, Any] = {}
        self.weak: list[str] = []
        self.in_assert = False
        self.broken: dict[str, Any] = {}

    def import_names(self, wanted: list[str]) -> dict[str, Any]:
        answer = self._exchange({"op": "names", "names": wanted})
        if isinstance(answer.get("load_error"), dict):
            raise SolutionLoadError(answer["load_error"])
        names = answer.get("names")
        if not isinstance(names, dict):
            self.broken = {"protocol": "no names in the answer"}
            raise LinkBroken
        return {name: self.decode(names[name]) for name in wanted if name in names}

    def ask(self, operation: str, args: list, kwargs: dict | None = None) -> Any:
        question: dict[str, Any] = {"op": operation, "args": [self.encode(a) for a in args]}
        if kwargs:
            question["kwargs"] = {name: self.encode(value) for name, value in kwargs.items()}
        answer = self._exchange(question)
        if "changed" in answer:
            self._copy_changes(args, answer["changed"])
        if "exc" in answer:
            error = self.error(answer["exc"])
            if isinstance(error, StopIteration) and operation != "next":
                raise RuntimeError("the function raised StopIteration") from None  # it would end the tests' own loops
            raise error
        return self.decode(answer["ok"])

    def _exchange(self, question: dict[str, Any]) -> dict[str, Any]:
        if self.broken:
            raise LinkBroken
        try:
            answer = self.link.ask(question)
            printed = answer.get("printed")
            for stream, text in zip((sys.stdout, sys.stderr), printed if isinstance(printed, list) else ()):
                if isinstance(text, str):
                    stream.write(text)
            return answer
        except (EOFError, OSError):
            self.broken = {"gone": True}
        except FrameError as error:
            self.broken = {"protocol": str(error)}
        raise LinkBroken

    def decode(self, data: Any) -> Any:
        try:
            return decode(data, numpy_array, self.resolve)
        except FrameError as error:
            self.broken = {"protocol": str(error)}
        raise LinkBroken

    def _copy_changes(self, args: list, changed: list) -> None:
        """Arguments changed in place are changed here too. Inside one assert that reads the argument afterwards, the
        test lets the program edit its own yardstick."""
        for index, data in changed:
            content = self.decode(data)
            if self.in_assert and references(args, index) > UNSEEN:
                self.weak.append("an argument was changed during the comparison")
            target = args[index]
            if type(content) is not type(target):
                self.broken = {"protocol": "an argument came back as another type"}
                raise LinkBroken
            if isinstance(target, (list, bytearray)):
                target[:] = content
            else:
                target.clear()
                target.update(content)

    def error(self, data: Any) -> BaseException:
        """The exception to raise here: an imported exception class of the solution, else the built-in base class."""
        data = data if isinstance(data, dict) else {}
        number = data.get("class")
        kind = self.proxies.get(number) if isinstance(number, int) else None
        if isinstance(kind, type) and issubclass(kind, BaseException):
            error = kind(str(data.get("message", ""))[:600])
        else:
            error = make_error(data.get("base"), data.get("message", ""))
        if type(error).__name__ in GENERIC_NAMES:
            error = RuntimeError(*error.args)
        error.solution_fault = data  # type: ignore[attr-defined]
        return error

    def encode(self, value: Any) -> Any:
        return encode(value, self.refer)

    def refer(self, value: Any) -> Any:
        if type(value) is range:
            return {"range": [value.start, value.stop, value.step]}
        number = remote_number(value)
        if number is not None:
            return {"yours": number}
        if is_value(value) or isinstance(value, PLAIN_BASES):
            return None
        if (name := built_in(value)) is not None:
            return {"built-in": name}
        if kind_of(value) == "object" and not isinstance(value, type(NotImplemented)):
            self.weak.append("an object of the tests was handed over")
        return {"ref": [self.exports.number(value), kind_of(value), name_of(value)]}

    def resolve(self, tag: str, body: Any) -> Any:
        if tag == "range":
            return range(*map(int, body))
        if tag == "yours":
            return self.exports.objects[body]
        if tag == "built-in":
            return built_in_class(body)
        if tag != "ref" or not isinstance(body, list) or not isinstance(body[0], int):
            raise FrameError(f"unknown tag {tag!r:.20}")
        number, kind, name, *extra = body
        if number not in self.proxies:
            self.proxies[number] = make_proxy(self, number, kind, str(name), *extra)
        return self.proxies[number]

    def serve_one(self, question: dict) -> dict:
        """What the solution may ask of the tests' objects: calls, public attributes, a few operators."""
        try:
            operation = question["op"]
            target, *args = (decode(item, numpy_array, self.resolve) for item in question["args"])
            if operation not in OFFERED or not self.handed_over(question["args"][0]):
                raise TypeError(operation)
            if operation in ("getattr", "setattr") and not is_public(target, args[0]):
                raise AttributeError(str(args[0])[:100])
            if operation in ("setattr", "setitem"):
                self.weak.append("an object of the tests was changed by the program")
            if operation == "call":
                keywords = {str(k): self.decode(v) for k, v in question.get("kwargs", {}).items()}
                return {"ok": self.encode(target(*args, **keywords))}
            return {"ok": self.encode(OPERATIONS[operation](target, *args))}
        except FrameError:
            raise
        except Exception as error:  # the tests' own code; the solution sees the built-in class
            return {"exc": {"base": error_base(type(error)), "message": str(error)[:300]}}

    @staticmethod
    def handed_over(data: Any) -> bool:
        """Whether a question is about an object that the tests gave away. Values that the solution brings along are
        not: their methods could lead to everything here, e.g. "{0.__globals__}".format."""
        return isinstance(data, dict) and data.keys() == {"yours"}


def is_public(value: Any, name: Any) -> bool:
    """Whether the solution may use an attribute of a test's object. Nothing that leads to frames, code or modules: the
    expected values are there."""
    if not isinstance(name, str) or name.startswith("_") or name in FORMATTING or isinstance(value, INTROSPECTIVE):
        return False
    return not isinstance(value, type) or value.__module__ == TESTS_MODULE
