"""The world as a graded program sees it: fresh standard streams, its own module, an empty-looking `sys.argv`."""

from __future__ import annotations

import atexit
import os
import sys
import threading
import types

from . import faults

CHANNEL, PAYLOAD, LINK = 3, 4, 5


def read_payload() -> str:
    size = os.fstat(PAYLOAD).st_size
    parts = []
    at = 0
    while at < size:
        part = os.pread(PAYLOAD, size - at, at)
        if not part:
            break
        parts.append(part)
        at += len(part)
    os.close(PAYLOAD)
    return b"".join(parts).decode("utf-8", "surrogatepass")


def set_streams() -> None:
    """New objects over descriptors 0 to 2: nothing buffered or cached before the fork shows through."""
    options = {"encoding": "utf-8", "closefd": False}
    sys.stdin = sys.__stdin__ = open(0, errors="surrogateescape", **options)  # noqa: SIM115
    sys.stdout = sys.__stdout__ = open(1, "w", errors="surrogateescape", **options)  # noqa: SIM115
    sys.stderr = sys.__stderr__ = open(2, "w", 1, errors="backslashreplace", **options)  # noqa: SIM115


def new_module(name: str, file: str = faults.FILE) -> types.ModuleType:
    """A module that dataclasses, pickle and typing can look up; the harness's own modules leave `sys.modules`."""
    for loaded in [key for key in sys.modules if key == "sdpo" or key.startswith("sdpo.")]:
        del sys.modules[loaded]
    module = types.ModuleType(name)
    module.__file__ = file
    module.__builtins__ = sys.modules["builtins"]  # type: ignore[attr-defined]
    sys.modules[name] = module
    sys.argv = [file]
    return module


def flush() -> bool:
    """False when the output could not be written."""
    try:
        sys.stdout.flush()
        sys.stderr.flush()
    except BaseException:  # a replaced stream may raise anything
        return False
    return True


def finish(code: int) -> None:
    """Ends the process as the interpreter would: joins threads, runs exit handlers, flushes; never returns."""
    try:
        threading._shutdown()  # type: ignore[attr-defined]
        atexit._run_exitfuncs()
    except BaseException:  # exit handlers belong to the program
        pass
    if not flush() and code == 0:
        code = 120
    os._exit(code)


def exit_code(error: SystemExit) -> int:
    """What the shell would see."""
    code = error.code
    if code is None:
        return 0
    if isinstance(code, int):
        return code & 0xFF
    print(code, file=sys.stderr)
    return 1
