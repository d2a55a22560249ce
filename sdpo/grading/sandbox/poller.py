"""The descriptors of runs, waited for together."""

from __future__ import annotations

import os
import select
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from .child_run import ChildRun


class Poller:
    """The descriptors of one run, or of the two runs of a judged test, which are served together."""

    def __init__(self) -> None:
        self._poll = select.poll()
        self._owners: dict[int, ChildRun] = {}
        self.runs: list[ChildRun] = []

    def add(self, fd: int, owner: ChildRun) -> None:
        self._owners[fd] = owner
        self._poll.register(fd, select.POLLIN)

    def remove(self, fd: int) -> None:
        del self._owners[fd]
        self._poll.unregister(fd)

    def want_write(self, fd: int, wanted: bool) -> None:
        self._poll.modify(fd, select.POLLIN | (select.POLLOUT if wanted else 0))

    def wait(self, seconds: float) -> None:
        """Handles what is ready, after waiting at most so long."""
        for fd, _ in self._poll.poll(max(0.0, seconds) * 1000 + 1):
            if fd in self._owners:
                self._owners[fd].handle(fd)


def memory_file(content: bytes) -> int:
    fd = os.memfd_create("run", os.MFD_CLOEXEC)
    view = memoryview(content)
    while view:
        view = view[os.write(fd, view) :]
    os.lseek(fd, 0, os.SEEK_SET)
    return fd
