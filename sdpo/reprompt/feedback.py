"""Which samples are told what the grader said."""

from __future__ import annotations

from sdpo.config.schema import SelfDistillationConfig
from sdpo.records import Sample
from sdpo.reprompt.demonstrations import is_success


def feedback_for(sample: Sample, has_demonstration: bool, config: SelfDistillationConfig) -> str | None:
    """The grader's text, or None: switched off, blank, ungraded, about a success, or made unnecessary by a
    demonstration. The template calls the attempt unsuccessful, so that praise would tell the teacher to avoid it."""
    if not config.include_environment_feedback or sample.grade is None or not sample.grade.graded:
        return None
    if is_success(sample, config.success_reward_threshold):
        return None
    if has_demonstration and config.environment_feedback_only_without_solution:
        return None
    text = sample.grade.feedback
    return text if text.strip() else None
