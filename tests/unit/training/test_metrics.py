from __future__ import annotations

import itertools
from types import SimpleNamespace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from sdpo.config.compose import compose
from sdpo.records import Grade, GradeStatus, Group, Prompt, Sample
from sdpo.training.evaluate import validate
from sdpo.training.metrics import is_success, pass_at_k, success_counts, train_metrics, validation_metrics


def sample(uid: str, index: int, reward: float | None, status=None, tokens: int = 2, finish: str = "stop") -> Sample:
    status = status or (
        GradeStatus.OK if reward == 1 else GradeStatus.INFRA_ERROR if reward is None else GradeStatus.WRONG
    )
    grade = Grade(status, reward, passed_fraction=reward or 0.0)
    return Sample(uid, index, [1] * 5, [2] * tokens, "text", finish, 0, None, grade)


def group(uid: str, *rewards: float | None, source: str = "programs") -> Group:
    prompt = Prompt(uid, ({"role": "user", "content": "?"},), source)
    return Group(prompt, [sample(uid, i, reward) for i, reward in enumerate(rewards)])


def test_pass_at_k_of_one_correct_in_four_is_a_half_at_two_and_one_at_four():
    assert pass_at_k(4, 1, 2) == 0.5
    assert pass_at_k(4, 1, 4) == 1.0


@pytest.mark.parametrize("n", [1, 3, 5])
def test_pass_at_k_is_the_share_of_all_subsets_with_a_correct_one(n):
    for correct in range(n + 1):
        answers = [True] * correct + [False] * (n - correct)
        for k in range(1, n + 1):
            subsets = list(itertools.combinations(answers, k))
            assert pass_at_k(n, correct, k) == pytest.approx(sum(any(s) for s in subsets) / len(subsets))


def test_pass_at_k_is_exact_for_numbers_far_beyond_a_float():
    assert 0.0 < pass_at_k(10_000, 1, 5_000) == 0.5


@pytest.mark.parametrize(("n", "correct", "k"), [(4, 5, 1), (4, 1, 5), (4, 1, 0), (4, -1, 1)])
def test_pass_at_k_refuses_what_has_no_meaning(n, correct, k):
    with pytest.raises(ValueError, match="pass@"):
        pass_at_k(n, correct, k)


def test_accuracy_of_unequal_groups_is_pooled_over_samples():
    metrics = train_metrics([group("a", 1, 1), group("b", 0, 0, 0, 0, 0, 0)], threshold=1.0)
    assert metrics["train/accuracy"] == 0.25
    assert metrics["train/reward"] == 0.25


def test_what_the_grader_could_not_judge_is_out_of_accuracy_and_groups_and_counted_apart():
    metrics = train_metrics([group("a", 1, None), group("b", None, None)], threshold=1.0)
    assert metrics["train/accuracy"] == 1.0
    assert metrics["train/infra_error_frac"] == 0.75
    assert metrics["train/ungraded_frac"] == 0.75
    assert metrics["train/mixed_group_frac"] == 0.0
    assert metrics["train/solved_group_frac"] == 1.0
    assert metrics["train/step_samples"] == 4


def test_a_row_with_a_useless_gold_answer_is_ungraded_but_no_fault_of_the_sandbox():
    bad_row = Group(Prompt("a", (), "s"), [sample("a", 0, None, GradeStatus.INVALID_GOLD)])
    metrics = train_metrics([bad_row], threshold=1.0)
    assert (metrics["train/infra_error_frac"], metrics["train/ungraded_frac"]) == (0.0, 1.0)


def test_with_nothing_graded_there_is_no_accuracy_rather_than_a_zero_or_nan():
    metrics = train_metrics([group("a", None, None)], threshold=1.0)
    assert "train/accuracy" not in metrics
    assert "train/mixed_group_frac" not in metrics
    assert all(value == value for value in metrics.values())


def test_a_group_is_mixed_when_it_has_a_success_and_a_failure():
    metrics = train_metrics([group("a", 1, 0), group("b", 1, 1), group("c", 0, 0), group("d", 1, None)], threshold=1.0)
    assert metrics["train/mixed_group_frac"] == 0.25
    assert metrics["train/solved_group_frac"] == 0.75


def test_ten_of_ten_tests_that_sum_to_just_under_one_are_a_success():
    assert is_success(sample("a", 0, sum([0.1] * 10)), 1.0)
    assert not is_success(sample("a", 0, 0.999), 1.0)
    assert success_counts(group("a", 0.9999999999, 0.5, None)) == (2, 1)


def test_lengths_truncation_and_counts_cover_every_sample():
    groups = [Group(Prompt("a", (), "s"), [sample("a", 0, 1, tokens=2), sample("a", 1, 0, tokens=6, finish="length")])]
    metrics = train_metrics(groups, threshold=1.0, samples_before=100)
    assert metrics["train/response_length"] == 4
    assert metrics["train/response_length_max"] == 6
    assert metrics["train/truncated_frac"] == 0.5
    assert metrics["train/prompt_length"] == 5
    assert (metrics["train/samples"], metrics["train/step_tokens"], metrics["train/step_groups"]) == (102, 8, 1)


