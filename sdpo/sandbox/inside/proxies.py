"""The solution as the tests see it: functions, classes, objects and exceptions that live in the other process.

Equality is decided here. A remote object never equals a plain value, and the plain value is not sent over; two remote
objects are compared by their own process, and that makes the verdict weak. What else an object is asked, and what that
makes of the verdict, is in testimony.py.
"""

from __future__ import annotations

import builtins
from collections.abc import Callable
from typing import Any, Protocol

from .exports import PLAIN_BASES, error_base
from .frames import NUMPY_KINDS, FrameError, decode
from .test_tools import UnsupportedTests
from .testimony import Testimony

# Attributes that hand memory over by address: read by numpy, they would let the solution name any byte of the judge.
MEMORY_PROTOCOLS = ("__array", "__cuda_array", "__dlpack")


class Side(Protocol):
    """The judge, as far as a proxy needs it: whom to ask, and what makes the verdict weak."""

    testimony: Testimony
    weak: list[str]

    def ask(self, operation: str, args: list, kwargs: dict | None = None) -> Any: ...


def make_proxy(side: Side, number: int, kind: str, name: str, classes: Any, extra: Any = None) -> Any:
    """What stands for object `number` of the solution. `extra`: a function's documentation, an exception's built-in
    base, the plain content of a subclass of a built-in type."""
    if kind == "call":
        return remote_function(side, number, name, extra)
    if kind == "coroutine":
        return remote_coroutine(side, number)
    if kind == "error":
        base = getattr(builtins, str(extra), Exception)
        base = base if isinstance(base, type) and issubclass(base, BaseException) else Exception
        return type(name, (base,), {"_sdpo": (side, number), "__getattr__": remote_attribute_of_error})
    if kind == "class":
        return RemoteClass(name, (), {"_sdpo": (side, number)})
    if extra is not None:
        plain = decode(extra)
        if type(plain) in PLAIN_SUBCLASSES:
            return PLAIN_SUBCLASSES[type(plain)].attach(plain, side, number)
    return RemoteIterator(side, number) if kind == "iter" and classes is None else RemoteObject(side, number)


def remote_number(value: Any) -> int | None:
    """The number of a proxy, None for everything else; asks no foreign code."""
    kind = type(value)
    if kind is RemoteClass or (isinstance(value, type) and "_sdpo" in type.__getattribute__(value, "__dict__")):
        return type.__getattribute__(value, "__dict__")["_sdpo"][1]
    if kind in (RemoteObject, RemoteIterator) or kind in PLAIN_SUBCLASSES.values():
        return object.__getattribute__(value, "_sdpo")[1]
    if kind is type(remote_number) or isinstance(value, BaseException):
        reference = object.__getattribute__(value, "__dict__").get("_sdpo")
        return reference[1] if reference else None
    return None


def remote_function(side: Side, number: int, name: str, documentation: Any) -> Callable[..., Any]:
    def proxy(*args: Any, **kwargs: Any) -> Any:
        return side.ask("call", [proxy, *args], kwargs)

    proxy.__name__ = proxy.__qualname__ = name
    proxy.__doc__ = documentation if type(documentation) is str else None
    proxy._sdpo = (side, number)  # type: ignore[attr-defined]
    return proxy


async def remote_coroutine(side: Side, number: int) -> Any:
    """Runs there, in an event loop of its own, when the tests await it here."""
    return side.ask("await", [RemoteObject(side, number)])


def remote_attribute(value: Any, name: str) -> Any:
    if name.startswith(MEMORY_PROTOCOLS):
        raise AttributeError(name)
    return _reference(value)[0].ask("getattr", [value, name])


def remote_attribute_of_error(value: BaseException, name: str) -> Any:
    """What a class of the solution keeps in its exceptions; what the interpreter looks for in any stays here."""
    if name.startswith("_") or "_sdpo" not in vars(value):
        raise AttributeError(name)
    return remote_attribute(value, name)


def _remote(name: str) -> Callable[..., Any]:
    def method(self: Any, *args: Any) -> Any:
        return _reference(self)[0].ask(name, [self, *args])

    return method


