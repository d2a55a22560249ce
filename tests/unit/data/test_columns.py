"""Rows with other names for their columns: read by a mapping, or refused with the mapping that would fit."""

from __future__ import annotations

import json
import re
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from sdpo.config.schema import DataConfig
from sdpo.data.columns import ANSWERS, PROMPTS, Columns
from sdpo.data.rows import to_prompt
from sdpo.errors import DataError
from sdpo.grading.registry import kind_of
from sdpo.records import Prompt

USER = {"role": "user", "content": "2+2?"}
SAID = {"role": "assistant", "content": "Two and two.\n#### 4"}


def read(row: dict[str, Any], **settings: Any) -> Prompt:
    return to_prompt(row, "u", "file row 1", Columns.of(DataConfig(**settings)))


@pytest.mark.parametrize(
    ("row", "settings"),
    [
        ({"question": "2+2?", "answer": SAID["content"]}, {"prompt_key": "question", "answer_key": "answer"}),
        ({"prompt": "2+2?", "completion": SAID["content"]}, {"answer_key": "completion"}),
        ({"prompt": [USER], "completion": [SAID]}, {"answer_key": "completion"}),
        ({"messages": [USER, SAID]}, {"prompt_key": "messages", "answer_key": "messages"}),
        ({"messages": json.dumps([USER, SAID])}, {"prompt_key": "messages", "answer_key": "messages"}),
        (
            {"conversations": [{"from": "human", "value": "2+2?"}, {"from": "gpt", "value": SAID["content"]}]},
            {"prompt_key": "conversations", "answer_key": "conversations"},
        ),
        (
            {"prompt": json.dumps(json.dumps([USER])), "extra_info": {"inside": {"answer": SAID["content"]}}},
            {"answer_key": "extra_info.inside.answer"},
        ),
        ({"prompt": [USER], "reward_model": {"ground_truth": SAID["content"]}}, {}),
    ],
)  # fmt: skip
def test_rows_are_read_by_a_mapping_of_their_columns(row: dict[str, Any], settings: dict[str, Any]) -> None:
    prompt = read(row, data_source="gsm8k", **settings)
    assert prompt.messages == (USER,)
    assert (prompt.data_source, prompt.ground_truth) == ("gsm8k", SAID["content"])


def test_the_rows_own_source_wins_and_another_column_may_hold_it() -> None:
    assert read({"prompt": "q", "data_source": "aime"}, data_source="gsm8k").data_source == "aime"
    assert read({"prompt": "q", "source": "aime"}, reward_fn_key="source").data_source == "aime"


def test_text_for_the_teacher_comes_with_the_row() -> None:
    row = {"prompt": "q", "data_source": "x", "privileged_context": "It is even.", "worked": SAID["content"]}
    prompt = read(row, solution_key="worked")
    assert (prompt.feedback, prompt.solution) == ("It is even.", SAID["content"])
    assert read(row | {"hint": "odd"}, feedback_key="hint").feedback == "odd"
    assert read({"data_source": "x", "prompt": [USER, SAID]}, solution_key="prompt").solution == SAID["content"]
    with pytest.raises(DataError, match="file row 1: privileged_context: got .*must be text"):
        read(row | {"privileged_context": {"a": 1}})


def test_other_columns_are_there_for_reward_functions() -> None:
    row = {"prompt": "q", "data_source": "x", "answer": "4", "level": 3, "image": b"png"}
    assert read(row).extra_info == {"answer": "4", "level": 3}
    assert read(row | {"extra_info": {"index": 1}}).extra_info == {"index": 1}


@pytest.mark.parametrize(
    "text",
    [
        json.dumps([USER]), json.dumps(USER), f"  {json.dumps([USER], indent=1)}\n", json.dumps(json.dumps([USER])),
        json.dumps([{"content": "2+2?", "role": "user"}]), json.dumps([{"from": "human", "value": "2+2?"}]),
    ],
)  # fmt: skip
def test_messages_that_somebody_stored_as_json_text_are_messages(text: str) -> None:
    assert read({"prompt": text, "data_source": "x"}).messages == (USER,)


@pytest.mark.parametrize(
    "text", [str([USER]), str(USER), json.dumps([USER])[:-1], "[{'content': 'a', 'role': 'user'}\n {'"]
)
def test_messages_stored_as_other_text_are_refused_and_never_trained_on_as_text(text: str) -> None:
    with pytest.raises(DataError, match="prompt: got .*it looks like messages and is no JSON"):
        read({"prompt": text, "data_source": "x"})


@pytest.mark.parametrize(
    "text", ["[1, 2, 3]", "[ ] or [x]?", '{"a": 1}', '"quoted"', "{", "[INST] hi", '[{"name": "x"}]', "null", '""']
)
def test_a_question_that_begins_like_json_stays_text(text: str) -> None:
    prompt = read({"prompt": text, "data_source": "x"})
    assert prompt.messages == ({"role": "user", "content": text},) and prompt.as_text


SUGGESTED = re.compile(r"data\.(\w+)=(\S+)")
VALUES = st.sampled_from(["4", "x\n#### 4", r"$\frac{1}{2}$", "B", "a short text", 12, 0.5])
CONVERSATION = st.just([USER, SAID])


@given(
    prompt=st.sampled_from(PROMPTS),
    answer=st.sampled_from([name for name in ANSWERS if name not in PROMPTS]),
    value=VALUES,
    conversation=st.booleans(),
    source=st.booleans(),
)
def test_the_error_says_what_the_row_has_and_what_it_advises_reads_the_row(
    prompt: str, answer: str, value: Any, conversation: bool, source: bool
) -> None:
    """Whatever the names are: following the advice of the first error once is enough."""
    row: dict[str, Any] = {"data_source": "gsm8k"} if source else {}
    row |= {prompt: [USER, SAID]} if conversation else {prompt: "2+2?", answer: value}
    settings: dict[str, str] = {}
    try:
        found = read(row)
    except DataError as error:
        assert str(error).startswith("file row 1: ") and (
            conversation or f"{answer} (" in str(error) or "message" in str(error)
        )
        settings = dict(SUGGESTED.findall(str(error).replace(", which picks the grader", "")))
        found = read(row, **settings)
    if not (prompt == "prompt" and source and not conversation):
        assert settings and found.ground_truth == (SAID["content"] if conversation else value)
    assert found.messages == (USER,)
    if not source and not conversation:
        kind_of(found.data_source)  # somebody grades it


def test_all_that_is_missing_is_told_at_once() -> None:
    with pytest.raises(DataError) as caught:
        read({"question": "2+2?", "answer": "4", "dataset": "gsm8k"})
    assert str(caught.value) == (
        "file row 1: data_source and prompt: missing; the row has question (text '2+2?'), answer (text '4'), "
        "dataset (text 'gsm8k'); try data.prompt_key=question data.answer_key=answer data.data_source=math "
        "(or data.reward_fn_key=dataset)"
    )
