"""From a row to a grade: sources, thinking, faults of the grader, shared work."""

from __future__ import annotations

import threading
import time

import pytest

from sdpo.config.schema import Config
from sdpo.embedded.programs import body, problems, steps_of
from sdpo.errors import ConfigError, DataError, GradingError
from sdpo.grading.once import Once
from sdpo.grading.registry import build_grader, build_runner, kind_of
from sdpo.grading.source_grader import Lazy
from sdpo.records import UNGRADED, GradeStatus, Prompt
from sdpo.sandbox.outcome import SandboxFault

ADD = {"type": "function", "name": "add", "cases": [{"args": [1, 2], "expected": 3}]}
RIGHT = "```python\ndef add(a, b): return a + b\n```"


def prompt(source, truth, question="?"):
    return Prompt("p1", ({"role": "user", "content": question},), source, truth)


@pytest.fixture(scope="module")
def grader():
    grader = build_grader(Config())
    yield grader
    grader.close()


class Broken:
    """A runner that fails `failures` times."""

    def __init__(self, failures: int = 10**9) -> None:
        self.failures = failures
        self.calls = 0

    def get(self):
        return self

    value = None

    def close(self) -> None: ...

    def run_function(self, *args, **kwargs):
        self.calls += 1
        raise SandboxFault("the service answers 503")

    run_program = run_assert = run_function


def broken_grader(monkeypatch, runner):
    monkeypatch.setattr("sdpo.grading.registry.build_runner", lambda grading: runner)
    return build_grader(Config())


@pytest.mark.parametrize(
    ("source", "kind"),
    [
        ("gsm8k", "math"),
        ("math_500", "math"),
        ("MATH", "math"),
        ("sciknoweval", "multiple_choice"),
        ("gpqa_diamond", "multiple_choice"),
        ("mmlu-pro", "multiple_choice"),
        ("humaneval", "code"),
        ("mbpp", "code"),
        ("livecodebench_v6", "code"),
        ("kodcode", "code"),
        ("code", "code"),
        ("tooluse", "tool_calls"),
        ("programs", "programs"),
        ("exact", "text"),
        ("judge", "judge"),
        # verl's
        ("openai/gsm8k", "math"),
        ("lighteval/MATH", "math"),
        ("DigitalLearningGmbH/MATH-lighteval", "math"),
        ("HuggingFaceH4/MATH-500", "math"),
        ("math_dapo", "math"),
        ("math_dapo_reasoning", "math"),
        ("aime_2024", "math"),
        ("numina_aops_forum", "math"),
        ("numina_olympiads", "math"),
        ("codecontests", "code"),
        ("apps", "code"),
        ("codeforces", "code"),
        ("taco", "code"),
        ("searchR1_nq", "text"),
    ],
)
def test_the_data_source_picks_the_grader(source, kind):
    assert kind_of(source) == kind


def test_an_unknown_source_names_the_known_ones_and_the_way_out():
    with pytest.raises(DataError, match=r"data_source: got 'poetry'.*gsm8k.*custom_reward_function.path"):
        kind_of("poetry")


@pytest.mark.parametrize(
    ("source", "truth", "right", "wrong"),
    [
        ("gsm8k", "4", r"\boxed{4}", r"\boxed{5}"),
        ("sciknoweval", {"answer": "B", "choices": 4}, "<answer>B</answer>", "<answer>C</answer>"),
        ("code", ADD, RIGHT, RIGHT.replace("+", "-")),
        ("mbpp", {"type": "assert", "code": "assert add(1, 2) == 3"}, RIGHT, RIGHT.replace("+", "-")),
        ("tooluse", [{"name": "f", "arguments": {}}], "Action: f\nAction Input: {}", "Action: g\nAction Input: {}"),
        ("exact", "yes", "yes", "no"),
    ],
)
def test_every_kind_of_row_is_graded(grader, source, truth, right, wrong):
    assert grader.grade(prompt(source, truth), right, False).reward == 1.0
    assert grader.grade(prompt(source, truth), wrong, False).reward == 0.0


def test_the_built_in_task_is_graded(grader):
    for row in problems()[:3]:
        assert grader.grade(row, body(steps_of(row)), False).reward == 1.0
        assert grader.grade(row, "return x", False).reward == 0.0


def test_only_the_response_is_graded_and_thinking_is_no_answer(grader):
    question = "Give it as \\boxed{42} or <answer>B</answer>."
    for response in ("I do not know.", "<think>maybe \\boxed{42} <answer>B</answer></think> I give up."):
        for row in (prompt("gsm8k", "42", question), prompt("sciknoweval", "B", question)):
            grade = grader.grade(row, response, False)
            assert (grade.status, grade.reward) == (GradeStatus.FORMAT_ERROR, 0.0)
    assert grader.grade(prompt("gsm8k", "4"), "<think>plan that never ends \\boxed{4}", False).reward == 0.0
    assert grader.grade(prompt("gsm8k", "4"), "plan \\boxed{3}\n</think>\n\n\\boxed{4}", False).reward == 1.0


def test_a_truncated_response_carries_a_flag(grader):
    assert grader.grade(prompt("gsm8k", "4"), r"\boxed{4} and so on", True).flags == ("truncated",)
    assert grader.grade(prompt("gsm8k", "4"), r"so \boxed{", True).status is GradeStatus.TRUNCATED


@pytest.mark.parametrize(
    "tests", [[], None, "not valid json or base64", {"type": "function", "name": "f", "cases": []}, {}, 5]
)
def test_an_empty_or_unreadable_test_list_is_never_a_pass(grader, tests):
    grade = grader.grade(prompt("code", tests), "```python\nprint('anything')\n```", False)
    assert grade.status in (GradeStatus.NO_TESTS, GradeStatus.INVALID_GOLD)
    assert grade.status in UNGRADED
    assert grade.reward is None


