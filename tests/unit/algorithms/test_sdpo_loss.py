from __future__ import annotations

import dataclasses

import pytest
import torch

from sdpo.algorithms.registry import descriptor_of
from sdpo.errors import ConfigError
from sdpo.kernels.lazy_logits import InterpolatedScores, ResponseScores
from sdpo.losses.distillation import DistillationLoss
from sdpo.losses.reduce import AGG_MODES
from sdpo.losses.total import TotalLoss

LENGTHS, VOCAB = [3, 1, 2], 7


def logits_pair(seed=0):
    generator = torch.Generator().manual_seed(seed)
    student, teacher = (2 * torch.randn(sum(LENGTHS), VOCAB, generator=generator, dtype=torch.float64) for _ in "st")
    return student.requires_grad_(), teacher


@pytest.fixture
def full_batch(token_batch_of):
    """Old and sampler log-probs well away from the current ones, so that all caps bite."""
    spread = torch.linspace(-5, -0.2, sum(LENGTHS), dtype=torch.float64)
    return token_batch_of(
        LENGTHS,
        VOCAB,
        old_log_probs=spread,
        sampler_log_probs=spread.flip(0),
        max_response_length=5,
        weights=torch.ones(6, dtype=torch.float64),
    )


def run(config, student, teacher, batch):
    output = DistillationLoss(config)(
        ResponseScores(student, None, None, VOCAB), ResponseScores(teacher, None, None, VOCAB), batch
    )
    return output, torch.autograd.grad(output.loss, student)[0]


LOSS_OPTIONS = {
    "alpha": ("self_distillation.alpha", 0.25),
    "forward KL": ("self_distillation.alpha", 0.0),
    "reverse KL": ("self_distillation.alpha", 1.0),
    "is_clip off": ("self_distillation.is_clip", None),
    "is_clip": ("self_distillation.is_clip", 1.1),
    "divergence_clip": ("self_distillation.divergence_clip", 0.1),
    "topk": ("self_distillation.distillation_topk", 3),
    "loss_agg_mode 1": ("loss_agg_mode", "seq-mean-token-mean"),
    "loss_agg_mode 2": ("loss_agg_mode", "seq-mean-token-sum"),
    "loss_agg_mode 3": ("loss_agg_mode", "seq-mean-token-sum-norm"),
    "entropy_coeff": ("entropy_coeff", 0.1),
    "temperature": ("rollout.temperature", 0.7),
    "rollout_is off": ("rollout_correction.rollout_is", None),
    "rollout_is_threshold": ("rollout_correction.rollout_is_threshold", 1.3),
}
TOPK_OPTIONS = {
    "add_tail": ("self_distillation.distillation_add_tail", False),
    "support teacher": ("self_distillation.support", "teacher"),
    "support union": ("self_distillation.support", "union"),
}


def set_option(config, path, value):
    actor = config.actor_rollout_ref.actor
    owners = {
        "self_distillation": actor.self_distillation,
        "rollout": config.actor_rollout_ref.rollout,
        "rollout_correction": config.algorithm.rollout_correction,
    }
    *owner, name = path.split(".")
    target = owners[owner[0]] if owner else actor
    assert hasattr(target, name)
    setattr(target, name, value)


@pytest.fixture
def default_config(plain_config):
    def build():
        config = plain_config(is_clip=2.0)
        config.algorithm.rollout_correction.rollout_is = "token"
        return config

    return build


@pytest.mark.parametrize(("path", "value"), LOSS_OPTIONS.values(), ids=LOSS_OPTIONS.keys())
def test_every_loss_option_changes_loss_and_gradient(default_config, full_batch, path, value):
    student, teacher = logits_pair()
    before = run(default_config(), student, teacher, full_batch)
    config = default_config()
    set_option(config, path, value)
    after = run(config, student, teacher, full_batch)
    assert abs(before[0].loss - after[0].loss) > 1e-4
    assert (before[1] - after[1]).abs().max() > 1e-5


@pytest.mark.parametrize(("path", "value"), TOPK_OPTIONS.values(), ids=TOPK_OPTIONS.keys())
def test_every_top_k_option_changes_loss_and_gradient(default_config, full_batch, path, value):
    student, teacher = logits_pair()
    results = []
    for changed in (False, True):
        config = default_config()
        config.actor_rollout_ref.actor.self_distillation.distillation_topk = 3
        if changed:
            set_option(config, path, value)
        results.append(run(config, student, teacher, full_batch))
    assert abs(results[0][0].loss - results[1][0].loss) > 1e-4
    assert (results[0][1] - results[1][1]).abs().max() > 1e-5


