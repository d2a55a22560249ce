"""An engine that answers from a script: for tests of everything around generation, without a model."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence

from sdpo.errors import RolloutError
from sdpo.rollout.engine import Generation, GenerationRequest
from sdpo.weights.version import check_version

Answer = Sequence[int] | Generation
Script = Mapping[str, Answer] | Callable[[GenerationRequest], Answer]


class ScriptedEngine:
    """`script`: request id -> response ids (with the end-of-sequence id where the answer should have stopped), or a
    function of the request. `calls` records what was asked in order: ("generate", ids) and ("load_weights", version).

    Responses longer than `max_tokens` are cut and finish with "length", as a real engine's do; log-probs are
    `log_prob` each.

    >>> engine = ScriptedEngine({"a": [5, 2]}, stop_ids=(2,))
    >>> engine.generate([GenerationRequest("a", [1])], lambda generation: print(generation.finish_reason))
    stop
    """

    def __init__(self, script: Script, stop_ids: Sequence[int] = (), log_prob: float = -1.0) -> None:
        self._script = script
        self._stop_ids = frozenset(stop_ids)
        self._log_prob = log_prob
        self.policy_version = -1
        self.calls: list[tuple[str, object]] = []

    def generate(self, requests: Sequence[GenerationRequest], on_finished: Callable[[Generation], None]) -> None:
        self.calls.append(("generate", [request.request_id for request in requests]))
        for request in requests:
            on_finished(self._answer(request))

    def load_weights(self, folder: str, version: int) -> None:
        """Checks the version label of the folder; reads no weights."""
        check_version(folder, version)
        self.calls.append(("load_weights", version))
        self.policy_version = version

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
        stopped = bool(ids) and ids[-1] in self._stop_ids
        return Generation(request.request_id, ids, log_probs, "stop" if stopped else "length")
