from __future__ import annotations

import copy
import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from sdpo.data.files import read_rows, write_parquet
from sdpo.data.rows import to_prompt, to_row
from sdpo.errors import DataError
from sdpo.records import Prompt

USER = {"role": "user", "content": "2+2?"}


def row(**changes: Any) -> dict[str, Any]:
    base = {"data_source": "gsm8k", "prompt": [USER], "reward_model": {"style": "rule", "ground_truth": "4"}}
    return {**base, **changes}


def call_prompt(name: str, arguments: dict[str, Any], **changes: Any) -> Prompt:
    messages = (
        USER,
        {"role": "assistant", "content": "", "tool_calls": [{"name": name, "arguments": arguments}]},
        USER,
    )
    return replace(Prompt("", messages, "tooluse"), **changes)


def through_parquet(prompts: list[Prompt], folder: Path) -> list[Prompt]:
    path = folder / "rows.parquet"
    write_parquet([to_row(p) for p in prompts], path)
    return [to_prompt(r, "", "row", from_table=True) for r in read_rows(path)]


def test_a_row_in_verls_schema_is_a_prompt() -> None:
    prompt = to_prompt(row(extra_info={"index": 3}, ability="math"), "train/x:1", "x row 1")
    assert prompt == Prompt("train/x:1", (USER,), "gsm8k", ground_truth="4", extra_info={"index": 3})


def test_a_prompt_written_as_text_is_one_user_message() -> None:
    assert to_prompt(row(prompt="2+2?"), "u", "x").messages == (USER,)


def test_text_parts_are_joined() -> None:
    message = {"role": "user", "content": [{"type": "text", "text": "2+"}, {"type": "text", "text": "2?"}]}
    assert to_prompt(row(prompt=[message]), "u", "x").messages == (USER,)


def test_loading_leaves_the_row_unchanged() -> None:
    raw = row(
        prompt=[USER, {"role": "assistant", "tool_calls": [{"name": "f", "arguments": "{}"}], "name": None}, USER]
    )
    before = copy.deepcopy(raw)
    to_prompt(raw, "u", "x", from_table=True)
    assert raw == before


def test_tool_call_arguments_of_different_rows_are_not_merged_by_the_table(tmp_path: Path) -> None:
    prompts = [
        call_prompt("get", {"city": "Oslo"}),
        call_prompt("add", {"a": 1, "b": 2}),
        call_prompt("get", {"city": 7}),
    ]
    loaded = through_parquet(prompts, tmp_path)
    assert [p.messages[1]["tool_calls"][0]["arguments"] for p in loaded] == [
        {"city": "Oslo"},
        {"a": 1, "b": 2},
        {"city": 7},
    ]
    assert loaded == prompts


def test_a_table_that_was_merged_by_others_loses_the_keys_it_never_had() -> None:
    calls = [
        {
            "type": "function",
            "id": None,
            "function": {"name": "get", "arguments": {"city": "Oslo", "a": None, "b": None}},
        }
    ]
    raw = row(prompt=[USER, {"role": "assistant", "content": None, "tool_calls": calls}, USER])
    message = to_prompt(raw, "u", "x", from_table=True).messages[1]
    assert message["tool_calls"] == [{"type": "function", "function": {"name": "get", "arguments": {"city": "Oslo"}}}]


def test_a_null_argument_that_was_meant_survives_as_json_text(tmp_path: Path) -> None:
    (loaded,) = through_parquet([call_prompt("get", {"city": None, "deep": {"a": [None, 1]}})], tmp_path)
    assert loaded.messages[1]["tool_calls"][0]["arguments"] == {"city": None, "deep": {"a": [None, 1]}}


def test_a_recorded_call_with_broken_json_stays_as_it_was_written() -> None:
    raw = row(prompt=[USER, {"role": "assistant", "tool_calls": [{"name": "f", "arguments": "{oops"}]}, USER])
    assert to_prompt(raw, "u", "x").messages[1]["tool_calls"][0]["arguments"] == "{oops"


@pytest.mark.parametrize(
    "truth", ["72", '{"a": 1}', None, {"answer": "B", "choices": 4}, [{"name": "f", "arguments": {}}], 7]
)
def test_every_ground_truth_comes_back_with_its_type(tmp_path: Path, truth: Any) -> None:
    (loaded,) = through_parquet([Prompt("", (USER,), "x", ground_truth=truth)], tmp_path)
    assert loaded.ground_truth == truth and type(loaded.ground_truth) is type(truth)


def test_tools_and_template_options_survive_the_table(tmp_path: Path) -> None:
    tools = (
        {
            "type": "function",
            "function": {"name": "get-weather", "parameters": {"properties": {"a": {"default": None}}}},
        },
    )
    prompts = [
        Prompt("", (USER,), "x", tools=tools, template_kwargs={"enable_thinking": False}, extra_info={"index": 1}),
        Prompt("", (USER,), "x"),
    ]
    assert through_parquet(prompts, tmp_path) == prompts


def nested(levels: int) -> Any:
    return json.loads('{"a":' * levels + "1" + "}" * levels)


def calling(arguments: Any) -> dict[str, Any]:
    return {"role": "assistant", "tool_calls": [{"name": "get", "arguments": arguments}]}


TOLD = {"role": "tool", "content": "sunny"}


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"prompt": None}, r"train\.json row 3: prompt: missing; the row has .*reward_model"),
        ({"prompt": []}, r"row 3: prompt: got \[\]"),
        ({"prompt": "  "}, r"row 3: prompt: the last user message is blank"),
        ({"prompt": ["hi"]}, r"prompt message 1: got 'hi'"),
        ({"prompt": [{"content": "hi"}]}, r"prompt message 1: role: got None"),
        ({"prompt": [{"role": "user"}]}, r"prompt message 1: content: missing"),
        ({"prompt": [{"role": "user", "content": [{"type": "image"}]}]}, r"message 1: content: got .*only text"),
        ({"prompt": [{"role": "system", "content": "s"}]}, r"roles \['system'\]"),
        ({"prompt": [USER, {"role": "assistant", "content": "4"}]}, r"roles \['user', 'assistant'\]"),
        ({"data_source": None}, r"row 3: data_source: missing; the row has .*try data.data_source="),
        ({"data_source": 7}, r"row 3: data_source: got 7"),
        ({"reward_model": "4"}, r"row 3: reward_model: got str"),
        ({"reward_model": {"encoding": "json", "ground_truth": "{"}}, r"reward_model\.ground_truth: encoding is json"),
        ({"tools": "[{"}, r"row 3: tools: not valid JSON"),
        ({"tools": ["get"]}, r"row 3: tools: entry 1: got 'get'; a tool's schema is an object"),
        ({"tools": [{"name": "\ud800"}]}, r"row 3: tools: half of a surrogate pair at character 0"),
        ({"tools": [nested(900)]}, r"row 3: tools: nested more than 100 levels deep"),
        ({"prompt": [USER, calling(nested(900)), TOLD]}, r"row 3: prompt message 2: tool_calls: nested more than"),
        ({"prompt": [USER, calling({"a": "\ud800"}), TOLD]}, r"prompt message 2: tool_calls: half of a surrogate"),
        ({"tools": "{}"}, r"row 3: tools: got \{\}; it must be a list"),
        ({"chat_template_kwargs": [1]}, r"chat_template_kwargs: got \[1\]; it must be a dict"),
    ],
)
def test_a_row_that_cannot_be_used_is_refused_with_its_number_field_and_problem(changes: dict, message: str) -> None:
    with pytest.raises(DataError, match=message):
        to_prompt(row(**changes), "u", "train.json row 3")
