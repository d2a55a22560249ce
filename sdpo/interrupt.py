"""SIGTERM, as a scheduler sends it, ends a run the way Ctrl-C does: through every `finally`, in one line."""

from __future__ import annotations

import signal
import threading
from types import FrameType


class Terminated(KeyboardInterrupt):
    """SIGTERM arrived."""


def raise_on_sigterm() -> None:
    """To be called again after anything that installs a handler of its own (Ray does). Main thread only, else nothing
    happens."""
    if threading.current_thread() is threading.main_thread():
        signal.signal(signal.SIGTERM, _raise)


def _raise(signum: int, frame: FrameType | None) -> None:
    signal.signal(signal.SIGTERM, signal.SIG_IGN)  # a second one must not break off the cleaning up
    raise Terminated
