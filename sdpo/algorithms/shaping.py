"""What a policy gradient compares within a group: the reward, less what is taken off it for length and for leaving the
reference policy. Successes, demonstrations and all metrics are about the grader's reward."""

from __future__ import annotations

from sdpo.config.schema import Config
from sdpo.records import Sample


def shaped_reward(sample: Sample, config: Config) -> float:
    """Of a graded sample. Additive terms only; an estimate of the KL may be negative, so it may exceed the grader's."""
    assert sample.reward is not None  # of a graded sample
    reward = sample.reward - overlong_penalty(len(sample.response_ids), config)
    if config.algorithm.use_kl_in_reward:
        reward -= config.algorithm.kl_ctrl.kl_coef * sample.kl
    return reward


def overlong_penalty(tokens: int, config: Config) -> float:
    """0 up to the buffer, then rising to `penalty_factor` at `data.max_response_length` (DAPO, arXiv 2503.14476,
    equation 13). tokens: of the policy, tool results are not its own."""
    buffer = config.reward_model.overlong_buffer
    if not buffer.enable:
        return 0.0
    beyond = tokens - (config.data.max_response_length - buffer.len)
    return buffer.penalty_factor * min(max(beyond / buffer.len, 0.0), 1.0)
