"""The rows of a micro-batch as the loss sees them: policy tokens, flat, those of each component by themselves."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field

import torch
from torch import Tensor

from sdpo.errors import DataError
from sdpo.losses.token_batch import LossBatch, TokenBatch
from sdpo.records import COMPONENTS, Denominators, TrainRow
from sdpo.tokens.prefix_tree import id_tensor


def loss_batch(
    rows: Sequence[TrainRow],
    denominators: Mapping[str, Denominators],
    max_response_length: int,
    device: torch.device | str = "cpu",
    old_log_probs: Tensor | None = None,
    reference_log_probs: Tensor | None = None,
) -> LossBatch:
    """`denominators`: those of the whole optimizer step (`MiniBatch.denominators`). Log-probs: float [N], of all
    policy tokens in the order of the rows. Those of the sampler are used when every row has them.

    Raises DataError for log-probs, weights or advantages that are not one per token.
    """
    ids = torch.cat([id_tensor(row.policy_ids) for row in rows]).to(device)
    sampler = _sampler_log_probs(rows, device)

    def batch(component: str) -> TokenBatch:
        found = _gather(rows, component)
        places = torch.tensor(found.places, dtype=torch.int64, device=device)
        if found.places == list(range(len(ids))):
            places = None
        chosen = slice(None) if places is None else places
        step = denominators[component]
        numbers = [-1 if row.sequence is None else row.sequence for row in rows]
        lengths = [step.lengths.get(n, row.tokens_of(step.component)) for n, row in zip(numbers, rows, strict=True)]
        return TokenBatch(
            response_ids=ids[chosen],
            row=torch.tensor(found.owner, dtype=torch.int64, device=device),
            row_lengths=torch.tensor(lengths, dtype=torch.int64, device=device),
            weights=torch.tensor(found.weights, dtype=torch.float32, device=device),
            tokens=step.tokens,
            sequences=step.sequences,
            max_response_length=max_response_length,
            old_log_probs=None if old_log_probs is None else old_log_probs[chosen],
            sampler_log_probs=None if sampler is None else sampler[chosen],
            reference_log_probs=None if reference_log_probs is None else reference_log_probs[chosen],
            advantages=torch.tensor(found.advantages, dtype=torch.float32, device=device) if found.advantages else None,
            places=places,
            micro_batches=_micro_batches(rows, device) if component == "distillation" else None,
        )

    carried = [component for component in COMPONENTS if any(row.tokens_of(component) for row in rows)]
    return LossBatch(batch("all"), **{component: batch(component) for component in carried})


@dataclass
class _Tokens:
    """Of one component: where its tokens are among all policy tokens, whose they are, and what they carry."""

    places: list[int] = field(default_factory=list)
    owner: list[int] = field(default_factory=list)
    weights: list[float] = field(default_factory=list)
    advantages: list[float] = field(default_factory=list)


def _gather(rows: Sequence[TrainRow], component: str) -> _Tokens:
    found, first = _Tokens(), 0
    for number, row in enumerate(rows):
        for places, weight in _parts(row, component):
            found.places += [first + place for place in places]
            found.owner += [number] * len(places)
            found.weights += _each(weight, len(places), row, f"{component} weights")
        if component == "policy_gradient" and row.policy_gradient:
            found.advantages += _each(row.policy_gradient.advantage, row.tokens_of("all"), row, "advantages")
        first += row.tokens_of("all")
    return found


def _parts(row: TrainRow, component: str) -> Iterator[tuple[range, float | Sequence[float]]]:
    """Places among the row's policy tokens, and their weight."""
    if component == "distillation":
        for part in row.distillation:
            yield row.places_of(part.span), part.weight
    elif row.tokens_of(component):
        yield range(row.tokens_of("all")), 1.0 if component == "all" else getattr(row, component).weight


def _each(value: float | Sequence[float], count: int, row: TrainRow, what: str) -> list[float]:
    if isinstance(value, (int, float)):
        return [float(value)] * count
    if len(value) != count:
        raise DataError(f"sample {row.prompt_uid}/{row.sample_index}: {len(value)} {what} for {count} policy tokens")
    return list(value)


def _micro_batches(rows: Sequence[TrainRow], device: torch.device | str) -> Tensor | None:
    if any(row.micro_batch is None for row in rows):
        return None
    return torch.tensor([row.micro_batch for row in rows], dtype=torch.float64, device=device)


def _sampler_log_probs(rows: Sequence[TrainRow], device: torch.device | str) -> Tensor | None:
    flat: list[float] = []
    for row in rows:
        if row.sampler_logprobs is None:
            return None
        flat += _each(row.sampler_logprobs, row.tokens_of("all"), row, "sampler log-probs")
    return torch.tensor(flat, dtype=torch.float32, device=device)
