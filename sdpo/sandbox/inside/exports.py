"""Objects that stay where they are and are spoken to by number. Both sides of a link keep one such table."""

from __future__ import annotations

import builtins
import collections
import contextlib
import datetime
import enum
import importlib
import operator
import re
import sys
import types
from collections.abc import Callable, Iterable
from decimal import Decimal
from fractions import Fraction
from typing import Any

from .frames import FrameError

# Exact types that travel as values; everything else stays and is referred to.
VALUES = (
    *(set, frozenset, bytes, bytearray, complex, Decimal, Fraction),
    *(collections.deque, collections.Counter, collections.OrderedDict, collections.defaultdict),
    *(datetime.datetime, datetime.date, datetime.time, datetime.timedelta),
)
IMMUTABLE = 1 << 8  # flag of the interpreter's own types; no class statement makes a type that has it
STORED = (types.MemberDescriptorType, types.GetSetDescriptorType, type(vars(collections.namedtuple("P", "x"))["x"]))
# Types whose attribute lookup runs no code of a value's own class; a module, a proxy or a metaclass may.
PLAIN_LOOKUP = frozenset(
    {object, BaseException, types.SimpleNamespace, str, int, float, tuple, list, dict, set, frozenset, bytes}
)
MATCH = re.Match
VIEWS = {"keys": type({}.keys()), "values": type({}.values()), "items": type({}.items())}
PLAIN_BASES = (str, int, float, tuple, list, dict, set, frozenset, bytes)
_OPERATORS = """
add sub mul truediv floordiv mod pow matmul and_ or_ xor lshift rshift neg pos invert abs index lt le gt ge eq ne
contains getitem setitem delitem
"""


def leave(manager: Any, base: str | None = None, message: str = "") -> Any:
    """`__exit__` with an exception made after the one that the tests raised, or with none."""
    if base is None:
        return manager.__exit__(None, None, None)
    error = make_error(base, message)
    return manager.__exit__(type(error), error, None)


def make_error(base: Any, message: Any) -> BaseException:
    """A built-in exception by name; RuntimeError for what is none."""
    kind = getattr(builtins, str(base), RuntimeError)
    if not (isinstance(kind, type) and issubclass(kind, BaseException)):
        kind = RuntimeError
    try:
        return kind(str(message)[:600])
    except TypeError:  # e.g. UnicodeDecodeError wants five arguments
        return kind.__new__(kind)


OPERATIONS: dict[str, Callable[..., Any]] = {word: getattr(operator, word) for word in _OPERATORS.split()}
OPERATIONS |= {
    operation.__name__: operation
    for operation in (
        *(len, iter, next, bool, str, repr, hash, int, float, divmod, round, reversed),
        *(getattr, setattr, delattr, isinstance, issubclass),
    )
}
OPERATIONS["enter"] = lambda manager: manager.__enter__()
OPERATIONS["await"] = lambda awaitable: importlib.import_module("asyncio").run(awaitable)  # slow to import, rarely used
OPERATIONS["exit"] = leave


class Exports:
    """Numbers for objects; the same object keeps its number, and stays alive."""

    def __init__(self) -> None:
        self.objects: list[Any] = []
        self._numbers: dict[int, int] = {}

    def number(self, value: Any) -> int:
        if id(value) not in self._numbers:
            self._numbers[id(value)] = len(self.objects)
            self.objects.append(value)
        return self._numbers[id(value)]

    def known(self, values: Iterable[Any]) -> list[int]:
        """The numbers of those that have one."""
        return [self._numbers[id(value)] for value in values if id(value) in self._numbers]


def is_own(kind: type) -> bool:
    """Whether a class was written in Python, so that a program may have written it."""
    return not type.__dict__["__flags__"].__get__(kind) & IMMUTABLE


def bases_of(kind: type) -> tuple[type, ...]:
    return type.__dict__["__mro__"].__get__(kind)


