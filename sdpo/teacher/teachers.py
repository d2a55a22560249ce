"""The four teachers of `teacher_regularization` (algorithm page, "Teacher")."""

from __future__ import annotations

from collections.abc import Callable

import torch

from sdpo.algorithms.scores import InterpolatedScores, ResponseScores, Scores
from sdpo.config.schema import SelfDistillationConfig
from sdpo.models.forward import PolicyModule
from sdpo.models.shard import local, reshard
from sdpo.teacher.base import Teacher, score_in_eval_mode
from sdpo.tokens.packing import PackedSide


class FrozenTeacher:
    """The initial weights, for ever."""

    def __init__(self, module: PolicyModule) -> None:
        self.module = module.requires_grad_(False).eval()

    def scores(self, side: PackedSide) -> ResponseScores:
        return score_in_eval_mode(self.module, side)

    def release(self) -> None:
        if self.module.in_file:
            self.module.in_file.give_back(self.module.parameters())

    def update(self, student: PolicyModule) -> None:
        pass


class EmaTeacher(FrozenTeacher):
    """theta' <- (1 - rate) theta' + rate theta after each optimizer step; theta' starts as the student."""

    def __init__(self, module: PolicyModule, rate: float) -> None:
        super().__init__(module)
        self.rate = rate

    @torch.no_grad()
    def update(self, student: PolicyModule) -> None:
        reshard(self.module)
        mine, theirs = ([local(p) for p in module.parameters()] for module in (self.module, student))
        here = not self.module.in_file and all(m.device == t.device for m, t in zip(mine, theirs, strict=True))
        if here:
            torch._foreach_lerp_(mine, [t.to(m.dtype) for m, t in zip(mine, theirs, strict=True)], self.rate)
            return
        for m, t in zip(mine, theirs, strict=True):  # offloaded: a tensor at a time, or all would be here together
            m.lerp_(t.to(m.device, m.dtype), self.rate)
            if self.module.in_file:
                self.module.in_file.give_back([m])


class LiveTeacher:
    """The student's current weights: no lag at all. The paper reports divergence with it."""

    module = None

    def __init__(self, student: PolicyModule) -> None:
        self.student = student

    def scores(self, side: PackedSide) -> ResponseScores:
        return score_in_eval_mode(self.student, side)

    def release(self) -> None:
        pass

    def update(self, student: PolicyModule) -> None:
        pass


class TrustRegionTeacher(FrozenTeacher):
    """softmax(lerp(reference logits, student logits, rate)): both see the reprompt, neither gets a gradient."""

    def __init__(self, module: PolicyModule, student: PolicyModule, rate: float) -> None:
        super().__init__(module)
        self.student = student
        self.rate = rate

    def scores(self, side: PackedSide) -> Scores:
        reference = score_in_eval_mode(self.module, side)
        return InterpolatedScores(reference, score_in_eval_mode(self.student, side), self.rate)


def build_teacher(config: SelfDistillationConfig, student: PolicyModule, copy: Callable[[], PolicyModule]) -> Teacher:
    """The teacher that the configuration names. `copy()` makes a second module with the initial weights; only the
    kinds that hold weights of their own call it."""
    kind, rate = config.teacher_regularization, config.teacher_update_rate
    if kind == "ema":
        return EmaTeacher(copy(), rate)
    if kind == "frozen":
        return FrozenTeacher(copy())
    if kind == "trust-region":
        return TrustRegionTeacher(copy(), student, rate)
    return LiveTeacher(student)
