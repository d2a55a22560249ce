"""Ctrl-C and SIGTERM end a run through every `finally`, in one line."""

from __future__ import annotations

import os
import signal
import sys
import threading
import time
from types import FrameType

MESSAGE = "%s; with trainer.resume_mode=auto, the default, the same command goes on from the newest checkpoint, if any"
PATIENCE_S = 2.0  # a second signal after it means: now


class Terminated(KeyboardInterrupt):
    """SIGTERM arrived."""


def exit_code(stop: KeyboardInterrupt) -> int:
    """As shells report a death by that signal."""
    return 128 + (signal.SIGTERM if isinstance(stop, Terminated) else signal.SIGINT)


def message(stop: KeyboardInterrupt) -> str:
    return MESSAGE % ("terminated" if isinstance(stop, Terminated) else "interrupted")


def end_at_once_on_signals() -> None:
    """For the time in which there is nothing to clean up: a library that is being imported may swallow an exception."""
    _install(_end)


def raise_on_signals() -> None:
    """To be called again after anything that installs a handler of its own (Ray does)."""
    _install(_Raise())


def _install(handler) -> None:
    if threading.current_thread() is threading.main_thread():  # no other may
        for number in (signal.SIGINT, signal.SIGTERM):
            signal.signal(number, handler)


def _end(signum: int, frame: FrameType | None) -> None:
    stop = Terminated() if signum == signal.SIGTERM else KeyboardInterrupt()
    print(message(stop), file=sys.stderr, flush=True)
    os._exit(exit_code(stop))


class _Raise:
    """Raises at the first signal; one more breaks off the cleaning up, but not when both come together."""

    def __init__(self) -> None:
        self._first: float | None = None

    def __call__(self, signum: int, frame: FrameType | None) -> None:
        now = time.monotonic()
        if self._first is None:
            self._first = now
            raise Terminated if signum == signal.SIGTERM else KeyboardInterrupt
        if now > self._first + PATIENCE_S:
            _end(signum, frame)
