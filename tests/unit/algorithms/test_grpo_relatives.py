"""RLOO, GSPO and the KL loss: verl's functions on random batches, and numbers derived by hand."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from verl.trainer.ppo import core_algos
from verl.workers.config import ActorConfig

from sdpo.algorithms.grpo import Grpo, advantages_of, group_advantages
from sdpo.algorithms.rows import train_batch
from sdpo.config.compose import compose
from sdpo.config.validate import validate
from sdpo.errors import ConfigError
from sdpo.kernels.lazy_logits import ResponseScores
from sdpo.losses.policy_gradient import PolicyGradientLoss
from sdpo.losses.reduce import AGG_MODES
from tests.unit.algorithms.test_grpo import group_of

VOCAB = 6
MODE = "actor_rollout_ref.actor.policy_loss.loss_mode"
ACTOR = "actor_rollout_ref.actor"
KL_TYPES = ("low_var_kl", "k3", "mse", "k2", "abs", "kl+", "k1+", "low_var_kl+", "k3+")


def _random_batch(seed, token_batch_of):
    draw = torch.Generator().manual_seed(seed)
    lengths = torch.randint(1, 7, (int(torch.randint(1, 6, (1,), generator=draw)),), generator=draw).tolist()
    tokens = sum(lengths)
    logits = torch.randn(tokens, VOCAB, dtype=torch.float64, generator=draw)
    ids = torch.randint(0, VOCAB, (tokens,), generator=draw)
    own = logits.log_softmax(-1).gather(-1, ids[:, None])[:, 0]
    noise = torch.randn(3, tokens, dtype=torch.float64, generator=draw)
    by_row = torch.randn(len(lengths), dtype=torch.float64, generator=draw)
    batch = token_batch_of(
        lengths,
        VOCAB,
        response_ids=ids,
        old_log_probs=own - 0.3 * noise[0],
        reference_log_probs=own - 0.5 * noise[1],
        advantages=torch.repeat_interleave(by_row, torch.tensor(lengths)),
    )
    return lengths, logits.requires_grad_(), batch


def _padded(lengths, values):
    return torch.nn.utils.rnn.pad_sequence(values.split(lengths), batch_first=True)


@pytest.mark.parametrize("mode", ["vanilla", "gspo"])
@pytest.mark.parametrize("agg", AGG_MODES)
def test_loss_and_gradient_are_verls_on_random_batches(mode, agg, plain_config, token_batch_of):
    config, verl_config = plain_config(), ActorConfig(strategy="fsdp2", rollout_n=1, use_dynamic_bsz=True)
    for seed in range(100):
        lengths, logits, batch = _random_batch(seed, token_batch_of)
        actor = config.actor_rollout_ref.actor
        actor.policy_loss.loss_mode, actor.loss_agg_mode = mode, agg
        actor.use_kl_loss, actor.kl_loss_coef, actor.kl_loss_type = True, 0.3, KL_TYPES[seed % len(KL_TYPES)]
        ours = PolicyGradientLoss(config)(ResponseScores(logits, None, None, VOCAB), None, batch).loss

        log_prob = _padded(lengths, logits.log_softmax(-1).gather(-1, batch.response_ids[:, None])[:, 0])
        mask = _padded(lengths, torch.ones(sum(lengths), dtype=torch.float64))
        verls, _ = core_algos.get_policy_loss_fn(mode)(
            old_log_prob=_padded(lengths, batch.old_log_probs),
            log_prob=log_prob,
            advantages=_padded(lengths, batch.advantages),
            response_mask=mask,
            loss_agg_mode=agg,
            config=verl_config,
        )
        kl = core_algos.kl_penalty(log_prob, _padded(lengths, batch.reference_log_probs), actor.kl_loss_type)
        verls = verls + 0.3 * core_algos.agg_loss(kl, mask, agg)
        scale = 1.0
        if agg == "seq-mean-token-sum-norm":  # verl divides by the longest of the batch, here a setting
            scale = mask.shape[-1] / batch.max_response_length
        assert ours.item() == pytest.approx(verls.item() * scale, abs=1e-6)
        torch.testing.assert_close(
            torch.autograd.grad(ours, logits)[0], torch.autograd.grad(verls, logits)[0] * scale, atol=1e-6, rtol=0
        )


@pytest.mark.parametrize("estimator", ["grpo", "rloo"])
def test_advantages_are_verls_on_random_rewards(estimator):
    draw = np.random.default_rng(0)
    for _ in range(100):
        owners = np.repeat(np.arange(4), draw.integers(2, 6, 4))
        rewards = draw.random(len(owners))
        column = torch.tensor(rewards)[:, None]
        expected, _ = core_algos.get_adv_estimator_fn(estimator)(
            column.clone(), torch.ones_like(column), owners, norm_adv_by_std_in_grpo=False
        )
        assert group_advantages(rewards.tolist(), owners.tolist(), False, estimator) == pytest.approx(
            expected[:, 0].tolist(), abs=1e-6
        )


def test_rloo_compares_with_the_others():
    assert group_advantages([1.0, 0.0, 0.5], "aaa", False, "rloo") == pytest.approx([0.75, -0.75, 0.0])


P, Q = torch.tensor([0.5, 0.3, 0.2]).double(), torch.tensor([0.2, 0.3, 0.5]).double()
TRUE_GRADIENT = [0.320702, -0.082466, -0.238236]  # of KL(p || q) by the logits of p


def _expected(kind, token_batch_of, config):
    """Value and gradient of the KL loss by the logits of p, in expectation: each token with its probability."""
    logits = P.log().requires_grad_()
    actor = config.actor_rollout_ref.actor
    actor.use_kl_loss, actor.kl_loss_coef, actor.kl_loss_type = True, 1.0, kind
    value, gradient = 0.0, torch.zeros(3, dtype=torch.float64)
    for token in range(3):
        batch = token_batch_of(
            [1],
            response_ids=torch.tensor([token]),
            reference_log_probs=Q.log()[[token]],
            advantages=torch.zeros(1, dtype=torch.float64),
        )
        loss = PolicyGradientLoss(config)(ResponseScores(logits[None], None, None, 3), None, batch).loss
        value += float(P[token]) * loss.item()
        gradient += P[token] * torch.autograd.grad(loss, logits)[0]
    return value, gradient.tolist()


@pytest.mark.parametrize(
    ("kind", "value", "gradient"),
    [
        ("low_var_kl", 0.274887, [0.3, 0.0, -0.3]),  # that of KL(q || p)
        ("k2", 0.293856, TRUE_GRADIENT),
        ("k1+", 0.274887, TRUE_GRADIENT),
        ("low_var_kl+", 0.274887, TRUE_GRADIENT),
    ],
)
def test_each_estimator_has_the_value_and_the_gradient_that_its_name_says(
    kind, value, gradient, token_batch_of, plain_config
):
    found, slope = _expected(kind, token_batch_of, plain_config())
    assert (found, slope) == (pytest.approx(value, abs=1e-6), pytest.approx(gradient, abs=1e-6))


@pytest.mark.parametrize(
    ("overrides", "said"),
    [
        ([f"{MODE}=vanilla", f"{ACTOR}.kl_loss_type=kl"], "kl+"),  # no gradient in expectation
        ([f"{MODE}=vanilla", f"{ACTOR}.kl_loss_type=k1"], "k1+"),
        ([f"{ACTOR}.use_kl_loss=true"], "loss_mode=sdpo"),
        ([f"{MODE}=vanilla", "algorithm.adv_estimator=rloo", "algorithm.norm_adv_by_std_in_grpo=true"], "rloo"),
        ([f"{MODE}=vanilla", f"{ACTOR}.kl_loss_coef=-0.1"], ">= 0"),
    ],
)
def test_what_cannot_be_meant_is_one_line(overrides, said):
    with pytest.raises(ConfigError, match="kl_loss|norm_adv") as refused:
        validate(compose(overrides))
    assert said in str(refused.value) and "\n" not in str(refused.value)


def test_tokens_of_groups_without_a_difference_count_as_in_verl_with_or_without_their_forward(plain_config):
    """One group whose rewards differ, of 4 tokens, beside a dead one of 4: a mean over 8."""
    config = plain_config()
    groups = [group_of("dead", 1.0, 1.0), group_of("mixed", 1.0, 0.0)]
    found = []
    for kl in (False, True):
        config.actor_rollout_ref.actor.use_kl_loss = kl
        (batch,) = train_batch(groups, Grpo(config, None).route(groups, 1), config.actor_rollout_ref.actor).mini_batches
        found.append((batch.denominators()["policy_gradient"], [row.policy_gradient for row in batch.rows]))
    (without, skipped), (with_kl, read) = found
    assert (without.tokens, without.sequences) == (with_kl.tokens, with_kl.sequences) == (8, 4)
    assert [(p.advantage, p.weight) for p in skipped] == [(0.0, 0.0), (0.0, 0.0), (0.5, 1.0), (-0.5, 1.0)]
    assert [p.weight for p in read] == [1.0] * 4


def test_the_estimator_of_the_configuration_is_used(plain_config):
    config = plain_config()
    config.algorithm.adv_estimator = "rloo"
    assert advantages_of([group_of("a", 1.0, 0.0)], config) == [{0: 1.0, 1: -1.0}]
