"""The grader of the built-in task: what passes, and what it says of what does not."""

from __future__ import annotations

import random
from dataclasses import replace

import pytest

from sdpo.embedded.attempts import replayed_grade
from sdpo.embedded.grader import (
    FunctionRun,
    ProgramsGrader,
    answer_text,
    first_wrong_step,
    function_source,
    recognised_steps,
    refusal,
    verdict,
)
from sdpo.embedded.programs import (
    ALL_STEPS,
    INPUT_RANGE,
    Step,
    body,
    make_prompt,
    near_misses,
    problems,
    run_steps,
    steps_of,
)
from sdpo.records import GradeStatus, Prompt

STEPS = (Step("multiply", 3), Step("subtract", 4), Step("absolute"))


def run_here(source: str, name: str, inputs: list[list[int]]) -> list[FunctionRun]:
    """Stands in for the sandbox: the programs of these tests are harmless."""
    runs = []
    for arguments in inputs:
        space: dict = {}
        try:
            exec(source, space)
            runs.append(FunctionRun(space[name](*arguments)))
        except Exception as error:  # whatever the answer raises is a runtime error
            runs.append(FunctionRun(None, f"{type(error).__name__}: {error}", GradeStatus.RUNTIME_ERROR))
    return runs


@pytest.fixture
def prompt() -> Prompt:
    return make_prompt("one", STEPS, random.Random(0))


@pytest.fixture
def grader() -> ProgramsGrader:
    return ProgramsGrader(run_here)


@pytest.mark.parametrize(
    "answer",
    [
        body(STEPS),
        "x = x * 3\nx = x - 4\nreturn abs(x)",
        "return abs(3 * x - 4)",
        "if x < 2:\n    return 4 - 3 * x\nreturn 3 * x - 4",
        "    x = x * 3\n    return abs(x - 4)",
        "def f(x):\n    return abs(x * 3 - 4)",
        "Here it is:\n```python\nreturn abs(x * 3 - 4)\n```\nDone.",
    ],
)
def test_any_program_that_computes_the_function_passes(grader, prompt, answer):
    grade = grader.grade(prompt, answer)
    assert (grade.status, grade.reward, grade.passed_fraction, grade.feedback) == (GradeStatus.OK, 1.0, 1.0, "")


def test_a_partly_right_program_has_no_reward_and_its_passed_fraction(grader, prompt):
    grade = grader.grade(prompt, "return x * 3 - 4")
    cases = prompt.ground_truth["cases"]
    assert grade.reward == 0.0
    assert grade.passed_fraction == sum(3 * case["args"][0] >= 4 for case in cases) / len(cases)


@pytest.mark.parametrize("value", ["True", "1.0", "'1'", "None", "[1]"])
def test_only_the_integer_itself_is_right(grader, value):
    truth = {"type": "function", "name": "f", "cases": [{"args": [0], "expected": 1}], "steps": [["add", 1]]}
    assert grader.grade(Prompt("one", (), "programs", truth), "return 1").reward == 1.0
    assert grader.grade(Prompt("one", (), "programs", truth), f"return {value}").reward == 0.0


def feedback_of(prompt: Prompt, answer: str) -> str:
    return ProgramsGrader(run_here).grade(prompt, answer).feedback


def with_inputs(prompt: Prompt, *inputs: int) -> Prompt:
    cases = [{"args": [x], "expected": run_steps(steps_of(prompt), x)[-1]} for x in inputs]
    return replace(prompt, ground_truth=prompt.ground_truth | {"cases": cases})


def test_feedback_on_a_wrong_constant_names_the_step_and_both_values(prompt):
    assert feedback_of(with_inputs(prompt, 5), "x = x * 3\nx = x - 6\nx = abs(x)\nreturn x") == (
        "Wrong answer\nInput: 5\nExpected: 11\nGot: 9\nStep 2 should be: subtract 4\nIt makes 15 into 11, yours made 9"
    )


def test_feedback_on_a_missing_step_says_that_the_program_stopped(prompt):
    assert feedback_of(with_inputs(prompt, 5, -2), "x = x * 3\nx = x - 4\nreturn x") == (
        "Wrong answer\nInput: -2\nExpected: 10\nGot: -10\n"
        "Step 3 should be: absolute value\nIt makes -10 into 10, yours stopped"
    )


def test_feedback_on_a_step_too_many(prompt):
    assert feedback_of(with_inputs(prompt, 5), body(STEPS).replace("return x", "x = -x\nreturn x")).endswith(
        "Got: -11\nNothing should follow step 3"
    )


def test_feedback_on_a_runtime_error_holds_the_input_the_error_and_the_step(prompt):
    assert feedback_of(with_inputs(prompt, 5), "x = x * 3\nx = x - y\nreturn x") == (
        "Runtime error\nInput: 5\nExpected: 11\nError: NameError: name 'y' is not defined\n"
        "Step 2 should be: subtract 4\nIt makes 15 into 11"
    )


