"""Which samples are told what the grader said, and what the row says."""

from __future__ import annotations

from sdpo.config.schema import SelfDistillationConfig
from sdpo.records import Sample
from sdpo.reprompt.demonstrations import is_success


def feedback_for(
    sample: Sample, has_demonstration: bool, config: SelfDistillationConfig, of_row: str = ""
) -> str | None:
    """The grader's text and the row's own, or None: switched off, blank, ungraded, about a success, or made unnecessary
    by a demonstration. The template calls the attempt unsuccessful: praise would tell the teacher to avoid it."""
    if not config.include_environment_feedback or sample.grade is None or not sample.grade.graded:
        return None
    if is_success(sample, config.success_reward_threshold):
        return None
    if has_demonstration and config.environment_feedback_only_without_solution:
        return None
    texts = [text for text in (sample.grade.feedback, of_row) if text.strip()]
    return "\n\n".join(texts) if texts else None
