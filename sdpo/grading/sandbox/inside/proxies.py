"""The solution as the tests see it: functions, classes, objects and exceptions that live in the other process.

Equality is decided here. A remote object never equals a plain value, and the plain value is not sent over; two remote
objects are compared by their own process, and that makes the verdict weak, as does any operator that hands a test's
operand over.
"""

from __future__ import annotations

import builtins
import sys
import types
from collections.abc import Callable
from typing import Any

from .exports import OPERATIONS, PLAIN_BASES, Exports, error_base, is_value, kind_of, name_of
from .frames import FrameError, decode, encode
from .link import Link

_OFFERED = "call getattr setattr len iter next getitem setitem bool str repr contains"
OFFERED = frozenset(_OFFERED.split())
GENERIC_NAMES = frozenset({"BaseException", "GeneratorExit"})


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


class SolutionLoadError(Exception):
    """The solution does not load. `fault` says why."""

    def __init__(self, fault: dict) -> None:
        super().__init__(str(fault.get("type")))
        self.fault = fault


INTROSPECTIVE = (
    *(types.FunctionType, types.MethodType, types.BuiltinFunctionType, types.ModuleType, types.CodeType),
    *(types.GeneratorType, types.CoroutineType, types.AsyncGeneratorType, types.FrameType, types.TracebackType),
)


class JudgeSide:
    def __init__(self, fd: int) -> None:
        self.link = Link(fd, self.serve_one)
        self.exports = Exports()
        self.proxies: dict[int, Any] = {}
        self.errors: dict[int, type[BaseException]] = {}
        self.weak: list[str] = []
        self.in_assert = False

    def import_names(self, wanted: list[str]) -> dict[str, Any]:
        answer = self.link.ask({"op": "names", "names": wanted})
        if "load_error" in answer:
            raise SolutionLoadError(answer["load_error"])
        return {name: self.decode(answer["names"][name]) for name in wanted if name in answer["names"]}

    def ask(self, operation: str, args: list, kwargs: dict | None = None) -> Any:
        question: dict[str, Any] = {"op": operation, "args": [self.encode(a) for a in args]}
        if kwargs:
            question["kwargs"] = {name: self.encode(value) for name, value in kwargs.items()}
        answer = self.link.ask(question)
        if "changed" in answer:
            self._copy_changes(args, answer["changed"])
        if "exc" in answer:
            error = self.error(answer["exc"])
            if isinstance(error, StopIteration) and operation != "next":
                raise RuntimeError("the function raised StopIteration") from None  # it would end the tests' own loops
            raise error
        return self.decode(answer["ok"])

    def _copy_changes(self, args: list, changed: list) -> None:
        """Arguments changed in place are changed here too. Inside one assert that reads the argument afterwards, the
        test lets the program edit its own yardstick."""
        for index, data in changed:
            content = self.decode(data)
            if self.in_assert and references(args, index) > UNSEEN:
                self.weak.append("an argument was changed during the comparison")
            target = args[index]
            if type(content) is not type(target):
                raise FrameError("an argument came back as another type")
            if isinstance(target, (list, bytearray)):
                target[:] = content
            else:
                target.clear()
                target.update(content)

    def error(self, data: Any) -> BaseException:
        """The exception to raise here: an imported exception class of the solution, else the built-in base class."""
        data = data if isinstance(data, dict) else {}
        kind = self.errors.get(data.get("class", -1))
        if kind is None:
            kind = getattr(builtins, str(data.get("base")), RuntimeError)
            if not (isinstance(kind, type) and issubclass(kind, BaseException)) or kind.__name__ in GENERIC_NAMES:
                kind = RuntimeError
        try:
            error = kind(str(data.get("message", ""))[:600])
        except TypeError:  # e.g. UnicodeDecodeError wants five arguments
            error = kind.__new__(kind)
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
        if kind_of(value) == "object" and not isinstance(value, type(NotImplemented)):
            self.weak.append("an object of the tests was handed over")
        return {"ref": [self.exports.number(value), kind_of(value), name_of(value)]}

    def decode(self, data: Any) -> Any:
        return decode(data, numpy_array, self.resolve)

    def resolve(self, tag: str, body: Any) -> Any:
        if tag == "range":
            return range(*map(int, body))
        if tag == "yours":
            return self.exports.objects[body]
        if tag != "ref" or not isinstance(body, list) or not isinstance(body[0], int):
            raise FrameError(f"unknown tag {tag!r:.20}")
        if body[0] not in self.proxies:
            self.proxies[body[0]] = self._make(*body)
        return self.proxies[body[0]]

    def _make(self, number: int, kind: str, name: str, extra: Any = None) -> Any:
        if kind == "call":
            return remote_function(self, number, str(name))
        if kind == "error":
            base = getattr(builtins, str(extra), Exception)
            base = base if isinstance(base, type) and issubclass(base, BaseException) else Exception
            self.errors[number] = type(str(name), (base,), {"_sdpo": (self, number)})
            return self.errors[number]
        if kind == "class":
            return RemoteClass(str(name), (), {"_sdpo": (self, number)})
        if extra is not None:
            plain = decode(extra)
            if type(plain) in PLAIN_SUBCLASSES:
                return PLAIN_SUBCLASSES[type(plain)].attach(plain, self, number)
        return RemoteObject(self, number)

    def serve_one(self, question: dict) -> dict:
        """What the solution may ask of the tests' objects: calls, public attributes, a few operators."""
        try:
            operation = question["op"]
            args = [self.decode(item) for item in question["args"]]
            if operation not in OFFERED:
                raise TypeError(operation)
            if operation in ("getattr", "setattr") and not is_public(args[0], args[1]):
                raise AttributeError(str(args[1])[:100])
            if operation == "call":
                keywords = {str(k): self.decode(v) for k, v in question.get("kwargs", {}).items()}
                return {"ok": self.encode(args[0](*args[1:], **keywords))}
            return {"ok": self.encode(OPERATIONS[operation](*args))}
        except FrameError:
            raise
        except Exception as error:  # the tests' own code; the solution sees the built-in class
            return {"exc": {"base": error_base(type(error)), "message": str(error)[:300]}}


