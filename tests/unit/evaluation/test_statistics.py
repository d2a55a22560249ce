"""Intervals and differences: numbers derived by hand, coverage, and what they do not depend on."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from sdpo.evaluation import statistics
from sdpo.evaluation.statistics import Problem, accuracy, difference, mean, solved_within


def problems(*counts: tuple[int, int]) -> list[Problem]:
    """(graded, correct) of each."""
    return [
        Problem(str(i), "math", graded, correct, float(correct), answers=4, truncated=0, failed=4 - graded, tokens=9)
        for i, (graded, correct) in enumerate(counts)
    ]


def test_accuracy_is_pooled_over_graded_answers_and_pass_at_k_over_problems_with_enough_of_them() -> None:
    found = problems((4, 4), (4, 0), (2, 1), (0, 0))
    assert accuracy(found).value == 5 / 10
    assert solved_within(found, 1).value == pytest.approx((1 + 0 + 0.5) / 3)
    assert solved_within(found, 2).value == pytest.approx((1 + 0 + 1) / 3)
    assert solved_within(found, 4).value == pytest.approx(1 / 2)


def test_where_all_problems_agree_the_bound_is_the_exact_one() -> None:
    """Clopper-Pearson for 0 and for 100 of 100: 1 - 0.025 ** (1 / 100) = 0.0362."""
    nothing, everything = mean([0] * 100, [1] * 100), mean([1] * 100, [1] * 100)
    assert (nothing.value, nothing.low, nothing.high) == (0, 0, pytest.approx(0.036217, abs=1e-6))
    assert (everything.value, everything.low, everything.high) == (1, pytest.approx(0.963783, abs=1e-6), 1)
    half = mean([2] * 10, [4] * 10)
    assert (half.low, half.high) == (0.5, 0.5)


def test_nothing_graded_is_no_number() -> None:
    assert accuracy(problems((0, 0))) is None and mean([], []) is None
    assert difference(problems((0, 0)), problems((4, 4))) is None


def test_the_interval_is_that_of_problems_not_of_answers() -> None:
    """Answers to one problem that are all alike tell no more than one answer does."""
    few = problems(*[(1, i % 2) for i in range(60)])
    many = problems(*[(4, 4 * (i % 2)) for i in range(60)])
    assert accuracy(few) == accuracy(many)
    width = accuracy(few).high - accuracy(few).low
    assert width == pytest.approx(2 * 1.96 * (0.25 / 60) ** 0.5, rel=0.1)


def test_the_interval_holds_the_truth_as_often_as_it_says() -> None:
    draw, hits = np.random.default_rng(1), 0
    for _ in range(200):
        found = mean(draw.binomial(1, 0.3, 80), [1] * 80)
        hits += found.low <= 0.3 <= found.high
    assert 180 <= hits <= 200  # 190 expected, within three standard deviations


COUNTS = st.tuples(st.integers(1, 4), st.integers(0, 4)).map(lambda pair: (pair[0], min(pair)))


@given(st.lists(COUNTS, min_size=2, max_size=20))
def test_a_difference_is_paired_and_turns_its_sign(counts: list[tuple[int, int]]) -> None:
    one = problems(*counts)
    other = [replace(p, correct=p.graded - p.correct) for p in one]
    there, back = difference(one, other), difference(list(reversed(other)), one)
    assert there.value.value == pytest.approx(-back.value.value) and there.p == pytest.approx(back.p, abs=0.05)
    assert (there.better, there.worse, there.problems) == (back.worse, back.better, len(one))
    same = difference(one, one)
    assert same.value.value == 0 and same.p == 1


def test_chance_is_told_from_difference() -> None:
    """Eight of eight problems better: two of the 2 ** 8 ways to give signs are as far out."""
    found = difference(problems(*[(4, 4)] * 8), problems(*[(4, 0)] * 8))
    assert found.value.value == 1 and found.p == pytest.approx(2 / 2**8, abs=0.003)
    assert difference(problems(*[(1, 1), (1, 0)] * 30), problems(*[(1, 0), (1, 1)] * 30)).p > 0.9


def test_only_problems_that_both_were_graded_on_are_compared() -> None:
    found = difference(problems((4, 4), (0, 0), (4, 2)), problems((4, 2), (4, 4), (0, 0)))
    assert (found.problems, found.value.value) == (1, 0.5)


def test_memory_is_bounded_whatever_the_number_of_problems(monkeypatch) -> None:
    whole = mean(range(50), [50] * 50)
    monkeypatch.setattr(statistics, "_AT_ONCE", 50 * 7)
    assert mean(range(50), [50] * 50).value == whole.value
    assert mean(range(50), [50] * 50).low == pytest.approx(whole.low, abs=0.02)