def test_sampled_token_mode_is_another_loss(default_config, full_batch):
    student, teacher = logits_pair()
    config = default_config()
    config.actor_rollout_ref.actor.self_distillation.alpha = 1.0
    full = run(config, student, teacher, full_batch)[0].loss
    config.actor_rollout_ref.actor.self_distillation.full_logit_distillation = False
    assert abs(run(config, student, teacher, full_batch)[0].loss - full) > 1e-4


def test_importance_weight_multiplies_the_token_loss_and_is_detached(plain_config, token_batch_of):
    student, teacher = torch.tensor([[1.0, 0.0]], dtype=torch.float64).requires_grad_(), torch.zeros(1, 2).double()
    ids = torch.tensor([0])
    current = torch.log_softmax(student.detach(), -1)[:, 0]
    batch = token_batch_of([1], response_ids=ids, old_log_probs=current - 2.0)
    results = {}
    for clip in (None, 2.0, 100.0):
        output = DistillationLoss(plain_config(is_clip=clip))(
            ResponseScores(student, None, None, 2), ResponseScores(teacher, None, None, 2), batch
        )
        results[clip] = output.loss.item(), torch.autograd.grad(output.loss, student)[0][0, 0].item()
    for position in (0, 1):  # loss, and gradient: a leak would add a term
        assert results[2.0][position] == pytest.approx(2.0 * results[None][position])
        assert results[100.0][position] == pytest.approx(7.389056 * results[None][position], rel=1e-6)


@pytest.mark.parametrize("mode", AGG_MODES)
def test_loss_and_gradient_do_not_depend_on_micro_batches(default_config, full_batch, mode):
    config = default_config()
    config.actor_rollout_ref.actor.loss_agg_mode = mode
    config.actor_rollout_ref.actor.entropy_coeff = 0.01
    student, teacher = logits_pair()
    whole, gradient = run(config, student, teacher, full_batch)
    loss, pieces, sums = 0.0, torch.zeros_like(gradient), 0.0
    for rows in ([0], [1, 2]):
        chosen = torch.isin(full_batch.row, torch.tensor(rows))
        part = dataclasses.replace(
            full_batch,
            response_ids=full_batch.response_ids[chosen],
            row=full_batch.row[chosen] - rows[0],
            row_lengths=full_batch.row_lengths[rows],
            weights=full_batch.weights[chosen],
            old_log_probs=full_batch.old_log_probs[chosen],
            sampler_log_probs=full_batch.sampler_log_probs[chosen],
        )
        output = DistillationLoss(config)(
            ResponseScores(student[chosen], None, None, VOCAB), ResponseScores(teacher[chosen], None, None, VOCAB), part
        )
        loss += output.loss.item()
        pieces += torch.autograd.grad(output.loss, student)[0]
        sums += output.metrics["sdpo/divergence"][0]
    assert loss == pytest.approx(whole.loss.item(), rel=1e-12)
    torch.testing.assert_close(pieces, gradient, rtol=1e-12, atol=1e-14)
    assert sums == pytest.approx(whole.metrics["sdpo/divergence"][0])


@pytest.mark.parametrize("topk", [None, 3])
def test_an_empty_micro_batch_is_zero_with_a_graph(default_config, token_batch_of, topk):
    config = default_config()
    config.actor_rollout_ref.actor.self_distillation.distillation_topk = topk
    config.actor_rollout_ref.actor.entropy_coeff = 0.1
    none = torch.zeros(0, dtype=torch.float64)
    batch = token_batch_of([], tokens=4, sequences=1, old_log_probs=none, sampler_log_probs=none)
    hidden, weight = torch.zeros(0, 3, dtype=torch.float64), torch.randn(VOCAB, 3, dtype=torch.float64)
    weight.requires_grad_()
    scores = ResponseScores(hidden, weight, None, VOCAB)
    output = DistillationLoss(config)(scores, ResponseScores(hidden, weight.detach(), None, VOCAB), batch)
    output.loss.backward()
    assert output.loss.item() == 0.0
    assert (weight.grad == 0).all()
    assert output.metrics == {}