def _reference(value: Any) -> tuple[Side, int]:
    if isinstance(value, type):
        return type.__getattribute__(value, "__dict__")["_sdpo"]
    return object.__getattribute__(value, "_sdpo")


class RemoteObject:
    def __init__(self, side: Side, number: int) -> None:
        object.__setattr__(self, "_sdpo", (side, number))

    __getattr__ = remote_attribute
    __doc__ = property(lambda self: remote_attribute(self, "__doc__"))

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        return _reference(self)[0].ask("call", [self, *args], kwargs)

    def __eq__(self, other: object) -> bool:
        if self is other:
            return True
        if (theirs := remote_number(other)) is None:
            return False
        side, number = _reference(self)
        if {side.testimony.known[n].kind for n in (number, theirs)} == {"member"}:
            return False
        side.weak.append("two objects of the program were compared by the program")
        return bool(side.ask("eq", [self, other]))

    def __ne__(self, other: object) -> bool:
        return not self == other

    def __exit__(self, *error: Any) -> bool:
        """The exception itself stays here: it may hold values of the tests. Only its class, name and text go over."""
        side, _ = _reference(self)
        swallowed = bool(side.ask("exit", [self, *described(error[1])]))
        if swallowed and error[1] is not None:
            side.weak.append("an exception of the tests was swallowed by the program")
        return swallowed


_ASKED_THERE = """
len iter next bool str repr hash int float index getitem setitem delitem enter reversed round abs neg pos invert
setattr delattr lt le gt ge contains add sub mul truediv floordiv mod pow matmul and_ or_ xor lshift rshift divmod
"""
for _name in _ASKED_THERE.split():
    setattr(RemoteObject, f"__{_name.rstrip('_')}__", _remote(_name))


class RemoteIterator:
    """A generator, or another iterator of the interpreter's: gives its items, and answers nothing else."""

    __init__ = RemoteObject.__init__
    __getattr__ = remote_attribute
    __iter__ = _remote("iter")
    __next__ = _remote("next")
    __bool__ = _remote("bool")  # true whatever it gives: no answer to a question of the tests


def _reflected(name: str) -> Callable[..., Any]:
    def method(self: Any, other: Any) -> Any:
        return _reference(self)[0].ask(name, [other, self])

    return method


for _name in ["add", "sub", "mul", "truediv", "floordiv", "mod", "pow", "and_", "or_", "xor"]:
    setattr(RemoteObject, f"__r{_name.rstrip('_')}__", _reflected(_name))


class RemoteClass(type):
    """Classes of the solution: called to make objects, asked for attributes and instance checks."""

    def __new__(mcs, name: str, bases: tuple[type, ...], space: dict[str, Any]) -> Any:
        if bases:
            raise UnsupportedTests("the tests derive a class from one of the solution")
        return super().__new__(mcs, name, bases, space)

    def __call__(cls, *args: Any, **kwargs: Any) -> Any:
        return _reference(cls)[0].ask("call", [cls, *args], kwargs)

    __getattr__ = remote_attribute

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


def described(error: BaseException | None) -> tuple[str, str] | tuple[()]:
    """(built-in class, text) of an exception for the solution's `__exit__`."""
    return (error_base(type(error)), str(error)[:300]) if error is not None else ()


def _plain_subclass(base: type) -> type:
    """A value of a subclass: compares as its plain content, and asks the other process only for extra attributes."""

    def attach(content: Any, side: Side, number: int) -> Any:
        value = base.__new__(kind, content) if base in (str, int, float, tuple, frozenset, bytes) else kind(content)
        value._sdpo = (side, number)
        return value

    kind = type(f"Remote_{base.__name__}", (base,), {"__getattr__": remote_attribute, "attach": staticmethod(attach)})
    return kind


PLAIN_SUBCLASSES: dict[type, Any] = {base: _plain_subclass(base) for base in PLAIN_BASES}


def numpy_array(dtype: str, nested: Any) -> Any:
    try:
        import numpy
    except ImportError:
        raise FrameError("an array, and there is no numpy") from None
    if numpy.dtype(dtype).kind not in NUMPY_KINDS:
        raise FrameError("an array of objects")
    return numpy.array(nested, dtype=dtype)
