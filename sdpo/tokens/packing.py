"""Token ids to the tensors of one forward.

Shapes: N response tokens of all rows together, flat in the order of the rows.
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
from sdpo.tokens.prefix_tree import PrefixTree, build_tree


@dataclass(frozen=True)
class PackedSide:
    """Input of one network: R rows of L tokens, all int64. Rows that are a prefix tree (R = 1) have no padding and no
    mask; those for a model that cannot read one are right-padded, with a mask.

    `hidden.flatten(0, 1)[selected]` of hidden states [R, L, H] gives [N, H]: for each response token the state that
    *predicts* it, one position before it; the first response token is predicted by the last prompt token.

    Example: prompt [5, 6], responses [7, 8] and [9] -> input_ids [[5, 6, 7, 8, 9]], position_ids [[0, 1, 2, 3, 2]],
    selected [1, 2, 1].
    """

    input_ids: Tensor  # [R, L]
    position_ids: Tensor  # [R, L], from 0; 0 on padding
    selected: Tensor  # [N], in the order of the rows that were packed
    tree: PrefixTree | None = None
    attention_mask: Tensor | None = None  # [R, L], 1 on tokens; from lengths, so a pad id may also be the end id

    def to(self, device: torch.device | str) -> PackedSide:
        moved = {name: getattr(self, name) for name in self.__dataclass_fields__}
        return PackedSide(**{name: value if value is None else value.to(device) for name, value in moved.items()})


@dataclass(frozen=True)
class MicroBatch:
    """The rows of one forward and their tensors; `teacher` is None when no row has a distillation target.

    Both sides select the same N response tokens in the same order. See `Chunk` for `filler`.
    """

    rows: list[TrainRow]
    student: PackedSide
    teacher: PackedSide | None = None
    filler: bool = False


def pack_side(prompts: Sequence[Sequence[int]], responses: Sequence[Sequence[int]], padded: bool = False) -> PackedSide:
    """Prompt + response of each row, the response ids verbatim; common beginnings once unless `padded`. ValueError for
    a row without prompt tokens."""
    if len(prompts) != len(responses):
        raise ValueError(f"{len(prompts)} prompts but {len(responses)} responses")
    if not all(len(prompt) for prompt in prompts):
        raise ValueError("a row without prompt tokens: nothing predicts its first response token")
    sequences = [[*prompt, *response] for prompt, response in zip(prompts, responses, strict=True)]
    predicting = [slice(len(p) - 1, len(p) - 1 + len(r)) for p, r in zip(prompts, responses, strict=True)]
    if padded:
        return _pad(sequences, predicting)
    tree, places = build_tree(sequences)
    selected = torch.cat([path[part] for path, part in zip(places, predicting, strict=True)])
    return PackedSide(tree.tokens[None], tree.depth[None], selected, tree)


def _pad(sequences: list[list[int]], predicting: list[slice]) -> PackedSide:
    columns = torch.arange(max(map(len, sequences)))
    mask = columns[None, :] < torch.tensor([len(sequence) for sequence in sequences])[:, None]
    input_ids = torch.zeros(mask.shape, dtype=torch.int64)
    input_ids[mask] = torch.tensor([token for sequence in sequences for token in sequence])
    places = torch.arange(mask.numel()).view(mask.shape)
    return PackedSide(
        input_ids,
        columns.expand_as(mask) * mask,
        torch.cat([row[part] for row, part in zip(places, predicting, strict=True)]),
        attention_mask=mask.long(),
    )


def pack_chunk(chunk: Chunk, padded: bool = False) -> MicroBatch:
    """Tensors of both sides for the rows of one chunk (CPU; see `PackedSide.to`)."""
    rows = chunk.rows
    responses = [row.response_ids for row in rows]
    student = pack_side([row.prompt_ids for row in rows], responses, padded)
    teacher = None
    if chunk.has_teacher:
        teacher = pack_side([row.teacher_prompt_ids or [] for row in rows], responses, padded)
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
    micro_batches = None
    if rows and all(row.micro_batch is not None for row in rows):
        micro_batches = torch.tensor([row.micro_batch for row in rows], dtype=torch.float64, device=device)
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
        micro_batches=micro_batches,
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
