"""Objects that stay where they are and are spoken to by number. Both sides of a link keep one such table."""

from __future__ import annotations

import builtins
import collections
import datetime
import importlib
import operator
import types
from collections.abc import Callable
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


def is_value(value: Any) -> bool:
    kind = type(value)
    if kind in VALUES or kind is range:
        return True
    module = type.__getattribute__(kind, "__module__")
    return type(module) is str and module.split(".")[0] == "numpy"


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
    """class, error (an exception class), call (any other callable), coroutine, iter, or object."""
    if isinstance(value, type):
        return "error" if issubclass(value, BaseException) else "class"
    if isinstance(value, types.CoroutineType):
        return "coroutine"
    if isinstance(value, (types.FunctionType, types.BuiltinFunctionType, types.MethodType)):
        return "call"
    return "iter" if hasattr(type(value), "__next__") else "object"


def name_of(value: Any) -> str:
    name = getattr(value, "__name__", None)
    return name[:80] if type(name) is str else type.__getattribute__(type(value), "__name__")[:80]


def error_base(kind: type) -> str:
    """The nearest built-in exception class."""
    for base in type.mro(kind):
        if base.__module__ == "builtins" and base.__name__ != "object":
            return base.__name__
    return "Exception"