def test_the_statuses_of_the_grader_add_up_to_all_graded_samples():
    metrics = train_metrics([group("a", 1, 0, 0, None)], threshold=1.0)
    fractions = {name: value for name, value in metrics.items() if name.startswith("grade/")}
    assert sum(fractions.values()) == pytest.approx(1.0)
    assert fractions["grade/wrong_frac"] == 0.5
    assert fractions["grade/timeout_frac"] == 0.0


def test_validation_reports_avg_at_n_and_unbiased_pass_at_k():
    metrics = validation_metrics([group("a", 1, 0, 0, 0), group("b", 0, 0, 0, 0)], n=4, threshold=1.0)
    assert metrics["val/avg@4"] == 0.125
    assert metrics["val/pass@2"] == 0.25
    assert metrics["val/pass@4"] == 0.5
    assert "val/accuracy" not in metrics


def test_pass_at_k_is_asked_only_of_prompts_with_enough_graded_responses():
    metrics = validation_metrics([group("a", 1, 0, 0, 0), group("b", 0, None, None, None)], n=4, threshold=1.0)
    assert metrics["val/pass@4"] == 1.0
    assert metrics["val/avg@4"] == 0.2


def test_one_response_per_prompt_has_no_pass_at_k():
    metrics = validation_metrics([group("a", 1), group("b", 0)], n=1, threshold=1.0)
    assert metrics["val/avg@1"] == 0.5
    assert not [name for name in metrics if "pass@" in name]


def test_several_sources_are_also_reported_one_by_one():
    groups = [group("a", 1, 1, source="gsm8k"), group("b", 0, 0, source="programs")]
    metrics = validation_metrics(groups, n=2, threshold=1.0)
    assert (metrics["val/gsm8k/avg@2"], metrics["val/programs/avg@2"], metrics["val/avg@2"]) == (1.0, 0.0, 0.5)


def test_no_samples_at_all_give_counts_and_no_division_by_zero():
    assert train_metrics([], threshold=1.0) == {
        "train/samples": 0,
        "train/step_samples": 0,
        "train/step_groups": 0,
        "train/step_tokens": 0,
    }
    assert validation_metrics([], n=4, threshold=1.0) == {"val/samples": 0, "val/graded_samples": 0}


def test_two_right_and_two_lost_held_out_responses_are_not_simply_all_right():
    metrics = validation_metrics([group("a", 1, 1, None, None)], n=4, threshold=1.0)
    assert metrics["val/avg@4"] == 1.0
    assert (metrics["val/samples"], metrics["val/graded_samples"]) == (4, 2)
    assert (metrics["val/infra_error_frac"], metrics["val/ungraded_frac"]) == (0.5, 0.5)


@given(st.lists(st.lists(st.sampled_from([0, 0.3, 1, None, "bad row"]), min_size=1, max_size=4), min_size=1))
def test_what_is_right_and_what_is_lost_add_up_to_what_was_sampled(rows):
    groups = []
    for uid, rewards in enumerate(rows):
        bad = GradeStatus.INVALID_GOLD
        samples = [sample(str(uid), i, *((None, bad) if r == "bad row" else (r,))) for i, r in enumerate(rewards)]
        groups.append(Group(Prompt(str(uid), (), "s"), samples))
    flat = [reward for rewards in rows for reward in rewards]
    metrics = validation_metrics(groups, n=4, threshold=1.0)
    assert metrics["val/samples"] == len(flat)
    assert metrics["val/samples"] * (1 - metrics["val/ungraded_frac"]) == pytest.approx(metrics["val/graded_samples"])
    assert metrics["val/infra_error_frac"] == flat.count(None) / len(flat)
    right = metrics.get("val/avg@4", 0.0) * metrics["val/graded_samples"]
    assert right == pytest.approx(flat.count(1))


def test_mean_rewards_stand_beside_the_accuracy_of_every_source():
    groups = [group("a", 0.2, 0.4, source="essays"), group("b", 0, 1, source="programs")]
    metrics = validation_metrics(groups, n=2, threshold=1.0)
    assert (metrics["val/essays/avg@2"], metrics["val/essays/reward"]) == (0.0, pytest.approx(0.3))
    assert metrics["val/reward"] == pytest.approx(0.4)


@pytest.mark.parametrize("training", [0.1, 0.5, 1.0, 5.0])
def test_held_out_accuracy_does_not_depend_on_what_the_training_calls_a_success(training):
    settings = ["trainer.val_success_threshold=0.5"]
    config = compose([*settings, f"actor_rollout_ref.actor.self_distillation.success_reward_threshold={training}"])
    workers = SimpleNamespace(submit=lambda *_: [group("a", 0.6, 0.4, 1, 0)], collect=list)
    groups, metrics = validate(config, workers, ["job"])
    assert metrics["val/avg@4"] == 0.5 and len(groups) == 1
