"""An engine that blocks behind one that is awaited: its loop has a thread of its own and takes new requests between two
steps."""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import torch

from sdpo.errors import RolloutError, problem
from sdpo.rollout.engine import Generation, GenerationRequest


class EngineThread:
    """`serve(self)` runs in the thread: it calls `take`, `wanted` and `deliver`, and returns when there is nothing left
    to do; it is called again with the next request. What it raises ends everything that waits."""

    def __init__(self, serve: Callable[[EngineThread], None]) -> None:
        self._serve = serve
        # The number of OpenMP threads belongs to a thread; with another one sums would be rounded differently.
        self._thread = ThreadPoolExecutor(1, "engine", torch.set_num_threads, (torch.get_num_threads(),))
        self._loop: asyncio.AbstractEventLoop | None = None
        self._waiting: deque[GenerationRequest] = deque()
        self._open: dict[str, tuple[GenerationRequest, asyncio.Future[Generation]]] = {}
        self._serving = self._closed = False

    async def generate(self, request: GenerationRequest) -> Generation:
        """Cancelled: the engine lets go of the request at its next step."""
        if request.request_id in self._open:
            raise RolloutError(problem("request_id", "the same id twice", "ids that are unique among those that wait"))
        if self._loop is not asyncio.get_running_loop():
            self._loop, self._serving = asyncio.get_running_loop(), False
        answer = self._loop.create_future()
        self._open[request.request_id] = request, answer
        self._waiting.append(request)
        if not self._serving:
            self._serving = True
            self._loop.call_soon(self._begin)  # behind all that is ready: what comes together is one batch
        try:
            return await answer
        finally:
            self._open.pop(request.request_id, None)

    async def call(self, work: Callable[..., Any], *arguments: Any) -> Any:
        """Something else in the same thread, so never beside a step. Nothing when it is closed."""
        if not self._closed:
            return await asyncio.get_running_loop().run_in_executor(self._thread, work, *arguments)
        return None

    def close(self) -> None:
        self._closed = True
        self._open.clear()
        self._waiting.clear()
        self._thread.shutdown()

    # -- in the thread ---------------------------------------------------------------------------------------------

    def take(self, limit: int | None = None) -> list[GenerationRequest]:
        """New requests in their order, at most `limit`."""
        taken: list[GenerationRequest] = []
        while self._waiting and (limit is None or len(taken) < limit):
            taken.append(self._waiting.popleft())
        return taken

    def wanted(self, request: GenerationRequest) -> bool:
        return self._open.get(request.request_id, (None,))[0] is request

    def deliver(self, request: GenerationRequest, generation: Generation) -> None:
        assert self._loop is not None  # that of whoever asked
        self._loop.call_soon_threadsafe(self._finish, request, generation)

    # -- in the event loop -----------------------------------------------------------------------------------------

    def _begin(self) -> None:
        asyncio.get_running_loop().run_in_executor(self._thread, self._serve, self).add_done_callback(self._ended)

    def _finish(self, request: GenerationRequest, generation: Generation) -> None:
        if self.wanted(request) and not (answer := self._open[request.request_id][1]).done():
            answer.set_result(generation)

    def _ended(self, serving: asyncio.Future[None]) -> None:
        error = asyncio.CancelledError() if serving.cancelled() else serving.exception()
        if error is not None:
            self._waiting.clear()
            for _, answer in self._open.values():
                if not answer.done():
                    answer.set_exception(error)
        if self._waiting:
            self._begin()
        else:
            self._serving = False
