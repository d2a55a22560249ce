"""Teachers that share the student's frozen weights: what makes them another model is an adapter, or none.

ema and snapshot have an average of the product s B A, kept as two factors of rank R; frozen and trust-region what the
student started from, a copy of its start adapter or none; live has the student's own.
"""

from __future__ import annotations

import torch
from peft.tuners.lora import LoraLayer
from torch.distributed.checkpoint.state_dict import get_model_state_dict

from sdpo.config.adapters import MOVING
from sdpo.config.schema import SelfDistillationConfig
from sdpo.kernels.lazy_logits import InterpolatedScores, LazyLogits, ResponseScores
from sdpo.models.adapters import START, STUDENT, TEACHER, active, adapted, of_adapter
from sdpo.models.forward import PolicyModule
from sdpo.models.shard import local, part_of, reshard, whole
from sdpo.teacher.base import Teacher, score_in_eval_mode
from sdpo.teacher.teachers import LiveTeacher
from sdpo.tokens.packing import PackedSide


class AdapterTeacher(Teacher):
    """With an adapter that stays as it is."""

    def __init__(self, student: PolicyModule, adapter: str) -> None:
        self.student, self.adapter = student, adapter

    def scores(self, side: PackedSide) -> ResponseScores:
        with active(self.student.lm, self.adapter):
            return score_in_eval_mode(self.student, side)


class TrustRegionAdapterTeacher(Teacher):
    """See `teachers.TrustRegionTeacher`."""

    def __init__(self, student: PolicyModule, rate: float) -> None:
        self.student, self.start, self.rate = student, AdapterTeacher(student, START), rate

    def scores(self, side: PackedSide) -> LazyLogits:
        return InterpolatedScores(self.start.scores(side), score_in_eval_mode(self.student, side), self.rate)


class AverageAdapterTeacher(AdapterTeacher):
    """D <- (1 - rate) D + rate s B A at each update, D of rank R: what weights averaged with `rate` would have, but for
    what the cut takes. (An average of A and an average of B have another product.)"""

    def __init__(self, student: PolicyModule, rate: float) -> None:
        super().__init__(student, TEACHER)
        self.module, self.rate = student, rate
        self.cut = self.norm = 0.0  # squares, over all layers

    def update(self, student: PolicyModule) -> None:
        reshard(student)
        self.cut = self.norm = 0.0
        for layer in adapted(student.lm).values():
            self._average(layer)

    @torch.no_grad()
    def _average(self, layer: LoraLayer) -> None:
        a, b, own_a, own_b = (
            whole(part[adapter].weight) for adapter in (STUDENT, TEACHER) for part in (layer.lora_A, layer.lora_B)
        )
        left = torch.cat([own_b * (1.0 - self.rate), b * (self.rate * layer.scaling[STUDENT])], dim=1)
        left, right, singular = truncated(left, torch.cat([own_a, a]), len(own_a))
        for part, full in ((layer.lora_A, right), (layer.lora_B, left)):
            weight = part[TEACHER].weight
            local(weight).copy_(part_of(full, weight))
        squares = singular.square()
        self.cut += float(squares[len(own_a) :].sum())
        self.norm += float(squares.sum())

    def state(self) -> dict[str, torch.Tensor]:
        state = get_model_state_dict(self.student)
        return {name: tensor for name, tensor in state.items() if of_adapter(name, TEACHER)}

    @torch.no_grad()
    def load_state(self, state: dict[str, torch.Tensor]) -> None:
        own = self.state()
        for name, tensor in state.items():
            local(own[name]).copy_(local(tensor))

    def metrics(self) -> dict[str, tuple[float, float]]:
        share = (self.cut / self.norm) ** 0.5 if self.norm else 0.0
        return {"sdpo/teacher_cut_off_share": (share, 1.0)}


def truncated(left: torch.Tensor, right: torch.Tensor, rank: int) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    """Factors [out, rank] and [rank, in] of the matrix of that rank next to left @ right, and all singular values of
    that product. Never is it whole: QR of both sides, SVD of the small matrix in the middle."""
    left_basis, left_rest = torch.linalg.qr(left)
    right_basis, right_rest = torch.linalg.qr(right.T)
    u, singular, v = torch.linalg.svd(left_rest @ right_rest.T, full_matrices=False)
    kept = min(rank, len(singular))
    root = singular[:kept].sqrt()
    new_left, new_right = left.new_zeros(len(left), rank), right.new_zeros(rank, right.shape[1])
    new_left[:, :kept] = left_basis @ (u[:, :kept] * root)
    new_right[:kept] = (root[:, None] * v[:kept]) @ right_basis.T
    return new_left, new_right, singular


def build_adapter_teacher(config: SelfDistillationConfig, student: PolicyModule) -> Teacher:
    """The teacher that the configuration names, for a student with adapters (`models.adapters.add_adapters`)."""
    kind, rate = config.teacher_regularization, config.teacher_update_rate
    if kind in MOVING:
        return AverageAdapterTeacher(student, rate if kind == "ema" else 1.0)
    if kind == "trust-region":
        return TrustRegionAdapterTeacher(student, rate)
    return AdapterTeacher(student, START) if kind == "frozen" else LiveTeacher(student)
