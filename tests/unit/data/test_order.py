from __future__ import annotations

import pytest

from sdpo.data.order import PromptOrder
from sdpo.errors import DataError


def test_a_resume_at_an_epoch_boundary_continues_as_the_unbroken_run() -> None:
    order = PromptOrder(4, 2, seed=3)
    assert order.total_steps(2) == 4
    unbroken = [order.batch(step) for step in (1, 2, 3, 4)]
    resumed = PromptOrder(4, 2, seed=3)
    assert [resumed.batch(step) for step in (3, 4)] == unbroken[2:]
    for epoch in (unbroken[:2], unbroken[2:]):
        assert sorted(sum(epoch, [])) == [0, 1, 2, 3]


def test_steps_can_be_asked_for_in_any_order() -> None:
    order = PromptOrder(20, 3, seed=1)
    forward = {step: order.batch(step) for step in range(1, 19)}
    assert {step: order.batch(step) for step in range(18, 0, -1)} == forward


def test_every_epoch_has_another_order_and_every_seed_too() -> None:
    order, other = PromptOrder(32, 32, seed=0), PromptOrder(32, 32, seed=1)
    assert order.batch(1) != order.batch(2) and order.batch(1) != other.batch(1)


def test_without_shuffle_the_order_is_the_files() -> None:
    order = PromptOrder(5, 2, shuffle=False)
    assert [order.batch(step) for step in (1, 2, 3)] == [[0, 1], [2, 3], [0, 1]]


def test_batches_are_full_and_hold_no_prompt_twice() -> None:
    order = PromptOrder(7, 3, seed=5)
    assert order.steps_per_epoch == 2
    assert all(len(set(order.batch(step))) == 3 for step in range(1, 9))


def test_an_explicit_number_of_steps_wins_over_the_epochs() -> None:
    assert PromptOrder(4, 2).total_steps(2, total_training_steps=3) == 3


def test_a_data_set_smaller_than_a_batch_is_an_error_not_an_empty_run() -> None:
    with pytest.raises(
        DataError, match=r"train_batch_size: got 4; allowed: at most the 3 prompts; .*smaller than one batch"
    ):
        PromptOrder(3, 4)


def test_steps_count_from_one() -> None:
    with pytest.raises(ValueError, match="from 1"):
        PromptOrder(4, 2).batch(0)
    with pytest.raises(DataError, match="train_batch_size: got 0"):
        PromptOrder(4, 0)
