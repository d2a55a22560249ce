"""What every teacher does: score packed rows without gradients, follow the student (or not), and be saved."""

from __future__ import annotations

from abc import ABC, abstractmethod
from dataclasses import replace

import torch

from sdpo.kernels.lazy_logits import ResponseScores, TeacherScores
from sdpo.models.dropout import evaluating
from sdpo.models.forward import PolicyModule
from sdpo.tokens.packing import PackedSide


class Teacher(ABC):
    """`module` holds the teacher's own weights; None when it has none of its own. Then there is nothing else to do."""

    module: PolicyModule | None = None

    @abstractmethod
    def scores(self, side: PackedSide) -> TeacherScores:
        """Scores [N, ...] of the response tokens after the teacher's prompt. Never part of an autograd graph."""

    def release(self) -> None:
        """Called when nothing of the scores is needed any more: weights that are kept elsewhere may leave memory."""

    def update(self, student: PolicyModule) -> None:
        """Called when the student has moved, as often as `teacher_update_interval` says. On a GPU it may still be at
        work afterwards."""

    def synchronize(self) -> None:
        """Called before the student's weights change again: an update that is still at work reads them."""

    def state(self) -> dict[str, torch.Tensor]:
        """For a checkpoint: the weights by name in float32, each rank its shards; loading fills these tensors."""
        return {}

    def load_state(self, state: dict[str, torch.Tensor]) -> None:
        """Takes over the tensors of `state()` once they are filled."""

    def save(self, folder: str) -> None:
        """Of a teacher whose weights are elsewhere: writes them beside the actor's part of a checkpoint."""

    def load(self, folder: str) -> None:
        """Restores what `save` wrote."""

    def metrics(self) -> dict[str, tuple[float, float]]:
        """(sum, count) by name, since the last call."""
        return {}


@torch.no_grad()
def score_in_eval_mode(module: PolicyModule, side: PackedSide) -> ResponseScores:
    """Forward pass without dropout; the module's own mode is put back. The head is detached: it is multiplied later, by
    the loss, where gradients are on."""
    with evaluating(module):
        scores = module.scores(side)
    weight, bias = (None if part is None else part.detach() for part in (scores.weight, scores.bias))
    return replace(scores, weight=weight, bias=bias)
