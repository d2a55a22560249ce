"""Generation with the Hugging Face model itself: for machines without vLLM, for debuggers, and for bitwise repeatable
runs.

Equal weights, requests and thread counts give equal bits. Prompts are left-padded into batches, equal prompts are
read once, and rows leave the batch as they finish.
"""

from __future__ import annotations

from collections.abc import Generator, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field

import torch
from torch import nn
from transformers import DynamicCache

from sdpo.errors import ConfigError, RolloutError, first_line, problem
from sdpo.models.dropout import evaluating
from sdpo.records import FinishReason
from sdpo.rollout.engine import Generation, GenerationRequest
from sdpo.rollout.engine_loop import EngineLoop
from sdpo.rollout.few_rows import turned_products
from sdpo.rollout.kv_cache import RoomyLayer, holds_something, keep_rows, roomy_cache
from sdpo.rollout.noise import RequestStreams
from sdpo.weights.target import load_into
from sdpo.weights.transport import transport_of


class HfEngine:
    """`module`: a transformers causal language model, unsharded; the trainer's own (then weights need no copying, set
    `policy_version` after each update) or one of its own (`load_weights`). `stop_ids`: all end-of-sequence ids.
    `max_model_len`: tokens of prompt and response; `batch_size`: rows at once."""

    def __init__(self, module: nn.Module, stop_ids: Sequence[int], max_model_len: int, batch_size: int = 256) -> None:
        self._module: nn.Module | None = module
        self.stop_ids = frozenset(stop_ids)
        self.max_model_len = max_model_len
        self._batch_size = batch_size
        self.policy_version = -1
        self._loop = EngineLoop(self._serve)

    async def generate(self, request: GenerationRequest) -> Generation:
        """See `RolloutEngine.generate`. What waits is drawn in its order, `batch_size` at a time."""
        self._alive()
        if not 1 <= len(request.prompt_ids) < self.max_model_len:
            allowed = f"1 to {self.max_model_len - 1} tokens"
            raise ConfigError(problem("prompt length", len(request.prompt_ids), allowed, "raise max_model_len"))
        return await self._loop.generate(request)

    async def load_weights(self, place: str, version: int) -> None:
        """See `RolloutEngine.load_weights`."""
        module = self._alive()
        await self._loop.call(lambda: load_into(module, transport_of(place).receive(place, version)))
        self.policy_version = version

    async def rest(self) -> None:
        await self._loop.call(bool)  # comes behind the last batch

    def close(self) -> None:
        self._module = None
        self._loop.close()

    def _alive(self) -> nn.Module:
        if self._module is None:
            raise RolloutError("the engine is closed; make a new one")
        return self._module

    def _serve(self, loop: EngineLoop) -> Generator[None]:
        module = self._alive()
        with evaluating(module), turned_products(module):
            while requests := loop.take(self._batch_size):
                yield from self._generate_batch(module, requests, loop)

    def _generate_batch(
        self, module: nn.Module, requests: Sequence[GenerationRequest], loop: EngineLoop
    ) -> Generator[None]:
        device = next(module.parameters()).device
        with _of_the_model(module):
            batch, logits = _read_prompts(module, requests, device)
        rows = [self._row(request) for request in requests]
        streams = RequestStreams([request.sampling for request in requests], device)
        while True:
            ids, log_probs = streams.draw(logits)
            for row, token, log_prob in zip(rows, ids.tolist(), log_probs.tolist(), strict=True):
                row.ids.append(token)
                row.log_probs.append(log_prob)
            for row in rows:
                if row.finished:
                    loop.deliver(row.request, row.generation())
            yield
            running = [i for i, row in enumerate(rows) if not row.finished and loop.wanted(row.request)]
            if not running:
                return
            with _of_the_model(module):
                if len(running) < len(rows):
                    rows = [rows[index] for index in running]
                    streams.keep(running)
                    batch.keep(running)
                    ids = ids[running]
                logits = batch.step(module, ids)

    def _row(self, request: GenerationRequest) -> _Row:
        limit = min(request.sampling.max_tokens, self.max_model_len - len(request.prompt_ids))
        return _Row(request, limit, frozenset() if request.sampling.ignore_eos else self.stop_ids)


