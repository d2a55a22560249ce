"""Token ids to the tensors of one forward.

Shapes: N policy tokens of all rows together, flat in the order of the rows.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from sdpo.records import Span, TrainRow
from sdpo.tokens.partition import MicroBatchRows, teacher_sequences
from sdpo.tokens.prefix_tree import PrefixTree, build_tree, id_tensor


@dataclass(frozen=True)
class PackedSide:
    """Input of one network: R rows of L tokens, all int64. Rows that are a prefix tree (R = 1) have no padding and no
    mask; those for a model that cannot read one are right-padded, with a mask.

    `hidden.flatten(0, 1)[selected]` of hidden states [R, L, H] gives [N, H]: for each policy token the state that
    *predicts* it, one position before it; the first one is predicted by the last prompt token.

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

    The teacher's side selects the distilled tokens: row by row, in the order of `row.distillation`. `dummy`: see
    `MicroBatchRows`.
    """

    rows: list[TrainRow]
    student: PackedSide
    teacher: PackedSide | None = None
    dummy: bool = False


def pack_side(sequences: Sequence[Sequence[int]], spans: Sequence[Sequence[Span]], padded: bool = False) -> PackedSide:
    """Token sequences and, for each, the ranges whose tokens are to be scored; common beginnings once unless `padded`.
    ValueError for a range without a token before it."""
    if len(sequences) != len(spans):
        raise ValueError(f"{len(sequences)} sequences but {len(spans)} lists of spans")
    if any(start < 1 for ranges in spans for start, _ in ranges):
        raise ValueError("a row without prompt tokens: nothing predicts its first response token")
    predicting = [[slice(start - 1, stop - 1) for start, stop in ranges] for ranges in spans]
    if padded:
        return _pad(sequences, predicting)
    tree, places = build_tree(sequences)
    selected = [path[part] for path, parts in zip(places, predicting, strict=True) for part in parts]
    return PackedSide(tree.tokens[None], tree.depth[None], torch.cat(selected), tree)


def pack_responses(
    prompts: Sequence[Sequence[int]], responses: Sequence[Sequence[int]], padded: bool = False
) -> PackedSide:
    """One sequence of each prompt and its response, whose tokens are to be scored."""
    pairs = list(zip(prompts, responses, strict=True))
    spans = [[(len(prompt), len(prompt) + len(response))] for prompt, response in pairs]
    return pack_side([[*prompt, *response] for prompt, response in pairs], spans, padded)


def _pad(sequences: Sequence[Sequence[int]], predicting: list[list[slice]]) -> PackedSide:
    columns = torch.arange(max(map(len, sequences)))
    mask = columns[None, :] < torch.tensor([len(sequence) for sequence in sequences])[:, None]
    input_ids = torch.zeros(mask.shape, dtype=torch.int64)
    input_ids[mask] = torch.cat([id_tensor(sequence) for sequence in sequences])
    places = torch.arange(mask.numel()).view(mask.shape)
    return PackedSide(
        input_ids,
        columns.expand_as(mask) * mask,
        torch.cat([row[part] for row, parts in zip(places, predicting, strict=True) for part in parts]),
        attention_mask=mask.long(),
    )


def pack_micro_batch(micro_batch: MicroBatchRows, padded: bool = False) -> MicroBatch:
    """Tensors of both sides for the rows of one micro_batch (CPU; see `PackedSide.to`)."""
    student = pack_side([row.token_ids for row in micro_batch.rows], [row.spans for row in micro_batch.rows], padded)
    teacher = None
    if micro_batch.has_teacher:
        teacher = pack_side(*teacher_sequences(micro_batch.rows), padded)
    return MicroBatch(micro_batch.rows, student, teacher, micro_batch.dummy)