def test_feedback_on_text_that_is_not_python_shows_the_line_and_the_step(prompt):
    grade = ProgramsGrader(run_here).grade(with_inputs(prompt, 5), "x = x * 3\nx = x -\nreturn x")
    assert grade.status is GradeStatus.FORMAT_ERROR
    assert grade.feedback == "Syntax error in: x = x -\nStep 2 should be: subtract 4\nIt makes 15 into 11"


def test_the_case_shown_is_the_one_that_blames_the_earliest_step():
    steps = (Step("absolute"), Step("add", 1), Step("negate"))
    row = with_inputs(make_prompt("one", steps, random.Random(0)), 9, -8)  # with 9 the first step changes nothing
    assert "Step 1 should be: absolute value" in feedback_of(row, "x = x + 1\nreturn x")


def test_an_answer_that_is_cut_off_is_not_run_and_says_so(prompt):
    grade = ProgramsGrader(lambda *_: pytest.fail("was run")).grade(prompt, "x = x * 3\nx = x", truncated=True)
    assert (grade.status, grade.reward) == (GradeStatus.TRUNCATED, 0.0)
    assert grade.feedback.startswith("The answer was cut off before it ended.\nStep 2 should be: subtract 4")


@pytest.mark.parametrize("answer", ["", "  \n ", "```python\n```"])
def test_an_empty_answer_is_a_format_error(prompt, answer):
    assert refusal(prompt, answer, False).status is GradeStatus.FORMAT_ERROR


def test_a_row_without_cases_is_never_a_pass(prompt):
    grade = ProgramsGrader(run_here).grade(with_inputs(prompt), "return 1")
    assert (grade.status, grade.reward) == (GradeStatus.NO_TESTS, None)


def test_public_only_says_nothing_of_the_hidden_inputs_and_steps(prompt):
    grader = ProgramsGrader(run_here, public_only=True)
    assert grader.grade(prompt, "return x").feedback == "Wrong answer"
    assert grader.grade(prompt, "return x", truncated=True).feedback == "The answer was cut off before it ended."


def test_feedback_is_no_longer_than_asked(prompt):
    assert len(ProgramsGrader(run_here, feedback_max_chars=30).grade(prompt, "return x").feedback) == 30


def test_a_limit_of_the_sandbox_becomes_the_status(prompt):
    runs = [FunctionRun(None, "4.0 s", GradeStatus.TIMEOUT) for _ in prompt.ground_truth["cases"]]
    grade = verdict(prompt, "while True:\n    pass", runs)
    assert grade.status is GradeStatus.TIMEOUT and grade.feedback.startswith("Time limit exceeded\nInput: ")


def test_huge_numbers_are_not_replayed_and_are_cut_in_the_feedback(prompt):
    for cubes, shown in ((4, "..."), (9, "a number too long to show")):
        answer = "x = x ** 3\n" * cubes + "return x"
        feedback = feedback_of(with_inputs(prompt, 30), answer)
        assert shown in feedback and len(feedback) < 200
        assert first_wrong_step(STEPS, answer, 30) == 1


def test_a_hostile_answer_cannot_make_the_replay_slow_or_fail(prompt):
    for answer in (
        "(" * 2000,
        "x = " + "-" * 3000 + "x",
        "x = x ** 3\n" * 390 + "return x",
        "\0",
        "return x" + "[0]" * 900,
    ):
        recognised_steps(answer)
        refusal(prompt, answer, False)
        assert verdict(prompt, answer, [FunctionRun(0)] * len(prompt.ground_truth["cases"])).reward == 0.0


def test_every_known_line_is_recognised_in_either_place():
    for step in ALL_STEPS:
        assert recognised_steps(body((step,))) == ((step,), True)
        assert recognised_steps("return " + step.code.removeprefix("x = ")) == ((step,), True)
    assert recognised_steps("x = x + 1\nprint(x)\nreturn x") == ((Step("add", 1), None), False)


def test_the_source_is_the_answer_as_the_body_of_the_function():
    assert function_source("x = -x\nreturn x", "f") == "def f(x):\n    x = -x\n    return x\n"
    assert answer_text("a\n```\nfirst\n```\nb\n```py\nlast\n```") == "last"


def test_replaying_known_steps_gives_the_grade_that_running_gives(grader):
    for row in problems("hard", "test")[:8]:
        for attempt in near_misses(steps_of(row)):
            replayed = replayed_grade(row, body(attempt))
            assert replayed is not None and replace(grader.grade(row, body(attempt)), seconds=0.0) == replayed


def test_feedback_names_the_intended_step_and_never_holds_the_program():
    for row in problems("hard", "test")[:12]:
        intended = steps_of(row)
        for attempt in near_misses(intended):
            grade = replayed_grade(row, body(attempt))
            if grade.reward == 1.0:
                assert all(run_steps(attempt, x)[-1] == run_steps(intended, x)[-1] for x in INPUT_RANGE)
                continue
            named = [step for step in intended if f"should be: {step.phrase}\n" in grade.feedback]
            assert named or "Nothing should follow step 3" in grade.feedback
            assert body(intended) not in grade.feedback
