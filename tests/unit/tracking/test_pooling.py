from __future__ import annotations

import pytest

from sdpo.tracking.pooling import merge, pool


def test_a_mean_is_pooled_over_all_counts_and_is_no_mean_of_means():
    two_correct_of_two, none_of_six = {"accuracy": (2.0, 2.0)}, {"accuracy": (0.0, 6.0)}
    assert pool([two_correct_of_two, none_of_six])["accuracy"] == 0.25


def test_a_name_that_one_rank_lacks_is_averaged_over_the_ranks_that_have_it():
    assert pool([{"loss": (2.0, 2.0), "feedback_frac": (3.0, 4.0)}, {"loss": (4.0, 2.0)}]) == {
        "loss": 1.5,
        "feedback_frac": 0.75,
    }


def test_names_ending_in_max_and_min_keep_the_extreme():
    parts = [{"diff_max": (0.5, 1.0), "gap_min": (-1.0, 1.0)}, {"diff_max": (0.25, 1.0), "gap_min": (2.0, 1.0)}]
    assert pool(parts) == {"diff_max": 0.5, "gap_min": -1.0}


def test_what_nobody_counted_is_left_out_instead_of_divided_by_zero():
    assert pool([{"entropy": (0.0, 0.0), "diff_max": (0.0, 0.0)}]) == {}


def test_an_uncounted_part_does_not_win_a_maximum():
    assert pool([{"diff_max": (0.0, 0.0)}, {"diff_max": (-2.0, 1.0)}]) == {"diff_max": -2.0}


def test_merging_in_two_stages_gives_the_same_as_in_one():
    parts = [{"a": (float(i), i + 1.0), "b_max": (float(-i), 1.0)} for i in range(5)]
    assert pool([merge(parts[:2]), merge(parts[2:])]) == pytest.approx(pool(parts))


@pytest.mark.parametrize("values", [(1.0, float("nan")), (float("nan"), 1.0)])
def test_a_nan_is_not_hidden_by_a_maximum_whatever_the_order(values):
    pooled = pool([{"diff_max": (value, 1.0)} for value in values])
    assert pooled["diff_max"] != pooled["diff_max"]
