"""Token ids to the tensors of one forward.

Shapes: R rows, L tokens of the longest row, N response tokens of all rows together, flat in row order.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from sdpo.algorithms.scores import TokenBatch
from sdpo.errors import DataError
from sdpo.records import TrainRow
from sdpo.tokens.partition import Chunk


@dataclass(frozen=True)
class PackedSide:
    """Input of one network, right-padded. All int64.

    `hidden[select_row, select_col]` of hidden states [R, L, H] gives [N, H]: for each response token the state that
    *predicts* it, one position to its left; the first response token is predicted by the last prompt token.

    Example: prompt [5, 6], response [7, 8] -> input_ids [[5, 6, 7, 8]], select_row [0, 0], select_col [1, 2].
    """

    input_ids: Tensor  # [R, L]
    attention_mask: Tensor  # [R, L], 1 on tokens; made from lengths, so a pad id that is also the end id does no harm
    position_ids: Tensor  # [R, L], from 0; 0 on padding
    select_row: Tensor  # [N]
    select_col: Tensor  # [N]

    def to(self, device: torch.device | str) -> PackedSide:
        return PackedSide(*(getattr(self, name).to(device) for name in self.__dataclass_fields__))


@dataclass(frozen=True)
class MicroBatch:
    """The rows of one forward and their tensors; `teacher` is None when no row has a distillation target.

    Both sides select the same N response tokens in the same order. See `Chunk` for `filler`.
    """

    rows: list[TrainRow]
    student: PackedSide
    teacher: PackedSide | None = None
    filler: bool = False


def pack_side(prompts: Sequence[Sequence[int]], responses: Sequence[Sequence[int]], pad_id: int = 0) -> PackedSide:
    """Prompt + response of each row, the response ids verbatim. ValueError for a row without prompt tokens."""
    if len(prompts) != len(responses):
        raise ValueError(f"{len(prompts)} prompts but {len(responses)} responses")
    if not all(len(prompt) for prompt in prompts):
        raise ValueError("a row without prompt tokens: nothing predicts its first response token")
    lengths = torch.tensor([len(p) + len(r) for p, r in zip(prompts, responses, strict=True)])
    columns = torch.arange(int(lengths.max()))
    mask = columns[None, :] < lengths[:, None]
    input_ids = torch.full(mask.shape, pad_id, dtype=torch.int64)
    flat = [token for p, r in zip(prompts, responses, strict=True) for token in (*p, *r)]
    input_ids[mask] = torch.tensor(flat, dtype=torch.int64)
    response_lengths = torch.tensor([len(r) for r in responses])
    first = torch.tensor([len(p) - 1 for p in prompts])
    return PackedSide(
        input_ids=input_ids,
        attention_mask=mask.long(),
        position_ids=columns.expand_as(mask) * mask,
        select_row=torch.repeat_interleave(torch.arange(len(prompts)), response_lengths),
        select_col=torch.cat([torch.arange(int(n)) + f for f, n in zip(first, response_lengths, strict=True)]),
    )


def pack_chunk(chunk: Chunk, pad_id: int = 0) -> MicroBatch:
    """Tensors of both sides for the rows of one chunk (CPU; see `PackedSide.to`)."""
    rows = chunk.rows
    responses = [row.response_ids for row in rows]
    student = pack_side([row.prompt_ids for row in rows], responses, pad_id)
    teacher = None
    if chunk.has_teacher:
        teacher = pack_side([row.teacher_prompt_ids or [] for row in rows], responses, pad_id)
    return MicroBatch(rows, student, teacher, chunk.filler)


def token_batch(
    rows: Sequence[TrainRow],
    mini_batch_tokens: int,
    mini_batch_sequences: int,
    max_response_length: int,
    old_log_probs: Tensor | None = None,
    device: torch.device | str = "cpu",
) -> TokenBatch:
    """What the loss needs to know about the N response tokens of `rows`.

    `mini_batch_tokens` and `mini_batch_sequences` count the whole optimizer step, all ranks and micro-batches.
    `old_log_probs`: float [N], in the same order. Sampler log-probs are used when every row has them; rows without an
    advantage count as advantage 0 when others have one.
    """
    lengths = torch.tensor([len(row.response_ids) for row in rows])
    advantages = None
    if any(row.advantage is not None for row in rows):
        advantages = torch.tensor([row.advantage or 0.0 for row in rows], dtype=torch.float32, device=device)
    return TokenBatch(
        response_ids=torch.tensor([i for row in rows for i in row.response_ids], dtype=torch.int64, device=device),
        row=torch.repeat_interleave(torch.arange(len(rows)), lengths).to(device),
        row_lengths=lengths.to(device),
        old_log_probs=old_log_probs,
        sampler_log_probs=_sampler_log_probs(rows, device),
        advantages=advantages,
        weights=torch.tensor([row.weight for row in rows], dtype=torch.float32, device=device),
        tokens=mini_batch_tokens,
        sequences=mini_batch_sequences,
        max_response_length=max_response_length,
    )


def _sampler_log_probs(rows: Sequence[TrainRow], device: torch.device | str) -> Tensor | None:
    flat: list[float] = []
    for row in rows:
        if row.sampler_logprobs is None:
            return None
        if len(row.sampler_logprobs) != len(row.response_ids):
            raise DataError(
                f"sample {row.prompt_uid}/{row.sample_index}: {len(row.sampler_logprobs)} sampler log-probs"
                f" for {len(row.response_ids)} response tokens"
            )
        flat += row.sampler_logprobs
    return torch.tensor(flat, dtype=torch.float32, device=device)
