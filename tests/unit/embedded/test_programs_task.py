"""The built-in task: what a problem is, and that its parts are what they are said to be."""

from __future__ import annotations

import json
import random

import pytest

from sdpo.embedded.programs import (
    ALL_STEPS,
    INPUT_RANGE,
    PART_SIZES,
    Step,
    body,
    draw_program,
    hidden_inputs,
    is_sound,
    make_prompt,
    near_misses,
    problems,
    run_steps,
    steps_of,
)
from sdpo.errors import DataError
from sdpo.records import Prompt

FIRST = ("Body of f(x): negate, next multiply by 4, next times 4", "x = -x\nx = x * 4\nx = x * 4\nreturn x")
EXAMPLE = (Step("multiply", 3), Step("subtract", 4), Step("absolute"))


def execute(program: str, x: int) -> int:
    """The program as Python runs it. The text is this package's own, from `body`."""
    space: dict = {}
    exec("def f(x):\n" + "".join(f"    {line}\n" for line in program.split("\n")), space)
    return space["f"](x)


@pytest.fixture(scope="module")
def parts() -> dict[str, list[Prompt]]:
    return {part: problems("hard", part) for part in ("train", "test")}


def test_the_body_is_python_with_one_line_per_step():
    assert body(EXAMPLE) == "x = x * 3\nx = x - 4\nx = abs(x)\nreturn x"
    assert run_steps(EXAMPLE, -2) == [-2, -6, -10, 10]


@pytest.mark.parametrize("step", ALL_STEPS, ids=lambda step: step.code)
def test_every_step_does_what_its_line_of_python_does(step):
    for x in (-30, -7, -1, 0, 1, 6, 29):
        assert step.apply(x) == execute(body((step,)), x)


def test_no_two_steps_share_a_phrase():
    owner: dict[str, str] = {}
    for step in ALL_STEPS:
        for phrase in step.phrases:
            assert owner.setdefault(phrase, step.code) == step.code


def test_parts_have_their_sizes_and_share_no_program(parts):
    assert {part: len(rows) for part, rows in parts.items()} == PART_SIZES
    programs = {part: {steps_of(row) for row in rows} for part, rows in parts.items()}
    assert [len(programs[part]) for part in PART_SIZES] == [PART_SIZES[part] for part in PART_SIZES]
    assert not programs["train"] & programs["test"]
    assert {len(steps) for rows in programs.values() for steps in rows} == {3}


def test_the_same_call_gives_the_same_problems_and_both_settings_share_them(parts):
    assert problems("hard", "test") == parts["test"] == problems("easy", "test")


def test_the_first_problem_never_changes(parts):
    first = parts["test"][0]
    assert first.uid == "programs-test-0" and first.data_source == "programs"
    assert (first.messages[0]["content"], body(steps_of(first))) == FIRST


def test_the_ground_truth_is_plain_json_and_the_cases_hold(parts):
    for row in parts["test"]:
        truth = json.loads(json.dumps(row.ground_truth))
        assert truth == row.ground_truth
        assert all(execute(body(steps_of(row)), case["args"][0]) == case["expected"] for case in truth["cases"])


def test_wordings_vary(parts):
    texts = [row.messages[0]["content"] for row in parts["train"]]
    assert len({text.split(":")[0] for text in texts}) == 4
    assert sum("triple" in text for text in texts) and sum("times 3" in text for text in texts)


def test_hidden_inputs_tell_a_program_from_every_near_miss_that_differs():
    rng = random.Random(5)
    for _ in range(30):
        steps = draw_program(rng, 3)
        inputs = hidden_inputs(steps, rng)
        for other in near_misses(steps):
            differs = [x for x in INPUT_RANGE if run_steps(other, x)[-1] != run_steps(steps, x)[-1]]
            caught = [x for x in inputs if run_steps(other, x)[-1] != run_steps(steps, x)[-1]]
            assert bool(caught) == bool(differs)


def test_square_is_told_from_absolute_value():
    steps = (Step("add", 1), Step("square"), Step("subtract", 2))
    row = make_prompt("one", steps, random.Random(0))
    other = (steps[0], Step("absolute"), steps[2])
    assert any(run_steps(other, case["args"][0])[-1] != case["expected"] for case in row.ground_truth["cases"])


@pytest.mark.parametrize(
    "steps",
    [
        (Step("square"), Step("absolute"), Step("add", 1)),  # a square is never negative
        (Step("add", 3), Step("subtract", 3), Step("negate")),  # two steps undo each other
        (Step("at_least", 7), Step("at_most", 3), Step("add", 1)),  # always 4
        (Step("cube"), Step("cube"), Step("cube")),  # 30 ** 27
    ],
)
def test_programs_that_can_be_shortened_or_that_say_little_are_not_sound(steps):
    assert not is_sound(steps)


@pytest.mark.parametrize(("split", "part"), [("medium", "train"), ("hard", "val")])
def test_an_unknown_split_or_part_is_an_error_that_names_the_known_ones(split, part):
    with pytest.raises(DataError, match=r"hard \| easy|train \| test"):
        problems(split, part)


def test_a_row_without_steps_is_an_error():
    with pytest.raises(DataError, match="steps"):
        steps_of(Prompt("x", (), "programs", {"cases": []}))
    with pytest.raises(DataError, match="juggle"):
        steps_of(Prompt("x", (), "programs", {"steps": [["juggle", 1]]}))
