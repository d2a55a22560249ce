"""No draft is graded: what stands inside of reasoning, closed or cut, is no answer of any kind."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from sdpo.config.schema import Config
from sdpo.grading.registry import build_grader
from sdpo.records import Prompt

OPENINGS = {
    "<think>": "</think>",
    "<thinking>": "</thinking>",
    "<reasoning>\n": "\n</reasoning>",
    "[THINK]": "[/THINK]",
    "<seed:think>": "</seed:think>",
    "◁think▷": "◁/think▷",
    "<|begin_of_thought|>": "<|end_of_thought|>",
    "<|START_THINKING|>": "<|END_THINKING|>",
    "<|channel|>analysis<|message|>": "<|end|><|start|>assistant<|channel|>final<|message|>",
    "Here is my thought process: ": "Here is my response: ",
}
ADD = {"type": "function", "name": "add", "cases": [{"args": [1, 2], "expected": 3}]}
KINDS = {  # data source, ground truth, right answer, wrong answer
    "math": ("math", "4", "So it is \\boxed{4}.", "\\boxed{5}"),
    "multiple choice": ("gpqa", {"answer": "B", "choices": 4}, "<answer>B</answer>", "Answer: C"),
    "tool calls": (
        "tooluse",
        [{"name": "f", "arguments": {}}],
        '<tool_call>{"name": "f"}</tool_call>',
        '<tool_call>{"name": "g"}</tool_call>',
    ),
    "code": ("code", ADD, "```python\ndef add(a, b): return a + b\n```", "```python\ndef add(a, b): return 0\n```"),
}


@pytest.fixture(scope="module")
def grader():
    grader = build_grader(Config())
    yield grader
    grader.close()


@pytest.mark.parametrize("kind", KINDS)
@given(
    opening=st.sampled_from(list(OPENINGS)),
    right=st.tuples(st.booleans(), st.booleans()),
    cut=st.none() | st.floats(0, 1),
)
def test_reward_only_for_an_answer_outside_of_closed_reasoning(grader, kind, opening, right, cut):
    source, truth, *answers = KINDS[kind]
    draft, final = (answers[0] if is_right else answers[1] for is_right in right)
    body = f"{opening}Hm. {draft} Or not?{OPENINGS[opening]}"
    text = f"{body}\n\n{final}"
    end = len(text) if cut is None else int(cut * len(text))
    grade = grader.grade(Prompt("p", ({"role": "user", "content": "?"},), source, truth), text[:end], end < len(text))
    if end < len(body):
        assert grade.reward == 0.0
    elif end == len(text):
        assert grade.reward == float(right[1])
    else:
        assert grade.reward <= float(right[1])


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("opening", OPENINGS)
def test_the_same_without_reasoning_is_right(grader, kind, opening):
    source, truth, right, _ = KINDS[kind]
    prompt = Prompt("p", ({"role": "user", "content": "?"},), source, truth)
    assert grader.grade(prompt, right, False).reward == 1.0
    assert grader.grade(prompt, f"{opening}plan{OPENINGS[opening]}{right}", False).reward == 1.0


def test_a_parser_can_be_named_or_switched_off():
    config, text = Config(), "<think>\\boxed{4}</think>No idea."
    prompt = Prompt("p", ({"role": "user", "content": "?"},), "math", "4")
    for name, reward in {"auto": 0.0, "qwen3": 0.0, "mistral": 1.0, "none": 1.0}.items():
        config.grading.reasoning_parser = name
        grader = build_grader(config)
        assert grader.grade(prompt, text, False).reward == reward, name
        grader.close()
