"""A user's Python file: its functions, and the place in it that a fault comes from."""

from __future__ import annotations

import importlib.util
import linecache
import sys
import traceback
from collections.abc import Callable, Iterable
from pathlib import Path
from types import CodeType, FrameType
from typing import Any

from sdpo.errors import ConfigError, problem

SHOWN = 100  # characters of a line of code


def load_function(path: str, name: str, field: str) -> Callable[..., Any]:
    """A function or class of the file that `field` names. Raises ConfigError when it is not there."""
    return load_functions(path, [name], field)[name]


def load_functions(path: str, names: Iterable[str], field: str) -> dict[str, Callable[..., Any]]:
    """Several of one file, which is run once. The modules beside it can be imported, at its head and later."""
    file = Path(path).expanduser()
    if not file.is_file():
        raise ConfigError(problem(f"{field}.path", path, "a Python file"))
    file = file.resolve()
    spec = importlib.util.spec_from_file_location(f"sdpo_file_of_{field.rpartition('.')[2]}", file)
    assert spec is not None
    module = importlib.util.module_from_spec(spec)
    linecache.checkcache(str(file))
    # In front while the file is run, so that it finds its own; behind afterwards, so that nobody else finds them first.
    folder = str(file.parent)
    sys.path.insert(0, folder)
    try:
        sys.modules[spec.name] = module  # dataclasses look their module up
        # Not through the loader: its bytecode cache takes a file edited within a second for the old one.
        exec(compile(file.read_bytes(), str(file), "exec"), module.__dict__)
    except (Exception, SystemExit) as error:  # whatever the user's file raises
        raise ConfigError(f"{field}.path: {path} cannot be imported: {fault(error, file.parent)}") from error
    finally:
        sys.path.remove(folder)
        if folder not in sys.path:
            sys.path.append(folder)
    found = {name: getattr(module, name, None) for name in names}
    for name, function in found.items():
        if not callable(function):
            known = [key for key, value in vars(module).items() if callable(value) and not key.startswith("_")]
            raise ConfigError(problem(f"{field}.name", name, ", ".join(known) or f"a function of {path}"))
    return found  # type: ignore[return-value]  # mypy does not follow the loop


def told(error: BaseException) -> str:
    """One line of what the user's code raised."""
    if isinstance(error, SystemExit):
        return f"it calls sys.exit({error.code!r}); raise an exception instead"
    text = " ".join(f"{type(error).__name__}: {error}".split())[:500]
    if "signal only works in main thread" in text:
        return f"{text}; graders run in threads: use a time limit without signals, or none"
    return text


def fault(error: BaseException, folder: Path) -> str:
    """What the user's code raised, behind the place: the innermost line of a file in the folder."""
    if isinstance(error, SyntaxError) and error.filename and error.lineno:
        return f"{place(error.filename, error.lineno)}: {type(error).__name__}: {error.msg}"
    lines = [(f.f_code.co_filename, line) for f, line in traceback.walk_tb(error.__traceback__) if _inside(f, folder)]
    return f"{place(*lines[-1])}: {told(error)}" if lines else told(error)


def place_of_frame(frame: FrameType | None, folder: Path) -> str | None:
    """Where the user's code is now, as far in as it is the user's."""
    while frame is not None and not _inside(frame, folder):
        frame = frame.f_back
    return place(frame.f_code.co_filename, frame.f_lineno) if frame else None


def place(file: str, line: int) -> str:
    """reward.py line 3: `return 1 / 0`"""
    code = " ".join(linecache.getline(file, line).split())
    shown = Path(file)
    if shown.is_relative_to(Path.cwd()):
        shown = shown.relative_to(Path.cwd())
    return f"{shown} line {line}" + (f": `{code[:SHOWN]}`" if code else "")


def code_of(function: Any) -> CodeType | None:
    """The code behind decorators, partial applications, bound methods and objects that can be called."""
    for _ in range(SHOWN):
        for name in ("__wrapped__", "func", "__func__"):
            function = getattr(function, name, function)
        if isinstance(code := getattr(function, "__code__", None), CodeType):
            return code
        function = getattr(type(function), "__call__", None)  # noqa: B004 (its code is wanted)
    return None


def _inside(frame: FrameType, folder: Path) -> bool:
    file = Path(frame.f_code.co_filename)
    return file.is_relative_to(folder) and "site-packages" not in file.parts
