"""The tests' end of the link to the solution: asks it, and serves what it may ask back."""

from __future__ import annotations

import collections
import importlib
import sys
import types
from typing import Any

from .exports import (
    OPERATIONS,
    PLAIN_BASES,
    Exports,
    built_in,
    built_in_class,
    decode_rare,
    encode_rare,
    error_base,
    is_array,
    is_value,
    kind_of,
    make_error,
    name_of,
)
from .frames import FrameError, decode, encode
from .link import Link
from .proxies import make_proxy, numpy_array, remote_number
from .testimony import Testimony

_OFFERED = "call getattr setattr len iter next getitem setitem bool str repr contains"
TESTS_MODULE, FILE = "tests", "tests.py"  # what the tests run as
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


def read_again(value: Any) -> bool:
    """Whether a variable of the tests that holds `value` is read at more than one place."""
    frame: types.FrameType | None = sys._getframe()
    while frame is not None:
        code = frame.f_code
        if code.co_filename == FILE:
            names = [name for name, held in frame.f_locals.items() if held is value]
            if any(times_read(code, name) > 1 for name in names):
                return True
        frame = frame.f_back
    return False


def times_read(code: types.CodeType, name: str) -> int:
    """Places in a piece of code and the functions in it where a variable is loaded."""
    dis = importlib.import_module("dis")  # slow to import, rarely used
    loads = sum(line.opname.startswith("LOAD_") and line.argval == name for line in dis.get_instructions(code))
    return loads + sum(times_read(part, name) for part in code.co_consts if isinstance(part, types.CodeType))


