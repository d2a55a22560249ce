"""An engine that answers from a script: for tests of everything around generation, without a model."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Mapping, Sequence

from sdpo.errors import RolloutError
from sdpo.rollout.engine import Generation, GenerationRequest
from sdpo.weights.version import check_version

Answer = Sequence[int] | Generation
Script = Mapping[str, Answer] | Callable[[GenerationRequest], Answer]


class ScriptedEngine:
    """`script`: request id -> response ids (with the end-of-sequence id where the answer should have stopped), or a
    function of the request. `calls` records what was asked in order: ("generate", id) and ("load_weights", version);
    `requests` what was to be drawn.

    Responses longer than `max_tokens` are cut and finish with "length", as a real engine's do; log-probs are
    `log_prob` each.

    >>> engine = ScriptedEngine({"a": [5, 2]}, stop_ids=(2,))
    >>> asyncio.run(engine.generate(GenerationRequest("a", [1]))).finish_reason
    'stop'
    """

    def __init__(
        self, script: Script, stop_ids: Sequence[int] = (), log_prob: float = -1.0, max_model_len: int = 1 << 20
    ) -> None:
        self._script = script
        self.stop_ids = frozenset(stop_ids)
        self._log_prob = log_prob
        self.policy_version = -1
        self.max_model_len = max_model_len
        self.requests: list[GenerationRequest] = []
        self.calls: list[tuple[str, object]] = []

    async def generate(self, request: GenerationRequest) -> Generation:
        self.calls.append(("generate", request.request_id))
        self.requests.append(request)
        await asyncio.sleep(0)  # as everywhere, others go on meanwhile
        return self._answer(request)

    async def load_weights(self, place: str, version: int) -> None:
        """Checks the version label of the place, a folder; reads no weights."""
        check_version(place, version)
        self.calls.append(("load_weights", version))
        self.policy_version = version

    async def rest(self) -> None:
        """Nothing is held."""

    def close(self) -> None:
        self.calls.append(("close", None))

    def _answer(self, request: GenerationRequest) -> Generation:
        if callable(self._script):
            answer = self._script(request)
        elif request.request_id in self._script:
            answer = self._script[request.request_id]
        else:
            raise RolloutError(f"the script has no answer for request {request.request_id!r}")
        if isinstance(answer, Generation):
            return answer
        ids = list(answer)[: request.sampling.max_tokens]
        log_probs = [self._log_prob] * len(ids) if request.sampling.log_probs else None
        stopped = bool(ids) and ids[-1] in self.stop_ids
        return Generation(request.request_id, ids, log_probs, "stop" if stopped else "length")