def test_a_failure_of_the_sandbox_is_a_named_error_and_never_a_wrong_answer(monkeypatch):
    grader = broken_grader(monkeypatch, Broken())
    with pytest.raises(GradingError, match="503"):
        grader.grade(prompt("code", ADD), RIGHT, False)
    status = grader.grade_or_status(prompt("code", ADD), RIGHT, False)
    assert (status.status, status.reward, status.feedback) == (GradeStatus.INFRA_ERROR, None, "")
    assert not status.graded


def test_a_failure_is_not_remembered(monkeypatch):
    runner = Broken()
    grader = broken_grader(monkeypatch, runner)
    for _ in range(2):
        grader.grade_or_status(prompt("code", ADD), RIGHT, False)
    assert runner.calls == 2


def test_a_custom_function_grades_every_source(tmp_path):
    path = tmp_path / "reward.py"
    path.write_text("def score(data_source, solution_str, ground_truth, extra_info):\n    return len(solution_str)\n")
    config = Config()
    config.custom_reward_function.path, config.custom_reward_function.name = str(path), "score"
    grader = build_grader(config)
    assert grader.grade(prompt("poetry", None), "abc", False).reward == 3.0
    grader.close()


def test_a_custom_function_that_raises_stops_with_a_named_error(tmp_path):
    path = tmp_path / "reward.py"
    path.write_text("def compute_score(**_):\n    return 1 / 0\n")
    config = Config()
    config.custom_reward_function.path = str(path)
    with pytest.raises(GradingError, match="ZeroDivisionError"):
        build_grader(config).grade(prompt("x", None), "y", False)


def test_rows_that_cannot_be_graded_are_found_by_checking_them():
    rows = [prompt("gsm8k", "4"), prompt("gsm8k", "see the figure"), prompt("code", {"type": "stdin", "cases": []})]
    grader = build_grader(Config())
    assert [grader.check(row) for row in rows] == [
        None,
        "gold answer 'see the figure' cannot be read as mathematics: write it as LaTeX, words within \\text{}",
        "no tests",
    ]
    with pytest.raises(DataError, match="data_source"):
        grader.check(prompt("poetry", 1))
    grader.close()


def test_checking_rows_starts_no_sandbox(monkeypatch):
    monkeypatch.setattr("sdpo.grading.registry.build_runner", lambda grading: pytest.fail("a sandbox was started"))
    assert build_grader(Config()).check(prompt("code", ADD)) is None


def test_an_http_back_end_needs_an_address():
    config = Config()
    config.grading.backend = "http"
    with pytest.raises(ConfigError, match="grading.service_url"):
        build_runner(config.grading)


def test_identical_answers_are_graded_once(grader):
    row = prompt("code", {**ADD, "cases": [{"args": [5, 6], "expected": 11}]})
    before = grader.metrics()
    grades = [grader.grade(row, RIGHT, False) for _ in range(5)]
    after = grader.metrics()
    assert {grade.reward for grade in grades} == {1.0}
    assert after["grading/shared"] - before["grading/shared"] == 4
    assert after["grading/sandbox_runs"] - before["grading/sandbox_runs"] == 1
    assert after["grading/ok"] - before["grading/ok"] == 5


def test_a_remote_service_is_summed_up_in_the_log_once_per_batch(monkeypatch, caplog):
    class Remote(Broken):
        def summary(self):
            return f"remote: {self.calls} attempts"

    runner = Remote()
    grader = broken_grader(monkeypatch, runner)
    with caplog.at_level("INFO", "sdpo.grading"):
        for number in range(70):
            grader.grade_or_status(prompt("code", ADD), f"{number}\n{RIGHT}", False)
        assert caplog.text.count("remote: 64 attempts") == 1
        grader.close()
    assert "remote: 70 attempts" in caplog.text


def test_work_that_is_under_way_is_waited_for_and_a_failure_is_passed_on():
    once: Once[int] = Once(2)
    started, calls = threading.Event(), []

    def slow() -> int:
        calls.append(1)
        started.set()
        time.sleep(0.1)
        return 7

    threads = [threading.Thread(target=lambda: results.append(once.get("k", slow))) for _ in range(4)]
    results: list[int] = []
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert results == [7] * 4
    assert len(calls) == 1
    with pytest.raises(ZeroDivisionError):
        once.get("bad", lambda: 1 // 0)
    assert once.get("bad", lambda: 5) == 5


def test_the_least_recently_used_values_are_forgotten():
    once: Once[int] = Once(2)
    for key in (1, 2, 1, 3):
        once.get(key, lambda key=key: key)
    assert once.get(1, lambda: -1) == 1
    assert once.get(2, lambda: -1) == -1


def test_the_sandbox_is_tested_before_a_run_only_when_its_rows_run_programs():
    from sdpo.grading.registry import describe_sandbox

    assert describe_sandbox(Config(), {"gsm8k", "mmlu"}) is None
    config = Config()
    config.grading.backend, config.grading.service_url = "http", "http://x"
    assert describe_sandbox(config, {"code"}) is None
    report = describe_sandbox(Config(), {"gsm8k", "humaneval"})
    assert report is not None
    assert report.sound
    assert report.line().startswith("sandbox L")


def test_what_is_first_needed_after_the_end_is_not_made_any_more():
    """Nobody would close it: a program that it runs would outlive the command."""
    made = []
    lazy = Lazy(lambda: made.append(1))
    lazy.close()
    with pytest.raises(SandboxFault, match="closed"):
        lazy.get()
    assert not made