@dataclass
class _Row:
    request: GenerationRequest
    limit: int
    stop_ids: frozenset[int]
    ids: list[int] = field(default_factory=list)
    log_probs: list[float] = field(default_factory=list)

    @property
    def finished(self) -> bool:
        return self.ids[-1] in self.stop_ids or len(self.ids) == self.limit

    def generation(self) -> Generation:
        reason: FinishReason = "stop" if self.ids[-1] in self.stop_ids else "length"
        return Generation(
            self.request.request_id, self.ids, self.log_probs if self.request.sampling.log_probs else None, reason
        )


@dataclass
class _Batch:
    """Cache and positions of the running rows. mask: [R, tokens so far], 1 where a token is not padding."""

    cache: DynamicCache
    mask: torch.Tensor

    def keep(self, rows: Sequence[int]) -> None:
        """Drops the other rows, and the padding that only they needed. Also used with repeated rows, to give every
        request of one prompt its own copy."""
        index = torch.tensor(rows, device=self.mask.device)
        keep_rows(self.cache, index)
        self.mask = self.mask[index]
        padding = int(self.mask.argmax(dim=1).min())  # of the longest prompt that is left
        if padding and all(isinstance(layer, RoomyLayer) for layer in self.cache.layers):
            self.mask = self.mask[:, padding:]
            for layer in self.cache.layers:
                layer.drop_first(padding)

    def step(self, module: nn.Module, ids: torch.Tensor) -> torch.Tensor:
        """Append one token per row, ids [R]; the logits after it, [R, V]."""
        self.mask = torch.cat([self.mask, self.mask.new_ones(len(ids), 1)], dim=1)
        position = self.mask.sum(dim=1, keepdim=True) - 1
        output = module(
            input_ids=ids[:, None],
            attention_mask=self.mask,
            position_ids=position,
            past_key_values=self.cache,
            use_cache=True,
        )
        return output.logits[:, -1]


def _read_prompts(
    module: nn.Module, requests: Sequence[GenerationRequest], device: torch.device
) -> tuple[_Batch, torch.Tensor]:
    """Run each different prompt once; the batch of all requests and the logits [R, V] of their first tokens."""
    places: dict[tuple[int, ...], int] = {}
    which = [places.setdefault(tuple(request.prompt_ids), len(places)) for request in requests]
    width = max(len(prompt) for prompt in places)
    ids = torch.zeros(len(places), width, dtype=torch.long)
    mask = torch.zeros_like(ids)
    for row, prompt in enumerate(places):
        ids[row, width - len(prompt) :] = torch.tensor(prompt)
        mask[row, width - len(prompt) :] = 1
    ids, mask = ids.to(device), mask.to(device)
    batch = _Batch(roomy_cache(module.config), mask)
    output = module(
        input_ids=ids,
        attention_mask=mask,
        position_ids=(mask.cumsum(dim=1) - 1).clamp(min=0),
        past_key_values=batch.cache,
        use_cache=True,
        logits_to_keep=1,
    )
    if not any(holds_something(layer) for layer in batch.cache.layers):
        raise RuntimeError("it leaves the cache that it is given empty")
    batch.keep(which)
    return batch, output.logits[:, -1][torch.tensor(which, device=device)]


@contextmanager
def _of_the_model(module: nn.Module) -> Iterator[None]:
    """Families differ in what positions and a cache are to them; what their code raises is said in one line."""
    try:
        with torch.no_grad():  # here, and not around the steps, between which others have their turn
            yield
    except Exception as error:  # whatever that code raises
        why = f"{type(module).__name__} cannot generate here: {type(error).__name__}: {first_line(error)}"
        raise RolloutError(
            f"actor_rollout_ref.rollout.name=hf: {why}; use actor_rollout_ref.rollout.name=vllm"
        ) from error