def is_public(value: Any, name: Any) -> bool:
    """Whether the solution may use an attribute of a test's object. Nothing that leads to frames, code or modules: the
    expected values are there."""
    return isinstance(name, str) and not name.startswith("_") and not isinstance(value, INTROSPECTIVE)


def remote_number(value: Any) -> int | None:
    """The number of a proxy, None for everything else; asks no foreign code."""
    kind = type(value)
    if kind is RemoteClass or (isinstance(value, type) and "_sdpo" in type.__getattribute__(value, "__dict__")):
        return type.__getattribute__(value, "__dict__")["_sdpo"][1]
    if kind is RemoteObject or kind in PLAIN_SUBCLASSES.values():
        return object.__getattribute__(value, "_sdpo")[1]
    reference = getattr(value, "_sdpo", None) if kind is type(remote_number) else None
    return reference[1] if reference else None


def remote_function(side: JudgeSide, number: int, name: str) -> Callable[..., Any]:
    def proxy(*args: Any, **kwargs: Any) -> Any:
        return side.ask("call", [proxy, *args], kwargs)

    proxy.__name__ = proxy.__qualname__ = name
    proxy._sdpo = (side, number)  # type: ignore[attr-defined]
    return proxy


def _remote(name: str, weak: bool = False) -> Callable[..., Any]:
    def method(self: Any, *args: Any) -> Any:
        side, _ = _reference(self)
        if weak:
            side.weak.append(f"operator {name} was decided by the program")
        return side.ask(name, [self, *args])

    return method


