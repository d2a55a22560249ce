"""What went wrong in a graded program, as plain data: type, message, and the program's own frames with their source
lines."""

from __future__ import annotations

import linecache
import types
from typing import Any

from .frames import describe

FILE = "solution.py"
MAX_MESSAGE = 500
FIRST_FRAMES, LAST_FRAMES = 3, 7


def load_source(source: str, file: str = FILE) -> None:
    """Lets tracebacks quote lines of a file that does not exist."""
    linecache.cache[file] = (lambda: source,)  # split into lines when a traceback asks for one


def frames(traceback: types.TracebackType | None, file: str = FILE) -> list[list]:
    """[line, function, source] of the program's own frames, outermost first; a long middle is dropped."""
    head: list[list] = []
    tail: list[list] = []
    skipped = 0
    while traceback is not None:
        code = traceback.tb_frame.f_code
        if code.co_filename == file:
            row = [traceback.tb_lineno, code.co_name[:80], linecache.getline(file, traceback.tb_lineno).strip()[:200]]
            (head if len(head) < FIRST_FRAMES else tail).append(row)
            if len(tail) > LAST_FRAMES:
                tail.pop(0)
                skipped += 1
        traceback = traceback.tb_next
    return [*head, [0, "", f"... {skipped} more frames ..."], *tail] if skipped else [*head, *tail]


def fault(error: BaseException, file: str = FILE) -> dict[str, Any]:
    """{"type", "message", "frames", "code"}; survives exceptions whose own methods raise. "code" is SystemExit's
    argument."""
    kind = type(error)
    name = type.__getattribute__(kind, "__name__")
    try:
        message = str.__str__(str(error))[:MAX_MESSAGE]
    except BaseException:  # the exception's own code may raise anything
        message = describe(error)
    rows = frames(BaseException.__getattribute__(error, "__traceback__"), file)
    if isinstance(error, SyntaxError) and error.filename == file and isinstance(error.lineno, int):
        message = str(error.msg)[:MAX_MESSAGE]
        rows.append([error.lineno, "<module>", str(error.text or "").strip()[:200]])
    result: dict[str, Any] = {"type": name[:80], "message": message, "frames": rows}
    if kind is SystemExit:
        code = error.code  # type: ignore[attr-defined]
        result["code"] = code if code is None or type(code) is int else describe(code)
    return result
