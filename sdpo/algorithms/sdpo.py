"""SDPO: pull the student toward what it would have said, knowing what went wrong.

Each sample with a signal is scored twice, by the student as it was sampled and by the teacher that has seen the
reprompt; the loss is the divergence between the two at every token of the response.
"""

from __future__ import annotations

from collections import Counter
from typing import TYPE_CHECKING, Protocol

from sdpo.algorithms.distillation import Distillation, TokenTerms, distillation_loss
from sdpo.algorithms.divergence import Divergence
from sdpo.algorithms.head import wide
from sdpo.algorithms.importance import Importance, policy_importance, rollout_importance
from sdpo.algorithms.micro_batch_shares import set_shares
from sdpo.algorithms.policy import loss_temperature, policy_terms
from sdpo.algorithms.reduce import metric_sums, token_weights
from sdpo.algorithms.rows import fraction, split_into_steps, usable, usable_samples
from sdpo.algorithms.scores import LossOutput, ResponseScores, Scores, TokenBatch
from sdpo.config.schema import Config
from sdpo.records import Group, Reprompt, TrainBatch, TrainRow

if TYPE_CHECKING:
    import torch


BUILDER_COUNTS = ("both", "trimmed", "masked_overlong")  # demonstration and feedback; cut to fit; nothing fitted


class RepromptSource(Protocol):
    """What the controller's reprompt builder looks like from here."""

    def build(self, group: Group, step: int) -> tuple[list[Reprompt | None], dict[str, float]]:
        """One entry per sample (None: no signal), and counts for the metrics."""
        ...


class Sdpo:
    """`reprompts` is needed for `build_batch` only; a training worker passes None."""

    needs_teacher = True

    def __init__(self, config: Config, reprompts: RepromptSource | None = None) -> None:
        actor = config.actor_rollout_ref.actor
        self.actor, self.settings, self.reprompts = actor, actor.self_distillation, reprompts
        self.temperature = loss_temperature(config.actor_rollout_ref.rollout.temperature)
        self.divergence = Divergence.from_config(self.settings, self.temperature)
        self.correction = config.algorithm.rollout_correction
        self.agg_mode, self.entropy_coeff = actor.loss_agg_mode, actor.entropy_coeff

    def describe(self) -> str:
        return f"SDPO, {self.divergence.describe()}, {self.agg_mode}, teacher {self.settings.teacher_regularization}"

    def needs_old_log_probs(self, num_optimizer_steps: int) -> bool:
        return num_optimizer_steps > 1 and (self.settings.is_clip is not None or self.correction.rollout_is is not None)

    # -- on the controller ---------------------------------------------------------------------------------------------

    def build_batch(self, groups: list[Group], step: int) -> TrainBatch:
        """Rows are the samples with a reprompt; the others cost no forward pass and are in no denominator."""
        counts: Counter[str] = Counter()
        reprompts: dict[tuple[str, int], Reprompt] = {}
        rows: list[list[TrainRow]] = []
        for group in groups:
            built, group_counts = self.reprompts.build(group, step)
            counts.update(group_counts)
            rows.append([])
            for sample, reprompt in zip(group.samples, built, strict=True):
                if reprompt is None or not usable(sample):
                    continue
                reprompts[group.prompt.uid, sample.index] = reprompt
                rows[-1].append(
                    TrainRow(
                        prompt_uid=group.prompt.uid,
                        sample_index=sample.index,
                        prompt_ids=sample.prompt_ids,
                        response_ids=sample.response_ids,
                        teacher_prompt_ids=reprompt.prompt_ids,
                        sampler_logprobs=sample.sampler_logprobs,
                    )
                )
        if self.settings.loss_normalization == "micro_batch":
            set_shares(groups, rows, self.actor)
        mini_batches, empty = split_into_steps(rows, self.actor.ppo_mini_batch_size)
        metrics = self._batch_metrics(list(reprompts.values()), usable_samples(groups), counts)
        return TrainBatch(mini_batches, metrics | {"sdpo/empty_mini_batches": float(empty)}, reprompts)

    @staticmethod
    def _batch_metrics(reprompts: list[Reprompt], samples: int, counts: Counter[str]) -> dict[str, float]:
        """Fractions of the usable samples; with the builder's counts of what was cut or did not fit."""
        demonstrations = sum(reprompt.demonstration_index is not None for reprompt in reprompts)
        feedbacks = sum(reprompt.used_feedback for reprompt in reprompts)
        return {
            **{f"sdpo/{name}_frac": fraction(counts[name], samples) for name in BUILDER_COUNTS},
            "sdpo/signal_frac": fraction(len(reprompts), samples),
            "sdpo/demonstration_frac": fraction(demonstrations, samples),
            "sdpo/feedback_frac": fraction(feedbacks, samples),
        }

    # -- in the worker -------------------------------------------------------------------------------------------------

    def loss(self, student: ResponseScores, teacher: Scores | None, batch: TokenBatch) -> LossOutput:
        """Sum over tokens of (aggregation weight * importance weights * divergence)."""
        if teacher is None:
            raise ValueError("SDPO's loss needs teacher scores for every row")
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
