"""An engine that computes in this process, behind one that is awaited: its steps run in the event loop itself, and what
waits gets its turn between two of them.

Not in a thread: a second thread that computes brings OpenMP threads of its own, and on two cores generation and
training in one process then took twice as long (`recipes/benchmarks/step.py`).
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Callable, Generator
from contextlib import closing
from typing import Any

from sdpo.errors import RolloutError, problem
from sdpo.rollout.engine import Generation, GenerationRequest


class EngineLoop:
    """`serve(self)` draws: it calls `take`, `wanted` and `deliver`, yields between two steps, and ends when there is
    nothing left to do; it is called again for the next request. What it raises ends everything that waits."""

    def __init__(self, serve: Callable[[EngineLoop], Generator[None]]) -> None:
        self._serve = serve
        self._serving: asyncio.Task[None] | None = None
        self._closed = False
        self._waiting: deque[GenerationRequest] = deque()
        self._open: dict[str, tuple[GenerationRequest, asyncio.Future[Generation]]] = {}

    async def generate(self, request: GenerationRequest) -> Generation:
        """Cancelled: the engine lets go of the request at its next step."""
        if request.request_id in self._open:
            raise RolloutError(problem("request_id", "the same id twice", "ids that are unique among those that wait"))
        answer = asyncio.get_running_loop().create_future()
        self._open[request.request_id] = request, answer
        self._waiting.append(request)
        if self._serving is None or self._serving.done():
            self._serving = asyncio.create_task(self._run())
        try:
            return await answer
        finally:
            self._open.pop(request.request_id, None)

    async def call(self, work: Callable[..., Any], *arguments: Any) -> Any:
        """Something else of the engine, when nothing is drawn. Nothing when it is closed."""
        while self._serving is not None and not self._serving.done():
            await asyncio.wait([self._serving])
        return None if self._closed else work(*arguments)

    def close(self) -> None:
        self._closed = True
        self._open.clear()
        self._waiting.clear()

    def take(self, limit: int | None = None) -> list[GenerationRequest]:
        """New requests in their order, at most `limit`."""
        taken: list[GenerationRequest] = []
        while self._waiting and (limit is None or len(taken) < limit):
            taken.append(self._waiting.popleft())
        return taken

    def wanted(self, request: GenerationRequest) -> bool:
        return self._open.get(request.request_id, (None,))[0] is request

    def deliver(self, request: GenerationRequest, generation: Generation) -> None:
        if self.wanted(request) and not (answer := self._open[request.request_id][1]).done():
            answer.set_result(generation)

    async def _run(self) -> None:
        await asyncio.sleep(0)  # behind all that is ready: what comes together is one batch
        try:
            while self._waiting:
                with closing(self._serve(self)) as steps:
                    for _ in steps:
                        await asyncio.sleep(0)
        except BaseException as error:  # a signal and a cancellation end what waits, too
            self._waiting.clear()
            for _, answer in self._open.values():
                if not answer.done():
                    answer.set_exception(error if isinstance(error, Exception) else asyncio.CancelledError())
            if not isinstance(error, Exception):
                raise