def test_divergence_clip_caps_the_sum_over_the_vocabulary_not_its_entries(plain_config, token_batch_of):
    student = torch.tensor([[4.0, 0.0], [0.0, 0.01]], dtype=torch.float64).requires_grad_()
    teacher = torch.tensor([[0.0, 4.0], [0.0, 0.0]], dtype=torch.float64)
    config = plain_config(alpha=1.0, divergence_clip=0.5)
    batch = token_batch_of([2], response_ids=torch.tensor([0, 1]))
    scores = [ResponseScores(logits, None, None, 2) for logits in (student, teacher)]
    output = DistillationLoss(config)(*scores, batch)
    gradient = torch.autograd.grad(output.loss, student)[0]
    assert 0.25 < output.loss.item() < 0.25 + 1e-4  # (0.5 + almost nothing) / 2; entries of the first token exceed 3
    assert (gradient[0] == 0).all() and gradient[1].abs().sum() > 0
    assert output.metrics["sdpo/divergence_clip_frac"] == (1.0, 2.0)


def test_metrics_are_sums_with_counts_and_a_maximum(default_config, full_batch):
    student, teacher = logits_pair()
    config = default_config()
    config.actor_rollout_ref.actor.self_distillation.distillation_topk = 3
    metrics = run(config, student, teacher, full_batch)[0].metrics
    tokens = float(sum(LENGTHS))
    assert {
        "sdpo/divergence",
        "actor/entropy",
        "sdpo/teacher_entropy",
        "sdpo/student_mass",
        "sdpo/teacher_mass",
        "sdpo/is_ratio_mean",
        "sdpo/is_clip_frac",
        "rollout/log_prob_diff_mean",
        "rollout/log_prob_diff_max",
        "rollout/is_ratio_mean",
        "rollout/is_clip_frac",
    } == set(metrics)
    assert all(count == (1.0 if name.endswith("_max") else tokens) for name, (_, count) in metrics.items())
    assert metrics["rollout/log_prob_diff_max"][0] == pytest.approx(4.8)


def test_trust_region_teacher_goes_through_the_same_loss(plain_config, token_batch_of):
    student, teacher = logits_pair()
    other = teacher + 1.0 * torch.arange(VOCAB)
    batch = token_batch_of(LENGTHS, VOCAB)
    mixed = InterpolatedScores(
        ResponseScores(teacher, None, None, VOCAB), ResponseScores(other, None, None, VOCAB), 0.25
    )
    scores = ResponseScores(student, None, None, VOCAB)
    by_hand = ResponseScores(0.75 * teacher + 0.25 * other, None, None, VOCAB)
    losses = [DistillationLoss(plain_config())(scores, target, batch).loss.item() for target in (mixed, by_hand)]
    assert losses[0] == pytest.approx(losses[1], rel=1e-12)


def test_old_log_probs_are_asked_for_only_when_they_can_differ_and_are_used(plain_config):
    def needs(steps, config):
        return TotalLoss(config, descriptor_of(config)).needs_old_log_probs(steps)

    assert not needs(1, plain_config(is_clip=2.0))
    assert needs(2, plain_config(is_clip=2.0))
    assert not needs(2, plain_config(is_clip=None))
    config = plain_config(is_clip=None)
    config.algorithm.rollout_correction.rollout_is = "token"
    assert needs(2, config)
    config = plain_config(is_clip=None)
    config.actor_rollout_ref.actor.policy_loss.loss_mode = "vanilla"
    assert needs(2, config) and not needs(1, config)


def test_bfloat16_heads_give_a_float32_loss(plain_config, token_batch_of):
    hidden = torch.randn(6, 4, generator=torch.Generator().manual_seed(0))
    weight = torch.randn(VOCAB, 4, generator=torch.Generator().manual_seed(1))
    batch = token_batch_of(LENGTHS, VOCAB, weights=torch.ones(6))
    losses = []
    for dtype in (torch.bfloat16, torch.float32):
        student, teacher = (
            ResponseScores((shift + hidden).to(dtype), weight.to(dtype), None, VOCAB) for shift in (0.0, 0.5)
        )
        losses.append(DistillationLoss(plain_config())(student, teacher, batch).loss)
    assert losses[0].dtype == torch.float32
    assert losses[0].item() == pytest.approx(losses[1].item(), rel=0.05)


def test_a_missing_teacher_is_an_error(plain_config, token_batch_of):
    student, _ = logits_pair()
    with pytest.raises(ValueError, match="teacher"):
        scores = ResponseScores(student, None, None, VOCAB)
        DistillationLoss(plain_config())(scores, None, token_batch_of(LENGTHS, VOCAB))


def test_unknown_rollout_correction_is_refused(default_config, full_batch):
    config = default_config()
    config.algorithm.rollout_correction.rollout_is = "sequence"
    student, teacher = logits_pair()
    with pytest.raises(ConfigError, match="rollout_is"):
        run(config, student, teacher, full_batch)
