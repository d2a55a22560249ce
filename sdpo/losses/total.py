"""The loss of a micro-batch: the components that its rows carry. What sent a row there is not asked."""

from __future__ import annotations

from sdpo.algorithms.registry import Descriptor
from sdpo.config.schema import Config
from sdpo.kernels.lazy_logits import ResponseScores, TeacherScores
from sdpo.losses.cross_entropy import CrossEntropyLoss
from sdpo.losses.distillation import DistillationLoss
from sdpo.losses.policy_gradient import PolicyGradientLoss
from sdpo.losses.token_batch import LossBatch, LossOutput


class TotalLoss:
    """The components of one algorithm; `descriptor` names them."""

    def __init__(self, config: Config, descriptor: Descriptor) -> None:
        kinds: dict[str, type[PolicyGradientLoss | DistillationLoss | CrossEntropyLoss]] = {
            "policy_gradient": PolicyGradientLoss,
            "distillation": DistillationLoss,
            "cross_entropy": CrossEntropyLoss,
        }
        self.parts = {name: kinds[name](config) for name in descriptor.components}

    def needs_old_log_probs(self, num_optimizer_steps: int) -> bool:
        """Whether `TokenBatch.old_log_probs` must be computed when one rollout batch makes that many optimizer steps.
        With a single step the old policy is the current one and no forward pass is spent on it."""
        return num_optimizer_steps > 1 and any(part.uses_old_log_probs for part in self.parts.values())

    def __call__(self, student: ResponseScores, teacher: TeacherScores | None, batch: LossBatch) -> list[LossOutput]:
        """One output for each component that any row carries. Add their losses up; a component of weight 0 is none.

        student: scores of all policy tokens; teacher: of the distilled ones."""
        outputs = []
        for name, part in self.parts.items():
            tokens = getattr(batch, name)
            if tokens is not None:
                outputs.append(part(tokens.of(student), teacher, tokens))
        return outputs
