"""The example on its own: its grader, its rows, its loop, and that its reprompt is the framework's."""

from __future__ import annotations

import ast
import random
import sys

import pytest
import torch

from sdpo.config.schema import SelfDistillationConfig
from sdpo.embedded.architecture import build_model, save_model
from sdpo.embedded.tokenizer import build_tokenizer
from sdpo.records import Grade, GradeStatus, Group, Prompt, Sample
from sdpo.reprompt.builder import RepromptBuilder
from sdpo.tokens.chat import ChatRenderer


@pytest.fixture(scope="module")
def tiny_folder(tmp_path_factory):
    """The built-in architecture and tokenizer with random weights."""
    folder = tmp_path_factory.mktemp("tiny")
    tokenizer = build_tokenizer()
    torch.manual_seed(0)
    save_model(build_model(tokenizer), folder)
    tokenizer.save_pretrained(folder)
    return folder


@pytest.fixture
def triple(example):
    words = {step[0]: step for step in example.STEPS}
    return example.Problem(tuple(words[w] for w in ("multiply by 3", "subtract 4", "absolute value")))


def test_it_needs_torch_and_transformers_only_and_stays_short(repository):
    text = (repository / "examples" / "sdpo_in_one_file.py").read_text()
    assert len(text.splitlines()) < 300
    imported = set()
    for node in ast.walk(ast.parse(text)):
        if isinstance(node, ast.Import):
            imported |= {name.name.split(".")[0] for name in node.names}
        elif isinstance(node, ast.ImportFrom):
            imported.add(node.module.split(".")[0])
    assert imported - set(sys.stdlib_module_names) == {"torch", "transformers"}


def test_grader_says_which_step_went_wrong_on_which_input(example, triple):
    assert triple.question == "Write the body of f(x): multiply by 3, then subtract 4, then absolute value"
    assert example.grade(triple, triple.solution) == (1.0, "")
    reward, feedback = example.grade(triple, "x = x * 3\nx = x - 5\nx = abs(x)\nreturn x")
    assert reward == 0.0
    expected = "Wrong answer\nInput: -20\nExpected: 64\nGot: 65\nStep 2 should be: subtract 4\n"
    assert feedback == expected + "It makes -60 into -64, yours made -65"
    assert example.grade(triple, "x = x * 3\nreturn x")[1].endswith("It makes -60 into -64, yours stopped")
    assert example.grade(triple, triple.solution[:-9] + "\nx = -x\nreturn x")[1].endswith(
        "Nothing should follow step 3"
    )


@pytest.mark.parametrize(
    "answer",
    [
        "",
        "return x",
        "x = x * 3\nx = x - 4\nx = abs(x)",
        "import os\nreturn x",
        "x = 25\nreturn x",
        "x = x * x\n" * 200,
    ],
)
def test_an_answer_that_is_no_program_of_the_task_fails_and_is_never_run(example, triple, answer):
    reward, feedback = example.grade(triple, answer)
    assert reward == 0.0 and feedback.startswith("Wrong answer")


def test_training_and_held_out_problems_share_none(example):
    problems = example.draw_problems(300, random.Random(0))
    assert len(set(problems)) == 300


@pytest.mark.parametrize(
    ("right", "rows", "demonstrations"),
    [
        ([1, 0, 0, 0], [1, 2, 3], {1: 0, 2: 0, 3: 0}),
        ([1, 1, 0, 0], [0, 1, 2, 3], {0: 1, 1: 0, 2: 0, 3: 0}),
        ([0, 0, 0, 0], [0, 1, 2, 3], {}),
    ],
)
def test_rows_and_teacher_prompts_are_the_frameworks(example, triple, tiny_folder, right, rows, demonstrations):
    from transformers import AutoTokenizer

    tokenizer = AutoTokenizer.from_pretrained(tiny_folder)
    answers = [triple.solution if r else f"x = x + {i + 1}\nreturn x" for i, r in enumerate(right)]
    responses = [tokenizer.encode(a, add_special_tokens=False) + [tokenizer.eos_token_id] for a in answers]
    mine, rewards = example.rows_of(triple, responses, tokenizer)
    assert rewards == right
    samples = []
    for i, (answer, ids) in enumerate(zip(answers, responses, strict=True)):
        reward, feedback = example.grade(triple, answer)
        grade = Grade(GradeStatus.OK if reward else GradeStatus.WRONG, reward, feedback=feedback)
        samples.append(
            Sample("p", i, example.chat_ids(tokenizer, triple.question), ids, answer, "stop", 0, None, grade)
        )
    prompt = Prompt("p", ({"role": "user", "content": triple.question},), "programs")
    builder = RepromptBuilder(SelfDistillationConfig(), ChatRenderer(tokenizer, {}), seed=0)
    built, _ = builder.build(Group(prompt, samples), step=0)
    assert [i for i, reprompt in enumerate(built) if reprompt is not None] == rows
    assert [row.response_ids for row in mine] == [responses[i] for i in rows]
    assert [row.teacher_prompt_ids for row in mine] == [built[i].prompt_ids for i in rows]
    assert {
        i: r.demonstration_index for i, r in enumerate(built) if r and r.demonstration_index is not None
    } == demonstrations


def test_its_loop_runs_from_a_model_folder(example, tiny_folder, capsys):
    sizes = ["--steps", "2", "--prompts", "2", "--group", "2", "--held-out", "2"]
    before, after = example.main(["--model", str(tiny_folder), *sizes])
    printed = capsys.readouterr().out
    assert 0.0 <= before <= 1.0 and 0.0 <= after <= 1.0
    assert "step 2: reward 0.00" in printed and "rows 4" in printed
