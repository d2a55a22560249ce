"""What every inference engine offers. Plain data, no heavy imports.

`generate` is awaited, one response at a time: an episode asks for its next turn, and a response is graded, while others
are still being drawn. Engines draw together what waits together.
"""

from __future__ import annotations

import asyncio
import hashlib
from collections.abc import Collection, Iterable
from dataclasses import dataclass, field
from typing import Protocol

from sdpo.errors import ConfigError, problem
from sdpo.records import FinishReason


@dataclass(frozen=True)
class SamplingSpec:
    """How one response is drawn. Nothing else shapes the distribution: engines ignore the model's own generation
    defaults.

    Order of operations: logits / temperature, then top-k, then top-p. `temperature` 0 is greedy.
    """

    temperature: float = 1.0
    top_p: float = 1.0  # nucleus; 1: off
    top_k: int = -1  # -1 or 0: off
    max_tokens: int = 16  # response tokens, the end-of-sequence id included
    seed: int = 0  # of this request alone; equal seeds and weights give equal ids (per engine)
    log_probs: bool = True  # return the sampler's log-probs
    ignore_eos: bool = False  # generate to `max_tokens` (benchmarks)

    def __post_init__(self) -> None:
        if self.temperature < 0:
            raise ConfigError(problem("rollout.temperature", self.temperature, "a number >= 0", "0 is greedy"))
        if not 0 < self.top_p <= 1:
            raise ConfigError(problem("rollout.top_p", self.top_p, "a number in (0, 1]", "1 turns it off"))
        if self.top_k < -1:
            raise ConfigError(problem("rollout.top_k", self.top_k, "-1 or a number >= 0", "-1 turns it off"))
        if self.max_tokens < 1:
            raise ConfigError(problem("rollout.max_tokens", self.max_tokens, "a number >= 1"))

    @property
    def greedy(self) -> bool:
        return self.temperature == 0


@dataclass(frozen=True)
class GenerationRequest:
    """One response to draw.

    Example: GenerationRequest("train-7/3", [1, 512, 9], SamplingSpec(seed=request_seed(0, 12, "train-7", 3)))
    """

    request_id: str  # unique among those that wait
    prompt_ids: list[int]  # with the generation header; sent to the model as they are
    sampling: SamplingSpec = field(default_factory=SamplingSpec)


@dataclass(frozen=True)
class Generation:
    """One finished response.

    `response_ids` holds the end-of-sequence id when the model wrote one (any of the model's, see `eos.eos_token_ids`);
    then `finish_reason` is "stop", else "length". `log_probs[t]` is the natural log of the probability with which
    `response_ids[t]` was drawn (after temperature, top-k and top-p; for greedy the plain softmax at temperature 1);
    None when not asked for.
    """

    request_id: str
    response_ids: list[int]
    log_probs: list[float] | None
    finish_reason: FinishReason
    fault: str = ""  # why the engine gave it up ("abort")


class RolloutEngine(Protocol):
    """An inference engine with replaceable weights."""

    @property
    def policy_version(self) -> int:
        """Version of the weights that the next `generate` uses; -1 before the first load: those of the model folder."""
        ...

    max_model_len: int  # tokens of prompt and response

    @property
    def stop_ids(self) -> Collection[int]: ...  # that end a response

    async def generate(self, request: GenerationRequest) -> Generation:
        """Draw one response. What it is depends on the request and the weights, not on what is drawn beside it.

        Raises RolloutError when the engine died, ConfigError for a request that it can never serve (prompt too long).
        A response that the engine gave up has the finish reason "abort".
        """
        ...

    async def load_weights(self, place: str, version: int) -> None:
        """Take the weights that a transport brings to `place` (`weights.transport`). Not while a response is drawn.

        Raises RolloutError when they are of another version, do not arrive or do not fit the model.
        """
        ...

    async def rest(self) -> None:
        """Nothing will be drawn for a while: afterwards the engine holds nothing of what only drawing needs (memory,
        random streams, modes of a shared module)."""
        ...

    def close(self) -> None:
        """Release the model. The engine cannot be used afterwards; a second call does nothing."""
        ...


def request_seed(base: int, step: int, prompt_uid: str, index: int, turn: int = 0) -> int:
    """Seed in [0, 2**63) of one response, the same on every machine and independent of batch order and of replicas."""
    text = f"{base}\x1f{step}\x1f{prompt_uid}\x1f{index}{turn and f'/{turn}' or ''}".encode()
    return int.from_bytes(hashlib.blake2b(text, digest_size=8).digest(), "big") >> 1


def draw_all(engine: RolloutEngine, requests: Iterable[GenerationRequest]) -> dict[str, Generation]:
    """By request id. For callers without an event loop."""

    async def draw() -> list[Generation]:
        try:
            return await asyncio.gather(*map(engine.generate, requests))
        finally:
            await engine.rest()

    return {generation.request_id: generation for generation in asyncio.run(draw())}
