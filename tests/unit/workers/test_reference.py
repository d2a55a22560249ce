"""The policy that a run started from, as a reference for policy gradients."""

from __future__ import annotations

import pytest
import torch

from sdpo.kernels.policy import policy_terms
from sdpo.records import MiniBatch, PolicyGradient
from sdpo.teacher.teachers import EmaTeacher
from sdpo.tokens.packing import pack_micro_batch
from sdpo.tokens.partition import MicroBatchRows
from sdpo.workers.actor import Actor, split_over_ranks


@pytest.fixture
def pushed(actor_config, mini_batch):
    """GRPO rows with a strong advantage, a policy at temperature 0.5, and a KL loss."""
    actor = actor_config.actor_rollout_ref.actor
    actor.policy_loss.loss_mode, actor.use_kl_loss = "vanilla", True
    actor_config.actor_rollout_ref.rollout.temperature = 0.5
    for number, row in enumerate(mini_batch.rows):
        row.policy_gradient, row.distillation = PolicyGradient((-1.0) ** number * 3), ()
    return actor_config


def _updated(config, batch: MiniBatch, steps: int):
    actor = Actor(config, 0, 1, "cpu", total_steps=10)
    shares = split_over_ranks([batch], config.actor_rollout_ref.actor, 1)[0]
    return actor, [actor.update(shares).metrics["actor/kl_loss"] for _ in range(steps)]


def _log_probs(module, rows, temperature: float) -> torch.Tensor:
    micro = pack_micro_batch(MicroBatchRows(rows))
    ids = torch.tensor([token for row in rows for token in row.policy_ids])
    with torch.no_grad():
        return policy_terms(module.scores(micro.student), ids, temperature)[0]


@pytest.mark.parametrize("rows_each", [None, 2])
def test_the_kl_loss_is_zero_at_first_and_then_against_where_the_run_began(pushed, mini_batch, rows_each):
    pushed.actor_rollout_ref.actor.ppo_micro_batch_size_per_gpu = rows_each
    actor, (first, second) = _updated(pushed, mini_batch, 2)
    assert abs(first) < 1e-7 < second
    fresh = Actor(pushed, 0, 1, "cpu", total_steps=10).student
    now, then = (_log_probs(module, mini_batch.rows, 0.5) for module in (actor.reference.module, fresh))
    torch.testing.assert_close(now, then)


def test_a_heavy_kl_loss_holds_the_policy_where_it_was(pushed, mini_batch):
    found = []
    for coefficient in (0.0, 100.0):
        pushed.actor_rollout_ref.actor.kl_loss_coef = coefficient
        found.append(_updated(pushed, mini_batch, 6)[1][-1])
    assert found[1] < 0.5 * found[0]


def test_without_a_kl_there_is_no_reference_and_a_frozen_teacher_lends_its_weights(pushed, mini_batch):
    actor = pushed.actor_rollout_ref.actor
    assert Actor(pushed, 0, 1, "cpu", total_steps=10).reference is not None
    actor.policy_loss.loss_mode = "srpo"
    for kind, shared in (("frozen", True), ("trust-region", True), ("ema", False)):
        actor.self_distillation.teacher_regularization = kind
        made = Actor(pushed, 0, 1, "cpu", total_steps=10)
        assert (made.reference.module is made.teacher.module) == shared
        assert isinstance(made.teacher, EmaTeacher) == (not shared)
    actor.use_kl_loss = False
    assert Actor(pushed, 0, 1, "cpu", total_steps=10).reference is None


@pytest.mark.parametrize("rows_each", [None, 2])
def test_the_kl_of_a_sample_is_the_sum_over_its_own_tokens_whatever_the_micro_batches(pushed, mini_batch, rows_each):
    pushed.algorithm.use_kl_in_reward = True
    pushed.actor_rollout_ref.actor.ppo_micro_batch_size_per_gpu = rows_each
    actor, _ = _updated(pushed, mini_batch, 2)
    for number, row in enumerate(mini_batch.rows):
        row.sequence = number // 2  # two rows of one sample
    found = actor.reference_kl(split_over_ranks([mini_batch], pushed.actor_rollout_ref.actor, 1)[0])
    own, theirs = (_log_probs(m, mini_batch.rows, 0.5) for m in (actor.student, actor.reference.module))
    expected, first = dict.fromkeys(found, 0.0), 0
    for row in mini_batch.rows:
        part = slice(first, first + row.tokens_of("all"))
        expected[row.sequence] += float((own - theirs)[part].sum())  # k1
        first = part.stop
    assert found == pytest.approx(expected, abs=1e-5) and any(abs(kl) > 0.01 for kl in found.values())