def is_stored(value: Any, name: Any) -> bool:
    """Whether an attribute that was found is only looked up, in the object or its class: no code of a class ran."""
    spaces = [(base, type.__dict__["__dict__"].__get__(base)) for base in bases_of(type(value))]
    getter = next(base for base, space in spaces if "__getattribute__" in space)
    entry = next((space[name] for _, space in spaces if name in space), None)
    if getter not in PLAIN_LOOKUP:
        return False
    if entry is None:
        return not any("__getattr__" in space for _, space in spaces)
    return type(entry) in STORED or not any("__get__" in vars(base) for base in bases_of(type(entry)))


def encode_rare(value: Any, encode: Callable[[Any], Any]) -> dict[str, Any] | None:
    """Data for built-in values that the frames do not know: ranges, and the views of a dict."""
    if type(value) is range:
        return {"range": [value.start, value.stop, value.step]}
    word = next((word for word, kind in VIEWS.items() if type(value) is kind), None)
    if word is None:
        return None
    content = dict.fromkeys(value) if word == "keys" else dict(enumerate(value) if word == "values" else value)
    return {"view": [word, encode(content)]}


def decode_rare(tag: str, body: Any, decode: Callable[[Any], Any]) -> Any:
    """None when the tag is of another kind. FrameError for what the other function never says."""
    if tag == "range":
        return range(*map(int, body))
    if tag == "view":
        word, content = body[0], decode(body[1])
        if word not in VIEWS or type(content) is not dict:
            raise FrameError("not a view")
        return getattr(content, word)()
    return None


def is_array(value: Any) -> bool:
    numpy = sys.modules.get("numpy")
    return numpy is not None and type(value) is numpy.ndarray


def is_value(value: Any) -> bool:
    kind = type(value)
    if kind in VALUES or kind is range:
        return True
    module = type.__getattribute__(kind, "__module__")
    return type(module) is str and module.split(".")[0] == "numpy" and not is_own(kind)


def built_in(value: Any) -> str | None:
    """The name of a built-in class or function; both sides have their own. None for everything else."""
    if not isinstance(value, (type, types.BuiltinFunctionType)):
        return None
    name = type.__getattribute__(value, "__name__") if isinstance(value, type) else value.__name__
    return name if vars(builtins).get(name) is value else None


def built_in_class(name: Any) -> type:
    """Raises FrameError for what is no built-in class: a function named by the other side is not called here."""
    value = vars(builtins).get(name)
    if not isinstance(value, type):
        raise FrameError("not a built-in class")
    return value


def kind_of(value: Any) -> str:
    """class, error (an exception class), call (a function), coroutine, manager (a function made one), member (of an
    enum, equal to itself alone), match (of a pattern, in a text that cannot change), iter, callable (of another type of
    the interpreter's, e.g. a partial), or object."""
    if isinstance(value, type):
        return "error" if issubclass(value, BaseException) else "class"
    if isinstance(value, types.CoroutineType):
        return "coroutine"
    if isinstance(value, (types.FunctionType, types.BuiltinFunctionType, types.MethodType)):
        return "call"
    if type(value) is contextlib._GeneratorContextManager:
        return "manager"
    if type(type(value)) is enum.EnumType and type(value).__eq__ is object.__eq__:
        return "member"
    if type(value) is MATCH and type(value.string) in (str, bytes):
        return "match"
    if hasattr(type(value), "__next__"):
        return "iter"
    return "callable" if not is_own(type(value)) and hasattr(type(value), "__call__") else "object"  # noqa: B004


def name_of(value: Any) -> str:
    name = getattr(value, "__name__", None)
    return name[:80] if type(name) is str else type.__getattribute__(type(value), "__name__")[:80]


def error_base(kind: type) -> str:
    """The nearest built-in exception class."""
    for base in type.mro(kind):
        if base.__module__ == "builtins" and base.__name__ != "object":
            return base.__name__
    return "Exception"
