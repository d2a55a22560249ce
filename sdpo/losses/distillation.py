"""Distillation: pull the student's next-token distribution toward the teacher's at every distilled token."""

from __future__ import annotations

import torch

from sdpo.config.schema import Config
from sdpo.kernels.distillation import Distillation, TokenTerms, distillation_loss
from sdpo.kernels.divergence import Divergence
from sdpo.kernels.head import wide
from sdpo.kernels.lazy_logits import ResponseScores, TeacherScores
from sdpo.kernels.policy import loss_temperature, policy_terms
from sdpo.losses.importance import Importance, policy_importance, rollout_importance
from sdpo.losses.reduce import metric_sums, token_weights
from sdpo.losses.token_batch import LossOutput, TokenBatch


class DistillationLoss:
    """Sum over tokens of (aggregation weight * importance weights * divergence)."""

    def __init__(self, config: Config) -> None:
        actor = config.actor_rollout_ref.actor
        self.settings, self.correction = actor.self_distillation, config.algorithm.rollout_correction
        self.temperature = loss_temperature(config.actor_rollout_ref.rollout.temperature)
        self.divergence = Divergence.from_config(self.settings, self.temperature)
        self.agg_mode, self.entropy_coeff = actor.loss_agg_mode, actor.entropy_coeff
        self.uses_old_log_probs = self.settings.is_clip is not None or self.correction.rollout_is is not None

    def __call__(self, student: ResponseScores, teacher: TeacherScores | None, batch: TokenBatch) -> LossOutput:
        if teacher is None:
            raise ValueError("distillation needs a teacher's scores of every distilled token")
        weights = token_weights(batch, self.agg_mode, self.settings.loss_normalization, wide(student.hidden.dtype))

        def weigh(part: slice, log_prob: torch.Tensor) -> torch.Tensor:
            policy, rollout = self._importance(log_prob, batch.part(part))
            return weights[part] * policy.weight * rollout.weight

        cap = self.settings.divergence_clip
        distillation = Distillation(self.divergence, weigh, cap, times_one=True)
        loss, terms = distillation_loss(student, teacher, batch.response_ids, distillation)
        if self.entropy_coeff:
            entropy = policy_terms(student, batch.response_ids, self.temperature, entropy_gradient=True)[1]
            loss = loss - self.entropy_coeff * (weights * entropy).sum()
        values = self._values(terms, *self._importance(terms.log_prob, batch))
        if cap is not None:
            values["sdpo/divergence_clip_frac"] = (terms.divergence > cap).float()
        return LossOutput(loss, metric_sums(values))

    def _importance(self, log_prob: torch.Tensor, batch: TokenBatch) -> tuple[Importance, Importance]:
        policy = policy_importance(log_prob, batch, self.settings.is_clip)
        return policy, rollout_importance(log_prob, batch, self.correction)

    def _values(self, terms: TokenTerms, policy: Importance, rollout: Importance) -> dict[str, torch.Tensor]:
        values = {
            "sdpo/divergence": terms.divergence,
            "actor/entropy": terms.entropy,
            "sdpo/teacher_entropy": terms.teacher_entropy,
        }
        if self.divergence.mode == "topk":
            values |= {"sdpo/student_mass": terms.mass, "sdpo/teacher_mass": terms.teacher_mass}
        return values | policy.values | rollout.values
