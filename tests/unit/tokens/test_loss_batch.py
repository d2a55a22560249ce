from __future__ import annotations

import pytest
import torch

from sdpo.errors import DataError
from sdpo.records import CrossEntropy, Denominators, Distillation, MiniBatch, PolicyGradient, TrainRow
from sdpo.tokens.loss_batch import loss_batch

# Two turns with a tool result (6) between them, of which the second is distilled; then a plain answer.
TURNS = TrainRow(
    "p",
    0,
    [1, 2, 7, 8, 6, 9],
    ((2, 4), (5, 6)),
    [-0.1, -0.2, -0.3],
    PolicyGradient(0.5, weight=[1.0, 0.0, 2.0]),
    (Distillation((5, 6), [1, 3], weight=0.25),),
)
PLAIN = TrainRow.single_turn("p", 1, [1, 2], [4], sampler_logprobs=[-0.4], policy_gradient=PolicyGradient([-1.5]))
BATCH = MiniBatch([TURNS, PLAIN])


def test_every_component_divides_by_its_own_tokens_and_sequences() -> None:
    own = BATCH.denominators()
    assert own["all"] == Denominators("all", 4, 2)
    assert own["policy_gradient"] == Denominators("policy_gradient", 4, 2)
    assert own["distillation"] == Denominators("distillation", 1, 1)
    assert own["cross_entropy"] == Denominators("cross_entropy", 0, 0)
    assert all(value == own["all"] for value in BATCH.denominators(together=True).values())


def test_components_are_flat_in_row_order_and_know_their_places() -> None:
    batch = loss_batch(BATCH.rows, BATCH.denominators(), 16, old_log_probs=torch.tensor([-1.0, -2.0, -3.0, -4.0]))
    assert batch.all.response_ids.tolist() == [7, 8, 9, 4] and batch.all.places is None
    policy = batch.policy_gradient
    assert policy is not None and policy.places is None and policy.row.tolist() == [0, 0, 0, 1]
    assert policy.advantages.tolist() == [0.5, 0.5, 0.5, -1.5] and policy.weights.tolist() == [1.0, 0.0, 2.0, 1.0]
    assert policy.sampler_log_probs.tolist() == pytest.approx([-0.1, -0.2, -0.3, -0.4])
    distilled = batch.distillation
    assert distilled is not None and distilled.places.tolist() == [2] and distilled.response_ids.tolist() == [9]
    assert distilled.weights.tolist() == [0.25] and distilled.old_log_probs.tolist() == [-3.0]
    assert (distilled.tokens, distilled.sequences, distilled.row_lengths.tolist()) == (1, 1, [1, 0])
    assert batch.cross_entropy is None


def test_rows_of_one_sample_are_one_sequence_of_all_their_tokens() -> None:
    split = [
        TrainRow("p", 0, [1, 7, 8], ((1, 3),), cross_entropy=CrossEntropy(), sequence=0),
        TrainRow("p", 0, [2, 9], ((1, 2),), cross_entropy=CrossEntropy(), sequence=0),
        TrainRow("p", 1, [2, 9], ((1, 2),), cross_entropy=CrossEntropy()),
    ]
    step = MiniBatch(split).denominators()
    assert step["cross_entropy"] == Denominators("cross_entropy", 4, 2, {0: 3})
    tokens = loss_batch(split[:1], step, 16).cross_entropy
    assert tokens is not None and tokens.row_lengths.tolist() == [3]  # one of them is in another micro-batch


def test_sampler_log_probs_are_used_when_every_row_has_them() -> None:
    rows = [TURNS, TrainRow.single_turn("p", 1, [5], [3], policy_gradient=PolicyGradient(0.0))]
    assert loss_batch(rows, MiniBatch(rows).denominators(), 16).all.sampler_log_probs is None


@pytest.mark.parametrize(
    ("fields", "message"),
    [
        ({"sampler_logprobs": [-1.0, -1.0]}, "p/0: 2 sampler log-probs for 3 policy tokens"),
        ({"policy_gradient": PolicyGradient([1.0])}, "p/0: 1 advantages for 3 policy tokens"),
        ({"cross_entropy": CrossEntropy([1.0, 1.0])}, "p/0: 2 cross_entropy weights for 3 policy tokens"),
    ],
)
def test_what_is_not_one_per_token_is_an_error(fields: dict, message: str) -> None:
    rows = [TrainRow.single_turn("p", 0, [5], [3, 4, 5], **fields)]
    with pytest.raises(DataError, match=message):
        loss_batch(rows, MiniBatch(rows).denominators(), 16)


def test_a_distilled_span_that_the_policy_did_not_write_is_an_error() -> None:
    with pytest.raises(ValueError, match=r"span \(4, 6\) is in none of"):
        TURNS.places_of((4, 6))
