from __future__ import annotations

import random
from dataclasses import replace

import pytest

from sdpo.config.schema import SelfDistillationConfig
from sdpo.errors import ConfigError
from sdpo.records import Sample
from sdpo.reprompt.demonstrations import route

DEFAULT = SelfDistillationConfig()


@pytest.mark.parametrize(
    ("rewards", "sources"),
    [
        ([1, 0, 0, 0], [None, 0, 0, 0]),
        ([1, 1, 0, 0], [1, 0, 0, 0]),
        ([0, 0, 0, 0], [None] * 4),
        ([0, 0, 1, 1], [2, 2, 3, 2]),
        ([1], [None]),
    ],
)
def test_the_first_other_success_demonstrates(make_group, rewards, sources) -> None:
    assert route(make_group(rewards), DEFAULT) == sources


def test_a_success_may_demonstrate_for_itself_only_when_allowed(make_group) -> None:
    config = replace(DEFAULT, dont_reprompt_on_self_success=False)
    assert route(make_group([0, 1, 1]), config) == [1, 1, 1]


def test_ten_of_ten_tests_that_sum_to_just_under_one_are_a_success(make_group) -> None:
    reward = sum([0.1] * 10)
    assert reward < 1.0
    assert route(make_group([reward, 0]), DEFAULT) == [None, 0]
    assert route(make_group([0.999999, 0]), DEFAULT) == [None, None]


def test_a_lower_threshold_lets_partial_successes_serve(make_group) -> None:
    assert route(make_group([0.5, 0.4]), replace(DEFAULT, success_reward_threshold=0.5)) == [None, 0]


def test_truncated_and_ungraded_responses_never_demonstrate(make_group) -> None:
    assert route(make_group([1, 1, 0], truncated=[0]), DEFAULT) == [1, None, 1]
    group = make_group([None, 0])
    assert route(group, replace(DEFAULT, success_reward_threshold=0.0)) == [1, None]
    group.samples[1].grade = None
    assert route(group, replace(DEFAULT, success_reward_threshold=0.0)) == [None, None]


def test_an_aborted_response_never_demonstrates(make_group) -> None:
    group = make_group([1, 0])
    group.samples[0].finish_reason = "abort"
    assert route(group, DEFAULT) == [None, None]


def test_a_success_that_is_all_thinking_has_nothing_to_show(make_group) -> None:
    group = make_group([1, 1, 0], texts=["<think>only</think>\n", "<think>a</think>B", "C"])
    assert route(group, DEFAULT) == [1, None, 1]
    assert route(group, replace(DEFAULT, remove_thinking_from_demonstration=False)) == [1, 0, 0]


def test_shortest_takes_the_fewest_tokens_and_the_earliest_of_equals(make_group) -> None:
    group = make_group([1, 1, 1, 0], texts=["long answer", "ab", "cd", "x"])
    assert route(group, replace(DEFAULT, demonstration_choice="shortest")) == [1, 2, 1, 1]


def test_random_is_repeatable_and_uses_every_other_success(make_group) -> None:
    config = replace(DEFAULT, demonstration_choice="random")
    group = make_group([1, 1, 1, 0])
    draws = [route(group, config, random.Random(seed)) for seed in range(50)]
    assert draws == [route(group, config, random.Random(seed)) for seed in range(50)]
    assert {d[3] for d in draws} == {0, 1, 2} and {d[0] for d in draws} == {1, 2}


def test_an_unknown_choice_is_refused(make_group) -> None:
    with pytest.raises(ConfigError, match="demonstration_choice: got 'best'"):
        route(make_group([1, 0]), replace(DEFAULT, demonstration_choice="best"))


def test_two_rows_with_the_same_text_and_different_ids_share_no_solutions(make_group) -> None:
    """Demonstrations come from the group that is passed, and only from it."""
    solved, unsolved = make_group([1, 0]), make_group([0, 0])
    assert solved.prompt.messages == unsolved.prompt.messages
    assert isinstance(solved.samples[0], Sample)
    assert route(unsolved, DEFAULT) == [None, None]


@pytest.mark.parametrize("opening", ["<think>\n", "<reasoning>", "[THINK]", "<|channel|>analysis<|message|>"])
def test_a_success_that_is_all_reasoning_has_nothing_to_show(make_group, opening) -> None:
    group = make_group([1, 0])
    group.samples[0].response_text = f"{opening}The answer may be 4"
    assert route(group, DEFAULT) == [None, None]
    assert route(group, replace(DEFAULT, remove_thinking_from_demonstration=False)) == [None, 0]
