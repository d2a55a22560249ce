"""tokens.jsonl: what teacher and student thought of each sampled token, for a few responses of every update.

The numbers come from the scores that the loss is computed from, so they cost two products with the head for a few rows
and no forward pass. A line belongs to the line of samples.jsonl with the same policy version, uid and index.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch

from sdpo.kernels.lazy_logits import LazyLogits, LazyLogProbs
from sdpo.kernels.policy import loss_temperature
from sdpo.records import RowKey, TrainRow

MAX_TOKENS = 2048  # of one response
_CHUNK = 64  # tokens whose logits exist at once
_PER_GROUP, _ROWS = 2, 8


def traced_rows(rows: Sequence[TrainRow], available: Sequence[TrainRow]) -> frozenset[RowKey]:
    """Which rows of a step to write: two of each of the first groups, eight at most, of those in `available`.

    The first groups, because samples.jsonl holds those.
    """
    here = {row.key for row in available}
    chosen: dict[str, list[RowKey]] = {}
    for row in rows:
        found = chosen.setdefault(row.prompt_uid, [])
        if row.distillation and row.key in here and len(found) < _PER_GROUP:
            found.append(row.key)
    return frozenset([key for found in chosen.values() for key in found][:_ROWS])


class TokenLog:
    """Notes the lines of tokens.jsonl. The controller writes them: it holds the run folder, a worker does not."""

    def __init__(self, tokenizer: Any, temperature: float) -> None:
        self._tokenizer, self._temperature = tokenizer, loss_temperature(temperature)
        self._lines: list[dict[str, Any]] = []

    def note(
        self,
        version: int,
        rows: Sequence[TrainRow],
        chosen: frozenset[RowKey],
        student: LazyLogits,
        teacher: LazyLogits | LazyLogProbs,
    ) -> None:
        """`student` scores the policy tokens of `rows`, `teacher` the distilled ones, flat in row order; `version`
        sampled them. A line is about the distilled tokens of a row."""
        first = distilled = 0
        for row in rows:
            line: dict[str, Any] = {"policy_version": version, "uid": row.prompt_uid, "index": row.sample_index}
            line |= {"tokens": [], "student": [], "teacher": []}
            for part in row.distillation:
                places = row.places_of(part.span)
                ids = row.token_ids[slice(*part.span)][:MAX_TOKENS]
                if row.key in chosen:
                    line["tokens"] += [self._tokenizer.decode([token]) for token in ids]
                    line["student"] += self._log_probs(student, ids, first + places.start)
                    line["teacher"] += self._log_probs(teacher, ids, distilled)
                distilled += len(places)
            if line["tokens"]:
                self._lines.append(line)
            first += row.tokens_of("all")

    def take(self) -> list[dict[str, Any]]:
        """What was noted since the last call."""
        taken, self._lines = self._lines, []
        return taken

    @torch.no_grad()
    def _log_probs(self, scores: LazyLogits | LazyLogProbs, ids: Sequence[int], start: int) -> list[float]:
        """Natural logs at the rollout temperature, of the sampled tokens."""
        if isinstance(scores, LazyLogProbs):
            return [round(value, 4) + 0.0 for value in scores.sampled[start : start + len(ids)].tolist()]
        found: list[float] = []
        for first in range(0, len(ids), _CHUNK):
            piece = ids[first : first + _CHUNK]
            logits = scores.logits(slice(start + first, start + first + len(piece))).div_(self._temperature)
            columns = torch.tensor(piece, device=logits.device)[:, None]
            found += logits.log_softmax(-1).gather(-1, columns)[:, 0].tolist()
        return [round(value, 4) + 0.0 for value in found]  # no -0.0
