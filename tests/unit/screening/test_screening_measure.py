"""Screening on numbers written by hand: what counts as the student, the teacher and the gap."""

from __future__ import annotations

import math
from dataclasses import replace

import pytest

from sdpo.cli.screen import report
from sdpo.config.compose import compose
from sdpo.records import Grade, GradeStatus, Group, Prompt, Sample
from sdpo.screening import measure
from sdpo.screening.measure import (
    Row,
    by_problem,
    context_of,
    contexts_of,
    others_rate,
    summarize,
    with_room_for_teacher,
)
from sdpo.screening.verdict import Verdict, judge


def _group(uid: str, rewards: list[float | None], feedback: str = "") -> Group:
    prompt = Prompt(uid, ({"role": "user", "content": f"Problem {uid}"},), "programs")
    samples = []
    for index, reward in enumerate(rewards):
        status = GradeStatus.INFRA_ERROR if reward is None else GradeStatus.OK if reward else GradeStatus.WRONG
        grade = Grade(status, reward, feedback="" if reward else feedback)
        samples.append(Sample(uid, index, [1], [2, 3], f"answer {index} to {uid}", "stop", 0, None, grade))
    return Group(prompt, samples)


def test_the_student_to_compare_with_is_the_rest_of_the_group():
    """A wrong answer's own 0 is a selection: feedback exists for wrong answers only."""
    group = _group("a", [0.0, 1.0, 1.0, None])
    assert others_rate(group, group.samples[0], 1.0) == 1.0
    assert others_rate(group, group.samples[1], 1.0) == 0.5
    alone = _group("b", [0.0])
    assert others_rate(alone, alone.samples[0], 1.0) == 0.0


def test_useless_feedback_gives_no_gap():
    """Half the answers are wrong and have feedback; the teacher, told nothing of use, is right half of the time."""
    rows = [Row(f"p{i}", 0.5, (i % 4 == 0) if i % 2 == 0 else None) for i in range(400)]
    found = context_of("feedback", rows)
    assert found.coverage == 0.5 and found.teacher.value == 0.5 and found.gap.value == 0.0


def test_answers_without_the_context_count_as_no_gain():
    rows = [Row("a", 0.0, True, 30), Row("b", 0.0, None), Row("c", 0.5, False, 50), Row("d", 0.25, None)]
    found = context_of("solution", rows)
    assert (found.coverage, found.teacher.value, found.student.value) == (0.5, 0.5, 0.25)
    assert found.gap.value == pytest.approx((1.0 - 0.5) / 4) and found.prompt_tokens == 40


def test_a_teachers_answer_that_nobody_could_grade_has_its_context_and_says_nothing_of_the_gap():
    rows = [Row("a", 0.0, True, 30), Row("b", 0.0, None, 50, truncated=True, ungraded=True), Row("c", 0.5, None)]
    found = context_of("feedback", rows)
    assert found.coverage == pytest.approx(2 / 3) and found.gap.value == 0.5 and found.prompt_tokens == 40
    assert (found.teacher.value, found.truncated_frac, found.ungraded_frac) == (1.0, 0.5, 0.5)


@pytest.mark.parametrize(("given", "expected"), [(None, 1024 + 64), (500, 1024 + 64), (4096, 4096)])
def test_the_engine_has_room_for_the_teachers_prompt_and_a_whole_response(given, expected):
    lengths = ["data.max_prompt_length=256", "data.max_response_length=64"]
    teacher = "actor_rollout_ref.actor.self_distillation.max_reprompt_len=1024"
    config = compose([*lengths, teacher])
    config.actor_rollout_ref.rollout.max_model_len = given
    assert with_room_for_teacher(config).actor_rollout_ref.rollout.max_model_len == expected
    assert config.actor_rollout_ref.rollout.max_model_len == given  # the run's own stays


def test_the_standard_error_counts_problems_not_answers():
    alike = [(f"p{i}", float(i % 2)) for i in range(10) for _ in range(8)]
    apart = [(f"p{i}", float(i % 2)) for i in range(10)]
    assert by_problem(alike).error == pytest.approx(by_problem(apart).error)
    assert by_problem(apart).error == pytest.approx(math.sqrt(0.25 * 10 / 9) / math.sqrt(10))