def _reference(value: Any) -> tuple[JudgeSide, int]:
    if isinstance(value, type):
        return type.__getattribute__(value, "__dict__")["_sdpo"]
    return object.__getattribute__(value, "_sdpo")


class RemoteObject:
    def __init__(self, side: JudgeSide, number: int) -> None:
        object.__setattr__(self, "_sdpo", (side, number))

    def __getattr__(self, name: str) -> Any:
        return _reference(self)[0].ask("getattr", [self, name])

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        return _reference(self)[0].ask("call", [self, *args], kwargs)

    def __eq__(self, other: object) -> bool:
        if self is other:
            return True
        if remote_number(other) is None:
            return False
        side = _reference(self)[0]
        side.weak.append("two objects of the program were compared by the program")
        return bool(side.ask("eq", [self, other]))

    def __ne__(self, other: object) -> bool:
        return not self == other


_QUIET = """
len iter next bool str repr hash int float index getitem setitem delitem enter exit reversed round abs neg pos invert
setattr delattr
"""
_DECIDING = "lt le gt ge contains add sub mul truediv floordiv mod pow matmul and_ or_ xor lshift rshift divmod"
for _name in _QUIET.split():
    setattr(RemoteObject, f"__{_name}__", _remote(_name))
for _name in _DECIDING.split():
    setattr(RemoteObject, f"__{_name.rstrip('_')}__", _remote(_name, weak=True))


def _reflected(name: str) -> Callable[..., Any]:
    def method(self: Any, other: Any) -> Any:
        side, _ = _reference(self)
        side.weak.append(f"operator {name} was decided by the program")
        return side.ask(name, [other, self])

    return method


for _name in ["add", "sub", "mul", "truediv", "floordiv", "mod", "pow", "and_", "or_", "xor"]:
    setattr(RemoteObject, f"__r{_name.rstrip('_')}__", _reflected(_name))


class RemoteClass(type):
    """Classes of the solution: called to make objects, asked for attributes and instance checks."""

    def __call__(cls, *args: Any, **kwargs: Any) -> Any:
        return _reference(cls)[0].ask("call", [cls, *args], kwargs)

    def __getattr__(cls, name: str) -> Any:
        return _reference(cls)[0].ask("getattr", [cls, name])

    def __setattr__(cls, name: str, value: Any) -> None:
        _reference(cls)[0].ask("setattr", [cls, name, value])

    def __instancecheck__(cls, instance: Any) -> bool:
        return remote_number(instance) is not None and bool(_reference(cls)[0].ask("isinstance", [instance, cls]))

    def __subclasscheck__(cls, other: Any) -> bool:
        return remote_number(other) is not None and bool(_reference(cls)[0].ask("issubclass", [other, cls]))

    def __iter__(cls) -> Any:
        return _reference(cls)[0].ask("iter", [cls])

    def __len__(cls) -> int:
        return _reference(cls)[0].ask("len", [cls])

    def __getitem__(cls, key: Any) -> Any:
        return _reference(cls)[0].ask("getitem", [cls, key])


def _plain_subclass(base: type) -> type:
    """A value of a subclass: compares as its plain content, and asks the other process only for extra attributes."""

    def attach(content: Any, side: JudgeSide, number: int) -> Any:
        value = base.__new__(kind, content) if base in (str, int, float, tuple, frozenset, bytes) else kind(content)
        value._sdpo = (side, number)
        return value

    def missing(self: Any, name: str) -> Any:
        return _reference(self)[0].ask("getattr", [self, name])

    kind = type(f"Remote_{base.__name__}", (base,), {"__getattr__": missing, "attach": staticmethod(attach)})
    return kind


PLAIN_SUBCLASSES: dict[type, Any] = {base: _plain_subclass(base) for base in PLAIN_BASES}


def numpy_array(dtype: str, nested: Any) -> Any:
    import numpy

    return numpy.array(nested, dtype=dtype)
