"""The parser of Python programs, one thread at a time.

CPython 3.11 keeps the depth of a tree under construction in one place per interpreter. When the garbage collector runs
a finalizer in the middle of it and another thread begins a tree of its own, one of the two ends with
`SystemError: AST constructor recursion depth mismatch`: a correct program would go ungraded.
"""

from __future__ import annotations

import ast
from contextlib import suppress
from threading import Lock

_ONE_AT_A_TIME = Lock()
_MORE_ATTEMPTS = 4  # a custom grader may call `ast.parse` itself, without the lock


def parse(source: str, filename: str = "<unknown>") -> ast.Module:
    """As `ast.parse`: SyntaxError, ValueError, RecursionError or MemoryError for what is no program. Thread-safe."""
    with _ONE_AT_A_TIME:
        for _ in range(_MORE_ATTEMPTS):
            with suppress(SystemError):
                return ast.parse(source, filename)
        return ast.parse(source, filename)