def test_where_nothing_was_measured_there_is_no_number():
    lost = summarize([_group("a", [None, None])], [context_of("as configured", [])], 1.0)
    assert (lost.student, lost.reward) == (None, None)
    (context,) = lost.contexts
    assert (context.gap, context.teacher, context.student, context.reward) == (None, None, None, None)
    text = report(lost, judge(lost, compose([]).actor_rollout_ref.actor.self_distillation))
    assert "student       –   (1 problems, 2 answers)" in text and "0.000" not in text


def test_one_problem_has_no_standard_error():
    (alone,) = {by_problem([("a", 1.0), ("a", 0.0)])}
    assert (alone.value, alone.error, str(alone)) == (0.5, None, "0.500")


def test_mean_rewards_stand_beside_the_accuracies():
    found = summarize([_group("a", [0.2, 0.4]), _group("b", [0.3, None])], [], 1.0)
    assert (found.student.value, found.reward.value) == (0.0, pytest.approx(0.3))
    rows = [Row("a", 0.0, False, reward=0.25), Row("b", 0.0, None), Row("c", 0.0, False, reward=0.75)]
    context = context_of("both", rows)
    assert (context.teacher.value, context.reward.value) == (0.0, 0.5)
    text = report(replace(found, contexts=[context]), Verdict(None, None, []))
    assert "mean reward   0.300" in text and "0.500 ± " in text


def test_fractions_of_groups_and_answers():
    groups = [_group("a", [1.0, 0.0]), _group("b", [0.0, 0.0]), _group("c", [1.0, 1.0]), _group("d", [1.0, None])]
    found = summarize(groups, [], 1.0)
    assert (found.student.value, found.solved_group_frac, found.mixed_group_frac) == (pytest.approx(4 / 7), 0.75, 0.25)
    assert (found.ungraded_frac, found.infra_error_frac) == (0.125, 0.125)


def test_each_context_shows_the_teacher_what_its_name_says(monkeypatch):
    """With the run's own reprompt builder and a worker that answers right when it is shown a solution."""
    rollout = "actor_rollout_ref.rollout"
    config = compose([f"{rollout}.n=2", f"{rollout}.ignore_eos=true", "data.train_max_samples=6", "cluster=inline"])
    asked: list[list[str]] = []

    class Worker:
        def __init__(self, config, *unused) -> None:
            rollout, data = config.actor_rollout_ref.rollout, config.data
            longest = config.actor_rollout_ref.actor.self_distillation.max_reprompt_len
            assert rollout.max_model_len == longest + data.max_response_length
            from sdpo.models.load import load_tokenizer

            self.tokenizer = load_tokenizer(config.actor_rollout_ref.model)

        def generate(self, jobs, plan):
            texts = [self.tokenizer.decode(job.prompt_ids) for job in jobs]
            asked.append(texts)
            assert plan.ignore_eos and not plan.log_probs  # as in training, without what only the loss needs
            if plan.n == 2:  # the student: half of the problems are mixed
                return [_group(j.prompt.uid, [float(i % 2), 0.0], "Wrong answer: X") for i, j in enumerate(jobs)]
            assert len({job.prompt.uid for job in jobs}) == len(jobs)  # requests are told apart
            return [_group(j.prompt.uid, [float("answer 0" in t)]) for j, t in zip(jobs, texts, strict=True)]

        def close(self) -> None:
            asked.append([])

    monkeypatch.setattr(measure, "RolloutWorker", Worker)
    found = measure.screen(config, "train", 6, 2)
    by_name = {context.name: context for context in found.contexts}
    assert by_name["feedback"].coverage == 9 / 12 and by_name["feedback"].teacher.value == 0.0
    assert by_name["solution"].coverage == 3 / 12 and by_name["solution"].teacher.value == 1.0
    assert by_name["both"].coverage == by_name["as configured"].coverage == 9 / 12
    assert asked[-1] == []  # the worker was closed
    student, feedback, solution, *_ = asked
    assert len(student) == 6 and len(feedback) == 9 and len(solution) == 3
    assert all("Wrong answer: X" in text and "answer 0" not in text for text in feedback)
    assert all("answer 0" in text and "Wrong answer: X" not in text for text in solution)
    assert sum(map(len, asked)) < 6 + 4 * 9  # what was asked once is not asked again


def test_the_contexts_do_not_change_the_settings_of_the_run():
    settings = compose([]).actor_rollout_ref.actor.self_distillation
    before = dict(vars(settings))
    contexts_of(settings)
    assert vars(settings) == before
