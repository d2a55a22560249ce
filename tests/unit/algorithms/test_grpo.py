from __future__ import annotations

import dataclasses
import math

import pytest
import torch

from sdpo.algorithms.grpo import Grpo, advantages_of, group_advantages
from sdpo.algorithms.rows import train_batch, weighted
from sdpo.config.schema import AlgorithmConfig, Config
from sdpo.kernels.lazy_logits import ResponseScores
from sdpo.losses.policy_gradient import PolicyGradientLoss
from sdpo.losses.reduce import AGG_MODES
from sdpo.records import Grade, GradeStatus, Group, Prompt, Sample

VOCAB = 5


def group_of(uid, *rewards):
    samples = []
    for index, reward in enumerate(rewards):
        status = GradeStatus.INFRA_ERROR if reward is None else GradeStatus.OK
        samples.append(Sample(uid, index, [1], [2, 3], "text", "stop", 0, [-1.0, -1.0], Grade(status, reward)))
    return Group(Prompt(uid, ({"role": "user", "content": "q"},), "test"), samples)


def test_a_constant_group_or_a_single_sample_has_advantage_zero():
    assert group_advantages([0.1] * 8, ["a"] * 8, True) == [0.0] * 8
    assert group_advantages([0.7], ["a"], True) == [0.0]
    assert group_advantages([1.0, sum([0.1] * 10)], ["a", "a"], True) == [0.0, 0.0]


def test_missing_rewards_are_excluded_not_zero():
    groups = [group_of("a", 1.0, None, 0.0)]
    assert advantages_of(groups, Config()) == [{0: 0.5, 2: -0.5}]
    (scaled,) = advantages_of(groups, Config(algorithm=AlgorithmConfig(norm_adv_by_std_in_grpo=True)))
    assert scaled == {0: pytest.approx(1 / math.sqrt(2), rel=1e-5), 2: -scaled[0]}


def test_advantage_without_scaling_is_reward_minus_mean():
    assert group_advantages([0.0, 0.0, 0.0, 1.0], ["a"] * 4, False) == [-0.25, -0.25, -0.25, 0.75]


def test_statistics_never_cross_groups_however_rows_are_ordered():
    assert group_advantages([1.0, 0.0, 0.0, 0.0], ["a", "b", "a", "b"], False) == [0.5, 0.0, -0.5, 0.0]


def build(groups, config, **changes):
    config.algorithm.norm_adv_by_std_in_grpo = False
    config.actor_rollout_ref.actor.ppo_mini_batch_size = changes.get("prompts_per_step", 4)
    return train_batch(groups, Grpo(config, None).route(groups, step=0), config.actor_rollout_ref.actor)


def test_constant_groups_are_skipped_and_counted(plain_config):
    batch = build([group_of("a", 1.0, 0.0), group_of("b", 1.0, 1.0), group_of("c", None, None)], plain_config())
    rows = list(filter(weighted, batch.mini_batches[0].rows))
    assert [(r.prompt_uid, r.policy_gradient.advantage) for r in rows] == [("a", 0.5), ("a", -0.5)]
    assert not any(r.distillation for r in rows)
    assert batch.metrics["grpo/zero_advantage_group_frac"] == pytest.approx(1 / 2)


def test_a_row_at_the_mean_of_a_mixed_group_stays(plain_config):
    batch = build([group_of("a", 1.0, 0.5, 0.0)], plain_config())
    assert [row.policy_gradient.advantage for row in batch.mini_batches[0].rows] == [0.5, 0.0, -0.5]


def test_one_prompt_twice_in_a_batch_is_two_groups(plain_config):
    batch = build([group_of("a", 1.0, 0.0), group_of("a", 1.0, 1.0)], plain_config())
    assert [row.policy_gradient.advantage for row in filter(weighted, batch.mini_batches[0].rows)] == [0.5, -0.5]


def test_all_constant_means_no_step(plain_config):
    batch = build([group_of("a", 0.0, 0.0), group_of("b", 1.0, 1.0)], plain_config(), prompts_per_step=1)
    assert batch.mini_batches == []
    assert batch.metrics == {"grpo/zero_advantage_group_frac": 1.0, "actor/empty_mini_batches": 2.0}


def one_token(token_batch_of, log_ratio, advantage, **fields):
    """Vocabulary of two, current log-prob log(1/2), old log-prob such that log(p / p_old) is as asked."""
    old = torch.tensor([math.log(0.5) - log_ratio], dtype=torch.float64)
    advantages = torch.tensor([advantage], dtype=torch.float64)
    ids = torch.tensor([0])
    batch = token_batch_of([1], response_ids=ids, old_log_probs=old, advantages=advantages, **fields)
    return torch.zeros(1, 2, dtype=torch.float64, requires_grad=True), batch


@pytest.mark.parametrize(
    ("ratio", "advantage", "expected", "gradient"),
    [
        (1.1, 1.0, -1.1, -0.55),  # inside the clip: -A r, slope -A r (1 - p)
        (1.5, 1.0, -1.2, 0.0),  # clipped above
        (0.5, -1.0, 0.8, 0.0),  # clipped below
        (1.5, -1.0, 1.5, 0.75),  # no clip on this side
        (9.0, -1.0, 3.0, 0.0),  # dual clip
    ],
)
def test_clip_and_dual_clip_by_hand(plain_config, token_batch_of, ratio, advantage, expected, gradient):
    logits, batch = one_token(token_batch_of, math.log(ratio), advantage)
    loss = PolicyGradientLoss(plain_config())(ResponseScores(logits, None, None, 2), None, batch).loss
    loss.backward()
    assert loss.item() == pytest.approx(expected)
    assert logits.grad[0, 0].item() == pytest.approx(gradient)


