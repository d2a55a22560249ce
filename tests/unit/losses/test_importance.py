from __future__ import annotations

import math

import pytest
import torch

from sdpo.config.schema import RolloutCorrectionConfig
from sdpo.errors import ConfigError
from sdpo.losses.importance import capped_ratio, policy_importance, rollout_importance


def tensor(*values):
    return torch.tensor(values, dtype=torch.float64)


def test_ratio_is_capped_from_above_and_detached():
    current = tensor(-1.0).requires_grad_()
    ratio = capped_ratio(current, tensor(-3.0), 2.0)
    assert ratio.item() == 2.0 and not ratio.requires_grad
    assert capped_ratio(current, tensor(-3.0), None).item() == pytest.approx(7.389056, abs=1e-6)
    assert capped_ratio(tensor(-3.0), tensor(-1.0), 2.0).item() == pytest.approx(math.exp(-2))


def test_extreme_log_ratios_stay_finite():
    assert capped_ratio(tensor(0.0), tensor(-1e4), None).item() == pytest.approx(math.exp(20))
    assert capped_ratio(tensor(-1e4), tensor(0.0), None).item() == pytest.approx(math.exp(-20))


def test_policy_weight_is_one_when_the_policy_has_not_moved_or_the_clip_is_off(token_batch_of):
    log_prob = tensor(-1.0, -2.0)
    assert policy_importance(log_prob, token_batch_of([2]), 2.0).weight.tolist() == [1.0, 1.0]
    moved = token_batch_of([2], old_log_probs=tensor(-3.0, -2.0))
    assert policy_importance(log_prob, moved, None).weight.tolist() == [1.0, 1.0]
    weighted = policy_importance(log_prob, moved, 2.0)
    assert weighted.weight.tolist() == [2.0, 1.0]
    assert weighted.values["sdpo/is_clip_frac"].tolist() == [1.0, 0.0]


def test_rollout_weight_compares_the_old_policy_with_the_sampler(token_batch_of):
    log_prob, sampler = tensor(-1.0, -2.0), tensor(-1.5, -1.0)
    config = RolloutCorrectionConfig()
    now = rollout_importance(log_prob, token_batch_of([2], sampler_log_probs=sampler), config)
    assert now.weight.tolist() == pytest.approx([math.exp(0.5), math.exp(-1)])
    old = rollout_importance(
        log_prob, token_batch_of([2], sampler_log_probs=sampler, old_log_probs=tensor(0.0, -1.0)), config
    )
    assert old.weight.tolist() == pytest.approx([2.0, 1.0])
    assert old.values["rollout/log_prob_diff_max"].tolist() == [1.5, 0.0]


def test_rollout_difference_is_reported_with_the_correction_off(token_batch_of):
    batch = token_batch_of([1], sampler_log_probs=tensor(-1.5))
    off = rollout_importance(tensor(-1.0), batch, RolloutCorrectionConfig(rollout_is=None))
    assert off.weight.tolist() == [1.0]
    assert off.values["rollout/log_prob_diff_mean"].tolist() == [0.5]


def test_a_correction_without_sampler_log_probs_is_an_error_not_a_silent_one(token_batch_of):
    with pytest.raises(ConfigError, match="calculate_log_probs"):
        rollout_importance(tensor(-1.0), token_batch_of([1]), RolloutCorrectionConfig())


def test_threshold_null_means_no_cap(token_batch_of):
    batch = token_batch_of([1], sampler_log_probs=tensor(-4.0))
    config = RolloutCorrectionConfig(rollout_is_threshold=None)
    assert rollout_importance(tensor(-1.0), batch, config).weight.item() == pytest.approx(math.exp(3))
