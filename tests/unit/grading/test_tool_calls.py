from __future__ import annotations

import json

import pytest

from sdpo.grading.tool_calls import Call, MalformedCall, ToolCallGrader, extract_calls
from sdpo.records import GradeStatus, Prompt

GOLD = [
    {"name": "get-weather", "arguments": {"city": "Oslo"}},
    {"name": "add", "arguments": {"a": 1, "b": 2}},
]
WEATHER = {
    "type": "function",
    "function": {
        "name": "get-weather",
        "parameters": {"properties": {"city": {"type": "string"}, "unit": {"type": "string", "default": "C"}}},
    },
}


def lines(calls):
    return "\n".join(f"Thought: so\nAction: {c['name']}\nAction Input: {json.dumps(c['arguments'])}" for c in calls)


def tags(calls):
    return "".join(f"<tool_call>\n{json.dumps(c)}\n</tool_call>\n" for c in calls)


def grade(response, gold=GOLD, tools=None, **options):
    prompt = Prompt("p", ({"role": "user", "content": "?"},), "tooluse", gold, tools=tools)
    return ToolCallGrader(**options).grade(prompt, response, False)


@pytest.mark.parametrize("write", [lines, tags, json.dumps, lambda c: f"```json\n{json.dumps(c)}\n```"])
def test_the_same_calls_in_every_notation_are_right(write):
    assert grade(write(GOLD)).reward == 1.0


def change(index, **arguments):
    calls = json.loads(json.dumps(GOLD))
    calls[index]["arguments"].update(arguments)
    return calls


@pytest.mark.parametrize(
    "calls",
    [
        GOLD[::-1],
        [{**GOLD[0], "arguments": GOLD[1]["arguments"]}, {**GOLD[1], "arguments": GOLD[0]["arguments"]}],
        GOLD[:1],
        [*GOLD, GOLD[1]],
        change(0, unit="C"),
        change(1, a="1"),
        change(1, a=True),
        change(1, b=3),
        [{"name": "get_weather", "arguments": {"city": "Oslo"}}, GOLD[1]],
        [{"name": "get-weather", "arguments": {}}, GOLD[1]],
    ],
)
def test_calls_are_compared_one_by_one(calls):
    result = grade(lines(calls))
    assert (result.status, result.reward) == (GradeStatus.WRONG, 0.0)


def test_arguments_of_two_calls_to_the_same_tool_are_not_pooled():
    twice = [GOLD[0], GOLD[0]]
    given = [{"name": "get-weather", "arguments": {"city": "Rome"}}, GOLD[0]]
    assert grade(lines(given), twice).reward == 0.0
    assert grade(lines(twice), twice).reward == 1.0


def test_an_extra_argument_is_right_only_with_the_default_of_the_tool():
    assert grade(lines(change(0, unit="C")), tools=(WEATHER,)).reward == 1.0
    assert grade(lines(change(0, unit="F")), tools=(WEATHER,)).reward == 0.0


def test_nested_arguments_match_in_any_key_order():
    gold = [{"name": "find", "arguments": {"filter": {"a": 1, "b": [1.0, {"c": None}]}, "q": "x"}}]
    response = 'Action: find\nAction Input: {"q": "x", "filter": {"b": [1, {"c": null}], "a": 1}}'
    assert grade(response, gold).reward == 1.0


@pytest.mark.parametrize("name", ["get-weather", "search[web]", "a.b.c", "getRandomAxolotlImage", "tool_1"])
def test_tool_names_may_hold_hyphens_brackets_and_dots(name):
    gold = [{"name": name, "arguments": {}}]
    assert grade(f"Action: {name}\nAction Input: {{}}", gold).reward == 1.0
    assert grade(f"Action: {name}\nAction Input:", gold).reward == 1.0


def test_the_gold_list_may_be_written_as_in_the_reference_data():
    gold = json.dumps([{"Action": "f", "Action_Input": '{"a": 1}'}])
    assert grade('Action: f\nAction Input: {"a": 1}', gold).reward == 1.0


def test_text_after_the_arguments_is_ignored():
    assert extract_calls('Action: f\nAction Input: {"a": 1}\nObservation: {"x": 2}') == [Call("f", {"a": 1})]
    assert extract_calls('[f(a=1, b="x"), g(c=[1])]') == [Call("f", {"a": 1, "b": "x"}), Call("g", {"c": [1]})]
    assert extract_calls('{"function": {"name": "f", "arguments": "{\\"a\\": 1}"}}') == [Call("f", {"a": 1})]


@pytest.mark.parametrize(
    "response",
    [
        "",
        "I would call the weather tool.",
        "Action: f",
        'Action: f\nAction Input: {"a": ',
        "<tool_call>{</tool_call>",
        "[f(1)]",
    ],
)
def test_a_response_without_a_readable_call_is_a_format_error(response):
    assert grade(response).status is GradeStatus.FORMAT_ERROR


def test_python_notation_is_read_and_never_run():
    with pytest.raises(MalformedCall):
        extract_calls("[f(a=__import__('os').getcwd())]")


def test_feedback_says_what_is_wrong_and_not_what_is_right():
    result = grade(lines(change(0, city="Rome")))
    assert result.feedback == "Wrong answer. Call 1: the argument 'city' has a wrong value."
    assert "Oslo" not in grade(lines(change(0, city="Rome"))).feedback
    assert "Oslo" in grade(lines(change(0, city="Rome")), reveal_gold=True).feedback


@pytest.mark.parametrize("gold", [None, [], "", "text", [{"arguments": {}}], [1]])
def test_gold_calls_that_cannot_be_read_are_never_rewarded(gold):
    assert grade("Action: f\nAction Input: {}", gold).status is GradeStatus.INVALID_GOLD


def test_hostile_nesting_is_a_format_error():
    assert grade("Action: f\nAction Input: " + '{"a":' * 50_000).status is GradeStatus.FORMAT_ERROR
    assert grade("f(" * 5000).status is GradeStatus.FORMAT_ERROR
