"""Cross-entropy: learn tokens as they are, an expert's or a text to be predicted."""

from __future__ import annotations

from sdpo.config.schema import Config
from sdpo.kernels.lazy_logits import ResponseScores, TeacherScores
from sdpo.kernels.policy import policy_terms
from sdpo.losses.reduce import metric_sums, token_weights
from sdpo.losses.token_batch import LossOutput, TokenBatch


class CrossEntropyLoss:
    """Sum over tokens of (aggregation weight * -log p(token)), at temperature 1: nothing was sampled."""

    uses_old_log_probs = False

    def __init__(self, config: Config) -> None:
        self.agg_mode = config.actor_rollout_ref.actor.loss_agg_mode

    def __call__(self, student: ResponseScores, teacher: TeacherScores | None, batch: TokenBatch) -> LossOutput:
        log_prob, _ = policy_terms(student, batch.response_ids, 1.0)
        weights = token_weights(batch, self.agg_mode, "component", log_prob.dtype)
        return LossOutput(-(weights * log_prob).sum(), metric_sums({"actor/cross_entropy": -log_prob}))
