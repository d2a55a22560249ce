"""Components in one micro-batch, with numbers by hand: a vocabulary of two and logits of zero, so log p = -ln 2."""

from __future__ import annotations

import math

import pytest
import torch

from sdpo.algorithms.registry import Descriptor
from sdpo.config.schema import Config
from sdpo.kernels.lazy_logits import ResponseScores
from sdpo.losses.total import TotalLoss
from sdpo.records import CrossEntropy, Distillation, MiniBatch, PolicyGradient, TrainRow
from sdpo.tokens.loss_batch import loss_batch

EVERY = Descriptor("all", "", ("policy_gradient", "distillation", "cross_entropy"), "", compares_group=False)
PUSHED = TrainRow.single_turn("p", 0, [1], [0, 1], policy_gradient=PolicyGradient(2.0))
PULLED = TrainRow.single_turn("p", 1, [1], [0, 0, 1], [1, 1])
LEARNED = TrainRow.single_turn("p", 2, [1], [1], cross_entropy=CrossEntropy(0.5))


def config_of(**fields) -> Config:
    config = Config()
    config.algorithm.rollout_correction.rollout_is = None
    distillation = config.actor_rollout_ref.actor.self_distillation
    distillation.alpha, distillation.is_clip = 1.0, None
    for name, value in fields.items():
        setattr(config.actor_rollout_ref.actor, name, value)
    return config


def losses(rows: list[TrainRow], config: Config | None = None, together=False, step=None) -> list[float]:
    batch = loss_batch(rows, MiniBatch(step or rows).denominators(together), 4)
    student = ResponseScores(torch.zeros(len(batch.all.response_ids), 2, requires_grad=True), None, None, 2)
    distilled = 0 if batch.distillation is None else len(batch.distillation.response_ids)
    teacher = ResponseScores(torch.tensor([[math.log(3.0), 0.0]]).expand(distilled, 2), None, None, 2)
    outputs = TotalLoss(config or config_of(), EVERY)(student, teacher, batch)
    return [output.loss.item() for output in outputs]


GRADIENT = -2.0  # minus the advantage, at a ratio of 1
PULL = 0.5 * math.log(0.5 / 0.75) + 0.5 * math.log(0.5 / 0.25)  # KL((1/2, 1/2) || (3/4, 1/4))
SURPRISE = math.log(2.0)


def test_each_component_is_the_mean_over_its_own_tokens() -> None:
    assert losses([PUSHED, PULLED, LEARNED]) == pytest.approx([GRADIENT, PULL, 0.5 * SURPRISE])


def test_all_together_divide_by_the_tokens_of_all() -> None:
    expected = [GRADIENT * 2 / 6, PULL * 3 / 6, 0.5 * SURPRISE / 6]
    assert losses([PUSHED, PULLED, LEARNED], together=True) == pytest.approx(expected)


def test_a_micro_batch_divides_by_the_denominators_of_the_step() -> None:
    step = [PUSHED, PULLED, LEARNED, PULLED]
    assert losses([PULLED], step=step) == pytest.approx([PULL / 2])


@pytest.mark.parametrize("mode", ["token-mean", "seq-mean-token-mean", "seq-mean-token-sum", "seq-mean-token-sum-norm"])
def test_a_sample_in_two_rows_weighs_what_it_weighs_in_one(mode: str) -> None:
    """The teacher's and the student's contexts do not matter here, so splitting a row changes nothing but its form."""
    whole = TrainRow("p", 0, [1, 0, 1, 0], ((1, 4),), distillation=(Distillation((1, 4), [1]),))
    parts = [
        TrainRow("p", 0, [1, 0], ((1, 2),), distillation=(Distillation((1, 2), [1]),), sequence=7),
        TrainRow("p", 0, [1, 1, 0], ((1, 3),), distillation=(Distillation((1, 3), [1]),), sequence=7),
    ]
    config = config_of(loss_agg_mode=mode)
    assert losses([*parts, PULLED], config) == pytest.approx(losses([whole, PULLED], config))


def test_one_row_may_carry_several_components_with_weights_per_token() -> None:
    both = TrainRow.single_turn("p", 0, [1], [0, 1], policy_gradient=PolicyGradient([2.0, 4.0], weight=[1.0, 0.5]))
    both.distillation = (Distillation((2, 3), [1], weight=3.0),)
    assert losses([both]) == pytest.approx([-(2.0 + 4.0 * 0.5) / 2, 3.0 * PULL])


def test_the_entropy_bonus_is_weighted_like_the_component() -> None:
    plain, bonus = losses([PUSHED]), losses([PUSHED], config_of(entropy_coeff=0.1))
    assert bonus[0] - plain[0] == pytest.approx(-0.1 * math.log(2))
