"""Ctrl-C and SIGTERM end a run through every `finally`, in one line."""

from __future__ import annotations

import os
import signal
import sys
import threading
import time
from asyncio import AbstractEventLoop
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from types import FrameType

from sdpo.errors import OutputLost

AT_ONCE = "%s at once; the same command goes on from the newest complete checkpoint, or starts anew where there is none"
PATIENCE_S = 2.0  # a second signal after it means: now


class Terminated(KeyboardInterrupt):
    """SIGTERM arrived."""


STOPS = (KeyboardInterrupt, OutputLost)  # the person has gone, or who was to read the console


def exit_code(stop: KeyboardInterrupt) -> int:
    """As shells report a death by that signal."""
    return 128 + (signal.SIGTERM if isinstance(stop, Terminated) else signal.SIGINT)


def message(stop: KeyboardInterrupt) -> str:
    """One line; whoever knows what becomes of the work has added a note to the exception."""
    notes = getattr(stop, "__notes__", None) or ["nothing had been trained yet"]
    return "; ".join([_word(stop), *notes])


def _word(stop: KeyboardInterrupt) -> str:
    return "terminated" if isinstance(stop, Terminated) else "interrupted"


def end_at_once_on_signals() -> None:
    """For the time in which there is nothing to clean up: a library that is being imported may swallow an exception."""
    _install(_end)


def raise_on_signals() -> None:
    """To be called again after anything that installs a handler of its own (Ray does)."""
    _RAISE.reset()
    _install(_RAISE)


@contextmanager
def held(say: Callable[[str], None] | None) -> Iterator[None]:
    """A signal in the block is raised at its end, and `say` told at once that it has arrived. None: not held."""
    if say is None:
        yield
        return
    _RAISE.hold = say
    try:
        yield
    finally:
        _RAISE.hold = None
    _RAISE.raise_held()


@contextmanager
def raised_in(loop: AbstractEventLoop) -> Iterator[None]:
    """While the loop runs in the block, a signal is raised between two of its callbacks and ends it. Anywhere else it
    would leave libraries half done: a thread that nobody knows of, for which the process then waits at its end."""
    _RAISE.loop = loop
    try:
        yield
    finally:
        _RAISE.loop = None
        if _RAISE.hold is None:  # else at the end of that block, which may hold several runs of the loop
            _RAISE.raise_held()


def _install(handler) -> None:
    if threading.current_thread() is threading.main_thread():  # no other may
        for number in (signal.SIGINT, signal.SIGTERM):
            signal.signal(number, handler)


def _end(signum: int, frame: FrameType | None) -> None:
    stop = _stop(signum)
    print(AT_ONCE % _word(stop), file=sys.stderr, flush=True)
    os._exit(exit_code(stop))


def _stop(signum: int) -> KeyboardInterrupt:
    return Terminated() if signum == signal.SIGTERM else KeyboardInterrupt()


class _Raise:
    """Raises at the first signal; one more breaks off the cleaning up, but not when both come together."""

    def __init__(self) -> None:
        self.reset()

    def reset(self) -> None:
        self.hold: Callable[[str], None] | None = None
        self.loop: AbstractEventLoop | None = None
        self._first: float | None = None
        self._held: KeyboardInterrupt | None = None

    def __call__(self, signum: int, frame: FrameType | None) -> None:
        now = time.monotonic()
        if self._first is None:
            self._first, stop = now, _stop(signum)
            if self.hold is None and self.loop is None:
                raise stop
            self._held = stop
            if self.hold is not None:
                self.hold(f"{_word(stop)}: this step is brought to its end first; once more ends at once")
            elif self.loop is not None:
                self.loop.call_soon_threadsafe(self.raise_held)
        elif now > self._first + PATIENCE_S:
            _end(signum, frame)

    def raise_held(self) -> None:
        if self._held:
            stop, self._held = self._held, None
            raise stop


_RAISE = _Raise()