class JudgeSide:
    """`broken`: how the link ended before its time, for the report. `edited`: whether a function that also returns
    something changed an argument that the tests still hold; such changes do not arrive where `withhold` is on."""

    def __init__(self, fd: int, withhold: bool = False) -> None:
        self.link = Link(fd, self.serve_one)
        self.exports = Exports()
        self.proxies: dict[int, Any] = {}
        self.testimony = Testimony()
        self.weak = self.testimony.weak
        self.withhold, self.edited = withhold, False
        self.fetched: set[int] = set()  # callable attributes of the tests' objects that the solution took; kept alive
        self.broken: dict[str, Any] = {}

    def import_names(self, asked: list[str], borrowed: list[str], classes: list[str]) -> dict[str, Any]:
        """What the solution has of these names. `classes`: may be classes, and were asked for as such."""
        answer = self._exchange({"op": "names", "names": [*asked, *borrowed], "classes": classes})
        if isinstance(answer.get("load_error"), dict):
            raise SolutionLoadError(answer["load_error"])
        names, numbers = answer.get("names"), answer.get("classes")
        if not isinstance(names, dict) or not isinstance(numbers, dict):
            self.broken = {"protocol": "no names in the answer"}
            raise LinkBroken
        for number in (numbers[name] for name in classes if isinstance(numbers.get(name), int)):
            self.testimony.ask_for_class(number)
        found = {}
        for name in (name for name in (*asked, *borrowed) if name in names):
            self.testimony.received.clear()
            found[name] = self.decode(names[name])
            if name in borrowed:
                self.testimony.borrow(name)
            else:
                self.testimony.ask_for(as_class=name in classes, holder=name == "Solution")
        return found

    def ask(self, operation: str, args: list, kwargs: dict | None = None) -> Any:
        """Puts a question to the first object of the solution among `args`; the class decides an instance check."""
        question: dict[str, Any] = {"op": operation, "args": [self.encode(a) for a in args]}
        if kwargs:
            question["kwargs"] = {name: self.encode(value) for name, value in kwargs.items()}
        order = args[::-1] if operation in ("isinstance", "issubclass") else args
        subject = next(number for number in map(remote_number, order) if number is not None)
        answer = self._exchange(question)
        self.testimony.received.clear()
        value = self.decode(answer["ok"]) if "ok" in answer else None
        self.testimony.weigh(operation, subject, args[-1], "exc" in answer, answer.get("stored") is True)
        if "changed" in answer:
            self._copy_changes(args, kwargs or {}, answer["changed"], value is not None)
        if "exc" in answer:
            error = self.error(answer["exc"])
            if isinstance(error, StopIteration) and operation != "next":
                raise RuntimeError("the function raised StopIteration") from None  # it would end the tests' own loops
            raise error
        return value

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

    def _copy_changes(self, args: list, kwargs: dict, changed: list, returned: bool) -> None:
        """Arguments changed in place are changed here too. Where the function also returns something and somebody here
        still holds the argument, the tests may read a yardstick that the program edited."""
        for place, data in changed:
            target = kwargs[place] if isinstance(place, str) else args[place]
            content = self.decode(data)
            if isinstance(target, set) and content == target:
                continue  # only the order differs
            if returned and (isinstance(place, str) or references(args, place) > UNSEEN + 1):
                self.edited = True
                if self.withhold:
                    continue
            if type(content) is not type(target) and not (type(content) is dict and isinstance(target, dict)):
                self.broken = {"protocol": "an argument came back as another type"}
                raise LinkBroken
            if isinstance(target, (list, bytearray)) or is_array(target) and target.shape == content.shape:
                target[:] = content
                continue
            target.clear()
            getattr(target, "extend" if isinstance(target, collections.deque) else "update")(content)

    def error(self, data: Any) -> BaseException:
        """The exception to raise here: an imported exception class of the solution, else the built-in base class."""
        data = data if isinstance(data, dict) else {}
        number = data.get("class")
        kind = self.proxies.get(number) if isinstance(number, int) else None
        if isinstance(kind, type) and issubclass(kind, BaseException):
            error = kind(str(data.get("message", ""))[:600])
            if isinstance(instance := data.get("object"), int):
                self.testimony.meet(instance, "object", data.get("classes"))
                error._sdpo = (self, instance)  # type: ignore[attr-defined]
        else:
            error = make_error(data.get("base"), data.get("message", ""))
        if type(error).__name__ in GENERIC_NAMES:
            error = RuntimeError(*error.args)
        error.solution_fault = data  # type: ignore[attr-defined]
        return error

    def encode(self, value: Any) -> Any:
        return encode(value, self.refer)

    def refer(self, value: Any) -> Any:
        if (data := encode_rare(value, self.encode)) is not None:
            return data
        number = remote_number(value)
        if number is not None:
            return {"yours": number}
        if is_value(value) or isinstance(value, PLAIN_BASES):
            return None
        if (name := built_in(value)) is not None:
            return {"built-in": name}
        return {"ref": [self.exports.number(value), kind_of(value), name_of(value)]}

    def resolve(self, tag: str, body: Any) -> Any:
        if (value := decode_rare(tag, body, self.decode)) is not None:
            return value
        if tag == "yours":
            return self.exports.objects[body]
        if tag == "built-in":
            return built_in_class(body)
        if tag != "ref" or not isinstance(body, list) or not isinstance(body[0], int):
            raise FrameError(f"unknown tag {tag!r:.20}")
        number, kind, name, classes, *extra = body
        if number not in self.proxies:
            self.proxies[number] = make_proxy(self, number, kind, str(name), classes, *extra)
        plain = isinstance(self.proxies[number], PLAIN_BASES)
        self.testimony.meet(number, "plain" if plain else str(kind), classes)
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
            if operation == "call" and id(target) in self.fetched:
                self.weak.append("a method of an object of the tests was called by the program")
            if operation == "next" and read_again(target):
                self.weak.append("an iterator that the tests read again was consumed by the program")
            if operation == "call":
                keywords = {str(k): self.decode(v) for k, v in question.get("kwargs", {}).items()}
                return {"ok": self.encode(target(*args, **keywords))}
            value = OPERATIONS[operation](target, *args)
            if operation == "getattr" and callable(value):
                self.fetched.add(id(value))
            return {"ok": self.encode(value)}
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
