"""The descriptors of runs, waited for together."""

from __future__ import annotations

import os
import select
import time
from typing import Generic, Protocol, TypeVar


class Polled(Protocol):
    def handle(self, fd: int) -> None:
        """Takes what is ready at one of its descriptors."""
        ...


Run = TypeVar("Run", bound=Polled)


class Poller(Generic[Run]):
    """The descriptors of one run, or of the two runs of a judged test, which are served together."""

    def __init__(self) -> None:
        self._poll = select.poll()
        self._owners: dict[int, Run] = {}
        self.runs: list[Run] = []

    def add(self, fd: int, owner: Run) -> None:
        self._owners[fd] = owner
        self._poll.register(fd, select.POLLIN)

    def remove(self, fd: int) -> None:
        del self._owners[fd]
        self._poll.unregister(fd)

    def want_write(self, fd: int, wanted: bool) -> None:
        self._poll.modify(fd, select.POLLIN | (select.POLLOUT if wanted else 0))

    def wait(self, seconds: float) -> float:
        """Handles what is ready, after waiting at most so long. Returns the time that this took, and not more than was
        asked for: a thread that gets no processor, or not the interpreter's lock, has not been waiting for a run."""
        seconds, start = max(0.0, seconds) + 0.001, time.monotonic()
        for fd, _ in self._poll.poll(seconds * 1000):
            if fd in self._owners:
                self._owners[fd].handle(fd)
        return min(time.monotonic() - start, seconds)


def memory_file(content: bytes) -> int:
    fd = os.memfd_create("run", os.MFD_CLOEXEC)
    view = memoryview(content)
    while view:
        view = view[os.write(fd, view) :]
    os.lseek(fd, 0, os.SEEK_SET)
    return fd
