"""The world as a graded program sees it: fresh standard streams, its own module, an empty-looking `sys.argv`."""

from __future__ import annotations

import atexit
import builtins
import functools
import importlib
import io
import os
import sys
import threading
import types
from typing import Any

from . import faults

CHANNEL, PAYLOAD, LINK = 3, 4, 5
FIRST_READ = 1 << 20


# Names of the standard streams that lead through /proc, which a run does not have.
STANDARD = {
    f"{folder}{name}": fd
    for fd, word in enumerate(("stdin", "stdout", "stderr"))
    for folder, name in (
        *(("/dev/", word), ("/dev/fd/", str(fd))),
        *((f"/proc/{who}/fd/", str(fd)) for who in ("self", "thread-self", "1")),
    )
}


def standard(path: Any) -> int | None:
    """The descriptor behind the name of a standard stream, for everything that takes paths."""
    if isinstance(path, (str, bytes, os.PathLike)):
        try:
            name = os.fsdecode(path)
        except (TypeError, ValueError):  # what the real function will say better
            return None
        return STANDARD.get(os.path.normpath(name)) if name.startswith(("/dev/", "/proc/", "//")) else None
    return None


def _knowing_streams(function: Any, first: str, use: Any) -> Any:
    """`function(path, ...)`, or `use(descriptor, ...)` where the path names a standard stream. Not a plain function:
    that would become a method where a class keeps it. `first`: name of the parameter."""

    def call(*args: Any, **kwargs: Any) -> Any:
        fd = standard(args[0] if args else kwargs.get(first))
        if fd is None:
            return function(*args, **kwargs)
        kwargs.pop(first, None)
        return use(fd, *args[1:], **kwargs)

    return functools.update_wrapper(functools.partial(call), function)


def know_streams() -> None:
    """Files are opened through `open`, also by pathlib, fileinput and numpy, or through os.open; os.stat says that
    they are there. In the server, before others take these functions as they are."""
    opened = io.open
    builtins.open = io.open = _knowing_streams(opened, "file", lambda fd, *a, **k: opened(os.dup(fd), *a, **k))
    answers = {"open": os.dup, "stat": os.fstat, "access": lambda fd: True}
    for name, answer in answers.items():
        function = getattr(os, name)
        knowing = _knowing_streams(function, "path", lambda fd, *args, answer=answer, **kwargs: answer(fd))
        setattr(os, name, knowing)
        for able in (os.supports_dir_fd, os.supports_fd, os.supports_follow_symlinks, os.supports_effective_ids):
            able |= {knowing} if function in able else set()


def read_payload() -> bytes:
    data = os.read(PAYLOAD, FIRST_READ)
    while len(data) % FIRST_READ == 0 and (more := os.read(PAYLOAD, FIRST_READ)):
        data += more
    os.close(PAYLOAD)
    return data


def read_source() -> str:
    return read_payload().decode("utf-8", "surrogatepass")


_streams: list[Any] = []
# A copy for the program: one that replaces `len` does not pull the rug from under what reads and writes its answers.
_builtins = types.ModuleType("builtins")


def prepare() -> None:
    """In the server: makes the streams that every child uses over descriptors 0 to 2 - over descriptors of the same
    kinds, since a stream remembers what it stands on - and takes the harness out of what a program can import."""
    kept = [os.dup(number) for number in range(3)]
    stdin = os.memfd_create("stdin")
    read, write = os.pipe()
    for number, fd in enumerate((stdin, write, write)):
        os.dup2(fd, number)
    options: dict[str, Any] = {"encoding": "utf-8", "closefd": False}
    _streams[:] = [
        open(0, errors="surrogateescape", **options),  # noqa: SIM115
        open(1, "w", errors="surrogateescape", **options),  # noqa: SIM115
        open(2, "w", 1, errors="backslashreplace", **options),  # noqa: SIM115
    ]
    for number, fd in enumerate(kept):
        os.dup2(fd, number)
    for fd in (*kept, stdin, read, write):
        os.close(fd)
    vars(_builtins).update(vars(builtins))
    atexit._clear()
    _streams.append({key: sys.modules.pop(key) for key in list(sys.modules) if key.split(".")[0] == "sdpo"})


def offer_usual_names() -> None:
    """What a `class Solution` may take for granted where such problems come from: names of typing and of the usual
    modules, without an import. As built-ins, so that none of them counts as defined by the solution."""
    for name in (
        "typing",
        "collections",
        "heapq",
        "bisect",
        "itertools",
        "functools",
        "math",
        "string",
        "re",
        "random",
    ):
        module = importlib.import_module(name)
        public = getattr(module, "__all__", None) or [word for word in vars(module) if not word.startswith("_")]
        for word in public:
            vars(_builtins).setdefault(word, getattr(module, word))
        vars(_builtins).setdefault(name, module)


def set_streams() -> None:
    sys.stdin = sys.__stdin__ = _streams[0]  # type: ignore[misc] # Final in the stubs
    sys.stdout = sys.__stdout__ = _streams[1]  # type: ignore[misc] # Final in the stubs
    sys.stderr = sys.__stderr__ = _streams[2]  # type: ignore[misc] # Final in the stubs


def new_module(name: str, file: str = faults.FILE) -> types.ModuleType:
    """A module that dataclasses, pickle and typing can look up."""
    module = types.ModuleType(name)
    module.__file__ = file
    module.__builtins__ = sys.modules["builtins"] = _builtins  # type: ignore[attr-defined]
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
        if threading.active_count() > 1:
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
