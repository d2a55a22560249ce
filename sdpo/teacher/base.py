"""What every teacher does: score packed rows without gradients, follow the student (or not), and be saved."""

from __future__ import annotations

from dataclasses import replace
from typing import Protocol

import torch

from sdpo.algorithms.scores import ResponseScores, Scores
from sdpo.models.forward import PolicyModule
from sdpo.tokens.packing import PackedSide


class Teacher(Protocol):
    """`module` holds the teacher's own weights and goes into checkpoints; None when it has none of its own."""

    module: PolicyModule | None

    def scores(self, side: PackedSide) -> Scores:
        """Scores [N, ...] of the response tokens after the teacher's prompt. Never part of an autograd graph."""

    def release(self) -> None:
        """Called when nothing of the scores is needed any more: weights that are kept elsewhere may leave memory."""

    def update(self, student: PolicyModule) -> None:
        """Called once after each optimizer step with a finite gradient."""


@torch.no_grad()
def score_in_eval_mode(module: PolicyModule, side: PackedSide) -> ResponseScores:
    """Forward pass without dropout; the module's own mode is put back. The head is detached: it is multiplied later, by
    the loss, where gradients are on."""
    training = module.training
    module.eval()
    try:
        scores = module.scores(side)
    finally:
        module.train(training)
    bias = None if scores.bias is None else scores.bias.detach()
    return replace(scores, weight=scores.weight.detach(), bias=bias)
