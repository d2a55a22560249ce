"""The solution's side of an assert test: answers the judge's questions about the names that the tests use. The tests
and the expected values are in another process."""

from __future__ import annotations

import builtins
import types
from collections import deque
from collections.abc import Callable
from typing import Any

from . import faults, stage
from .exports import (
    OPERATIONS,
    PLAIN_BASES,
    Exports,
    bases_of,
    built_in,
    decode_rare,
    encode_rare,
    error_base,
    is_array,
    is_own,
    is_stored,
    is_value,
    kind_of,
    make_error,
    name_of,
)
from .frames import FrameError, decode, encode
from .link import Link
from .printed import Printed
from .solver import load

MUTABLE = (list, dict, set, bytearray, deque)


def is_mutable(value: Any) -> bool:
    return isinstance(value, MUTABLE) or is_array(value)


def as_dict(data: Any) -> Any:
    """The data of a defaultdict as it is encoded here, where it is a dict."""
    return {"d": data["D2"]} if isinstance(data, dict) and "D2" in data else data


def run() -> None:
    source = stage.read_source()
    stage.set_streams()
    module = stage.new_module("solution")
    faults.load_source(source)
    side = SolverSide(module)
    side.loaded = load(source, module)
    try:
        side.link.serve()
    except (EOFError, OSError, FrameError):
        stage.finish(0)


class SolverSide:
    def __init__(self, module: types.ModuleType) -> None:
        self.module = module
        self.exports = Exports()
        self.link = Link(stage.CHANNEL, self.answer)
        self.printed = Printed()
        self.loaded: dict[str, Any] = {}

    def answer(self, question: dict) -> dict:
        try:
            answer = self.names(question) if question["op"] == "names" else self.apply(question)
        except BaseException as error:  # foreign code may raise anything; all of it travels as data
            answer = {"exc": self.describe_error(error)}
        if (printed := self.printed.take()) is not None:
            answer["printed"] = printed
        return answer

    def names(self, question: dict) -> dict:
        if "error" in self.loaded:
            return {"load_error": self.loaded["error"]}
        space = vars(self.module)
        classes = {name: space[name] for name in question["classes"] if isinstance(space.get(name), type)}
        return {
            "classes": {name: self.exports.number(kind) for name, kind in classes.items()},
            "names": {name: self.encode(space[name]) for name in question["names"] if name in space},
        }

    def apply(self, question: dict) -> dict:
        operation = question["op"]
        raw = {**dict(enumerate(question["args"])), **question.get("kwargs", {})}
        given = {place: self.decode(item) for place, item in raw.items()}
        args = [given[place] for place in range(len(question["args"]))]
        keywords = {place: value for place, value in given.items() if isinstance(place, str)}
        result = args[0](*args[1:], **keywords) if operation == "call" else OPERATIONS[operation](*args)
        answer: dict[str, Any] = {"ok": self.encode(result)}
        if operation == "getattr":
            answer["stored"] = is_stored(*args)
        changed = [[place, self.encode(value)] for place, value in given.items() if is_mutable(value)]
        changed = [[place, data] for place, data in changed if data not in (raw[place], as_dict(raw[place]))]
        if changed:
            answer["changed"] = changed
        return answer

    def encode(self, value: Any) -> Any:
        return encode(value, self.refer)

    def refer(self, value: Any) -> Any:
        """A reference for what does not travel; subclasses of built-in types send their plain content along."""
        if (data := encode_rare(value, self.encode)) is not None:
            return data
        if isinstance(value, JudgeObject):
            return {"yours": object.__getattribute__(value, "_number")}
        if is_value(value):
            return None
        if isinstance(value, type) and (name := built_in(value)) is not None:
            return {"built-in": name}
        kind = kind_of(value)
        if kind == "call" and getattr(value, "__dict__", None):
            kind = "callable"  # a function with attributes: they are asked for one by one
        own = value if isinstance(value, type) else type(value)
        classes = self.exports.known(bases_of(own)) if is_own(own) and kind != "manager" else None
        body = [self.exports.number(value), kind, name_of(value), classes]
        if kind == "error":
            body.append(error_base(value))
        elif kind == "call" and type(documentation := value.__doc__) is str:
            body.append(documentation[:2000])
        elif isinstance(value, PLAIN_BASES):
            body.append(encode(value))
        return {"ref": body}

    def decode(self, data: Any) -> Any:
        return decode(data, numpy_array, self.resolve)

    def resolve(self, tag: str, body: Any) -> Any:
        if (value := decode_rare(tag, body, self.decode)) is not None:
            return value
        if tag == "yours":
            return self.exports.objects[body]
        if tag == "built-in":
            return getattr(builtins, body)
        if tag == "ref":
            number, kind, name = body[:3]
            return judge_function(self, number, name) if kind == "call" else JudgeObject(self, number)
        raise FrameError(f"unknown tag {tag!r:.20}")

    def ask_judge(self, operation: str, args: list, kwargs: dict | None = None) -> Any:
        question: dict[str, Any] = {"op": operation, "args": [self.encode(a) for a in args]}
        if kwargs:
            question["kwargs"] = {name: self.encode(value) for name, value in kwargs.items()}
        answer = self.link.ask(question)
        if "exc" in answer:
            raise make_error(answer["exc"].get("base"), answer["exc"].get("message", ""))
        return self.decode(answer["ok"])

    def describe_error(self, error: BaseException) -> dict:
        data = faults.fault(error)
        kind = type(error)
        data["base"] = error_base(kind)
        if kind.__module__ != "builtins":
            data["class"], data["object"] = self.exports.number(kind), self.exports.number(error)
            data["classes"] = self.exports.known(bases_of(kind))
        return data


def judge_function(side: SolverSide, number: int, name: str) -> Callable[..., Any]:
    """A function of the tests, e.g. a key or a predicate that they pass in."""

    def callback(*args: Any, **kwargs: Any) -> Any:
        return side.ask_judge("call", [JudgeObject(side, number), *args], kwargs)

    callback.__name__ = callback.__qualname__ = name
    return callback


class JudgeObject:
    """An object of the tests, seen from the solution. The judge answers only public attributes and a few operators."""

    def __init__(self, side: SolverSide, number: int) -> None:
        object.__setattr__(self, "_side", side)
        object.__setattr__(self, "_number", number)

    def __getattr__(self, name: str) -> Any:
        if name.startswith("__"):
            raise AttributeError(name)
        return object.__getattribute__(self, "_side").ask_judge("getattr", [self, name])

    def __setattr__(self, name: str, value: Any) -> None:
        object.__getattribute__(self, "_side").ask_judge("setattr", [self, name, value])

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        return object.__getattribute__(self, "_side").ask_judge("call", [self, *args], kwargs)

    def __eq__(self, other: object) -> bool:
        return isinstance(other, JudgeObject) and _number(other) == _number(self)

    def __hash__(self) -> int:
        return hash(("judge", _number(self)))


def _number(remote: JudgeObject) -> int:
    return object.__getattribute__(remote, "_number")


def _operator(name: str) -> Callable[..., Any]:
    def method(self: JudgeObject, *args: Any) -> Any:
        return object.__getattribute__(self, "_side").ask_judge(name, [self, *args])

    return method


for _name in ("len", "iter", "next", "getitem", "setitem", "bool", "str", "repr", "contains"):
    setattr(JudgeObject, f"__{_name}__", _operator(_name))


def numpy_array(dtype: str, nested: Any) -> Any:
    import numpy

    return numpy.array(nested, dtype=dtype)
