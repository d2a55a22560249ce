"""What every command does as a program of its own: its standard streams, its last line, its exit code."""

from __future__ import annotations

import errno
import functools
import io
import os
import signal
import sys
from collections.abc import Callable, Sequence
from typing import Any, TextIO

from sdpo.errors import DISK_ERRORS, OutputLost, Refusals, SdpoError

READER_GONE = 128 + signal.SIGPIPE  # as shells report a program that SIGPIPE ended
_WHY = {errno.EPIPE: "its reader is gone", errno.EBADF: "it is closed"}


def program(main: Callable[..., int]) -> Callable[..., int]:
    """A decorator for `main(argv=None)`: an error of ours is one line and its exit code, and so is Ctrl-C. Called
    without arguments, that is by a shell, output that cannot be written is one as well, however it was lost."""

    @functools.wraps(main)
    def as_program(argv: Sequence[str] | None = None) -> int:
        return _with_streams(main) if argv is None else _outcome(main, argv)

    return as_program


def _outcome(main: Callable[..., int], argv: Sequence[str] | None) -> int:
    try:
        return main(argv)
    except SdpoError as error:
        return told(error)
    except KeyboardInterrupt:
        print("interrupted", file=sys.stderr)
        return 128 + signal.SIGINT
    except OSError as error:
        if error.errno not in DISK_ERRORS:
            raise
        return told(OutputLost(f"{error.filename or 'a file'}: {error.strerror}"))


def told(error: SdpoError) -> int:
    """Prints the error with its notes; returns its exit code."""
    notes = getattr(error, "__notes__", [])
    if error.exit_code == READER_GONE and not notes:  # `| head` has seen enough
        return READER_GONE
    for one in error.refused if isinstance(error, Refusals) else [error]:
        print(f"error: {' '.join('; '.join([str(one), *notes]).split())}", file=sys.stderr)
    return error.exit_code


def _with_streams(main: Callable[..., int]) -> int:
    _occupy_standard_descriptors()
    output = _named_output()
    try:
        code = _outcome(main, None)
    except SystemExit as stop:  # argparse's holds a number; that of `sys.exit("why")` a last line
        code = stop.code if isinstance(stop.code, int) else int(stop.code is not None)
        if isinstance(stop.code, str):
            print(stop.code, file=sys.stderr)
    try:
        sys.stdout.flush()
    except OutputLost as error:
        return told(error)
    if output and output.lost and code == 0:  # somebody in between took no notice
        return told(output.lost)
    return code


def _occupy_standard_descriptors() -> None:
    """A program that is started without standard streams would get their numbers for its own files and pipes."""
    for number in range(3):
        try:
            os.fstat(number)
        except OSError:
            found = os.open(os.devnull, os.O_RDONLY)  # writing to it fails, as it should
            if found != number:
                os.dup2(found, number)
                os.close(found)
    sys.stdin = sys.stdin or open(0, closefd=False)  # noqa: SIM115 (lives as long as the process)


def _named_output() -> _Output | None:
    """Puts named streams in the place of the process's own; None where they are others already, as in tests."""
    if sys.stdout is not sys.__stdout__:
        return None
    output = _Output(1, "standard output")
    sys.stdout = _text(output, sys.stdout)
    sys.stderr = _text(_Output(2, None), sys.stderr)
    return output


def _text(raw: io.RawIOBase, like: TextIO | None) -> io.TextIOWrapper:
    return io.TextIOWrapper(
        io.BufferedWriter(raw),
        encoding=like.encoding if like else None,
        errors=like.errors if like else "backslashreplace",
        line_buffering=raw.isatty() or bool(like and like.line_buffering),
        write_through=getattr(like, "write_through", False),
    )


class _Output(io.FileIO):
    """A standard stream whose failure says what failed, once; what comes after it goes nowhere. Without a name there is
    nobody left to tell."""

    def __init__(self, number: int, name: str | None) -> None:
        super().__init__(number, "w", closefd=False)
        self.named = name
        self.lost: OutputLost | None = None

    def write(self, data: Any) -> int:
        try:
            return super().write(data)
        except OSError as error:
            os.dup2(os.open(os.devnull, os.O_WRONLY), self.fileno())
            if self.named is None:
                return len(data)
            self.lost = lost = OutputLost(f"{self.named}: {_WHY.get(error.errno or 0, error.strerror)}")
            if error.errno == errno.EPIPE:
                lost.exit_code = READER_GONE
            raise lost from error
