"""Asks the computer-algebra processes, with a time limit that always holds."""

from __future__ import annotations

import json
import os
import queue
import select
import subprocess
import sys
import threading
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

WORKER = Path(__file__).with_name("math_worker.py")
PACKAGES = str(Path(__file__).parents[2])  # where the worker finds this package
PATIENCE_SECONDS = 60.0  # of wall time beyond ten times the limit


class AlgebraTimeout(Exception):
    """The expression took longer than the limit; the process was ended."""


class AlgebraFault(Exception):
    """The process cannot be started or keeps dying: nobody's answer is to blame."""


class AlgebraProcess:
    """One worker, ended when it breaks a limit; not thread-safe."""

    first: dict[str, Any] = {"gold": "x", "answer": "2x"}
    start_seconds = 60.0  # of CPU time; importing the algebra takes a few
    kept: tuple[str, ...] = ("PATH", "LD_LIBRARY_PATH")
    variables = {"OMP_NUM_THREADS": "1", "PYTHONHASHSEED": "0", "PYTHONPATH": PACKAGES}

    def __init__(self, worker: Path | None = None) -> None:
        self._process = subprocess.Popen(
            [sys.executable, "-P", "-s", str(worker or WORKER)],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.DEVNULL,
            env={name: os.environ[name] for name in self.kept if name in os.environ} | self.variables,
            start_new_session=True,
        )
        try:
            self.ask(self.first, self.start_seconds)
        except (AlgebraTimeout, EOFError, OSError) as error:
            self.close()
            raise AlgebraFault(f"{Path(worker or WORKER).name} does not start: {error!r}") from None

    def ask(self, request: dict, seconds: float) -> Any:
        """`seconds` of CPU time: on a loaded machine wall time would make right answers wrong. AlgebraTimeout when
        they are used up; EOFError when the process died of the request, or waited for ever."""
        pipe_in, pipe_out = self._process.stdin, self._process.stdout
        assert pipe_in is not None and pipe_out is not None
        used_before, give_up = self._cpu_seconds(), time.monotonic() + 10 * seconds + PATIENCE_SECONDS
        try:
            pipe_in.write(json.dumps(request).encode() + b"\n")
            pipe_in.flush()
        except BrokenPipeError:
            raise EOFError from None
        answer = b""
        while not answer.endswith(b"\n"):
            left = seconds - (self._cpu_seconds() - used_before)
            if left <= 0:
                raise AlgebraTimeout
            if time.monotonic() > give_up:
                raise EOFError
            ready, _, _ = select.select([pipe_out], [], [], max(left, 0.01))
            if not ready:
                continue
            part = os.read(pipe_out.fileno(), 4096)
            if not part:
                raise EOFError
            answer += part
        return json.loads(answer)["result"]

    def _cpu_seconds(self) -> float:
        try:
            return time.clock_gettime(~self._process.pid << 3 | 2)
        except OSError:
            return 0.0  # just ended; reading its answer will say so

    def close(self) -> None:
        self._process.kill()
        self._process.wait()
        for pipe in (self._process.stdin, self._process.stdout):
            if pipe is not None:
                pipe.close()


class AlgebraPool:
    """At most `size` processes, started when first needed. Thread-safe."""

    def __init__(self, size: int, seconds: float, start: Callable[[], AlgebraProcess] = AlgebraProcess) -> None:
        self.seconds = seconds
        self._start = start
        self._idle: queue.LifoQueue[AlgebraProcess | None] = queue.LifoQueue()
        for _ in range(size):
            self._idle.put(None)
        self._size = size
        self._lock = threading.Lock()
        self.restarts = 0

    def ask(self, request: dict) -> Any:
        """Raises AlgebraTimeout (the expression's fault) or AlgebraFault (nobody's)."""
        process = self._idle.get()
        try:
            for tries_left in (1, 0):
                process = process or self._start()
                try:
                    return process.ask(request, self.seconds)
                except (AlgebraTimeout, EOFError) as error:
                    self._discard(process)
                    process = None
                    # It may have died of this request, or have been killed from outside: a second try tells.
                    if isinstance(error, AlgebraTimeout) or not tries_left:
                        raise AlgebraTimeout from None
            raise AssertionError("unreachable")
        finally:
            self._idle.put(process)

    def _discard(self, process: AlgebraProcess) -> None:
        process.close()
        with self._lock:
            self.restarts += 1

    def equal(self, gold: str, answer: str) -> bool | None:
        return self.ask({"gold": gold, "answer": answer})

    def close(self) -> None:
        for _ in range(self._size):
            process = self._idle.get()
            if process is not None:
                process.close()