def test_without_old_log_probs_the_gradient_is_the_policy_gradient(plain_config, token_batch_of):
    logits, batch = one_token(token_batch_of, 0.0, 2.0)
    on_policy = dataclasses.replace(batch, old_log_probs=None)
    loss = PolicyGradientLoss(plain_config())(ResponseScores(logits, None, None, 2), None, on_policy).loss
    loss.backward()
    assert loss.item() == -2.0
    assert logits.grad[0].tolist() == [-1.0, 1.0]


def test_asymmetric_clip_dual_clip_and_row_weight_enter_the_loss(plain_config, token_batch_of):
    logits, batch = one_token(token_batch_of, math.log(1.5), 1.0)
    config = plain_config()
    config.actor_rollout_ref.actor.clip_ratio_high = 0.3
    scores = ResponseScores(logits, None, None, 2)
    assert PolicyGradientLoss(config)(scores, None, batch).loss.item() == pytest.approx(-1.3)
    weighted = dataclasses.replace(batch, weights=torch.tensor([0.5]))
    assert PolicyGradientLoss(config)(scores, None, weighted).loss.item() == pytest.approx(-0.65)
    config.actor_rollout_ref.actor.clip_ratio_c = 1.2
    negative = dataclasses.replace(batch, advantages=torch.tensor([-1.0]))
    assert PolicyGradientLoss(config)(scores, None, negative).loss.item() == pytest.approx(1.2)


def test_rollout_correction_and_temperature_enter_the_loss(plain_config, token_batch_of):
    logits, batch = one_token(token_batch_of, 0.0, 1.0)
    batch = dataclasses.replace(batch, sampler_log_probs=batch.old_log_probs - math.log(1.5))
    config = plain_config()
    config.algorithm.rollout_correction.rollout_is = "token"
    scores = ResponseScores(logits, None, None, 2)
    output = PolicyGradientLoss(config)(scores, None, batch)
    assert output.loss.item() == pytest.approx(-1.5)
    assert output.metrics["rollout/log_prob_diff_max"][0] == pytest.approx(math.log(1.5))
    sharper = ResponseScores(torch.tensor([[0.05, 0.0]]), None, None, 2)
    cold, warm = plain_config(), plain_config()
    cold.actor_rollout_ref.rollout.temperature = 0.5
    assert PolicyGradientLoss(cold)(sharper, None, batch).loss < PolicyGradientLoss(warm)(sharper, None, batch).loss


def whole_batch(token_batch_of):
    return token_batch_of(
        [3, 1, 2],
        VOCAB,
        advantages=torch.tensor([1.0, 1.0, 1.0, -1.0, 0.5, 0.5], dtype=torch.float64),
        old_log_probs=torch.linspace(-3, -1, 6, dtype=torch.float64),
        max_response_length=4,
    )


@pytest.mark.parametrize("mode", AGG_MODES)
def test_grpo_loss_and_gradient_do_not_depend_on_micro_batches(plain_config, token_batch_of, mode):
    config = plain_config()
    config.actor_rollout_ref.actor.loss_agg_mode = mode
    config.actor_rollout_ref.actor.entropy_coeff = 0.1
    batch = whole_batch(token_batch_of)
    logits = torch.randn(6, VOCAB, dtype=torch.float64, generator=torch.Generator().manual_seed(0)).requires_grad_()
    whole = PolicyGradientLoss(config)(ResponseScores(logits, None, None, VOCAB), None, batch).loss
    gradient = torch.autograd.grad(whole, logits)[0]
    parts = []
    for rows in ([0, 1], [2], []):
        chosen = torch.isin(batch.row, torch.tensor(rows, dtype=torch.int64))
        part = dataclasses.replace(
            batch,
            response_ids=batch.response_ids[chosen],
            row=batch.row[chosen] - (rows[0] if rows else 0),
            row_lengths=batch.row_lengths[rows],
            weights=batch.weights[chosen],
            advantages=batch.advantages[chosen],
            old_log_probs=batch.old_log_probs[chosen],
        )
        parts.append(PolicyGradientLoss(config)(ResponseScores(logits[chosen], None, None, VOCAB), None, part).loss)
    assert parts[-1].item() == 0.0
    assert sum(parts).item() == pytest.approx(whole.item(), rel=1e-9)
    torch.testing.assert_close(torch.autograd.grad(sum(parts), logits)[0], gradient)


def test_entropy_bonus_changes_the_grpo_loss(plain_config, token_batch_of):
    logits, batch = one_token(token_batch_of, 0.0, 1.0)
    config = plain_config()
    config.actor_rollout_ref.actor.entropy_coeff = 0.1
    output = PolicyGradientLoss(config)(ResponseScores(logits, None, None, 2), None, batch)
    assert output.loss.item() == pytest.approx(-1.0 - 0.1 * math.log(2))
    assert output.metrics["actor/entropy"] == pytest.approx((math.log(2), 1.0))


def test_clip_fractions_are_reported_as_sums_over_tokens(plain_config, token_batch_of):
    batch = dataclasses.replace(whole_batch(token_batch_of), old_log_probs=torch.full((6,), -20.0).double())
    logits = torch.zeros(6, VOCAB, dtype=torch.float64)
    metrics = PolicyGradientLoss(plain_config())(ResponseScores(logits, None, None, VOCAB), None, batch).metrics
    assert metrics["actor/pg_clipfrac"] == pytest.approx((5.0, 6.0))
    assert metrics["actor/pg_clipfrac_lower"] == pytest.approx((1.0, 6.0))


def test_missing_advantages_are_an_error(plain_config, token_batch_of):
    scores = ResponseScores(torch.zeros(1, 2), None, None, 2)
    with pytest.raises(ValueError, match="advantage"):
        PolicyGradientLoss(plain_config())(scores, None, token_batch_of([1], 2))
