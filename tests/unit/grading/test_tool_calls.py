from __future__ import annotations

import json

import pytest
from hypothesis import given
from hypothesis import strategies as st

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


@pytest.mark.parametrize("arguments", ["null", '""', "{}", '"{}"', '"null"', None])
@pytest.mark.parametrize(
    "gold", [{"name": "now", "arguments": {}}, {"name": "now", "arguments": None}, {"name": "now"}]
)
def test_a_call_without_arguments_is_right_however_it_says_so(arguments, gold):
    inner = "" if arguments is None else f', "arguments": {arguments}'
    assert grade(f'<tool_call>{{"name": "now"{inner}}}</tool_call>', [gold]).reward == 1.0
    other = [{"name": "now", "arguments": {"zone": "UTC"}}]
    assert grade(f'<tool_call>{{"name": "now"{inner}}}</tool_call>', other).status is GradeStatus.WRONG


def test_arguments_may_be_json_text():
    text = json.dumps({"name": "add", "arguments": json.dumps({"a": 1, "b": 2})})
    assert grade(f"<tool_call>{text}</tool_call>", [GOLD[1]]).reward == 1.0


def test_constants_of_a_python_call_may_be_written_as_in_json():
    gold = [{"name": "f", "arguments": {"a": True, "b": [None, {"c": False}]}}]
    assert grade('[f(a=true, b=[null, {"c": false}])]', gold).reward == 1.0
    assert grade("[f(a=True, b=[None, {'c': False}])]", gold).reward == 1.0


JSON_VALUES = st.recursive(
    st.one_of(
        st.none(),
        st.booleans(),
        st.integers(),
        st.floats(),
        st.text(),
        st.integers(4200, 6000).map(lambda digits: LongInteger("7" * digits)),
    ),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=3), inner, max_size=3),
    max_leaves=6,
)


class LongInteger(str):
    """Digits that Python cannot write as an integer."""


def written(value):
    if isinstance(value, LongInteger):
        return str(value)
    if isinstance(value, list):
        return f"[{','.join(map(written, value))}]"
    if isinstance(value, dict):
        return f"{{{','.join(f'{json.dumps(key)}:{written(item)}' for key, item in value.items())}}}"
    return json.dumps(value)


@given(JSON_VALUES)
def test_every_json_value_equals_itself_and_differs_from_another(value):
    call = '[{"name": "f", "arguments": {"a": %s}}]'
    assert grade(call % written(value), call % written(value)).reward == 1.0
    assert grade(call % f"[{written(value)}]", call % written(value)).status is GradeStatus.WRONG


@pytest.mark.parametrize(
    ("given", "gold", "reward"),
    [
        ("9" * 5000, "9" * 5000, 1.0),
        ("9" * 4999 + "8", "9" * 5000, 0.0),
        ("1e400", "1e400", 1.0),
        ("1e400", "1e999", 0.0),
        ("1e99999999999999999999", "1e400", 0.0),
        ("NaN", "NaN", 1.0),
        ("NaN", "1", 0.0),
        ("Infinity", "-Infinity", 0.0),
        ('{"k": 1, "k": 2}', '{"k": 2}', 1.0),
        ("[" * 900 + "]" * 900, "[" * 900 + "]" * 900, 1.0),
        ("[" * 900 + "]" * 900, "[" * 899 + "]" * 899, 0.0),
        ("[" * 100_000 + "]" * 100_000, "1", 0.0),
        ("[" * 100_000, "1", 0.0),
    ],
)
def test_extreme_json_is_an_answer_right_or_wrong(given, gold, reward):
    call = '[{"name": "f", "arguments": {"a": %s}}]'
    assert grade(call % given, call % gold, reveal_gold=True).reward == reward


def test_a_gold_integer_of_any_length_is_compared_exactly_and_not_shown():
    gold = [{"name": "f", "arguments": {"a": 10**6000 + 1}}]
    right = '{"name": "f", "arguments": {"a": 1%s1}}' % ("0" * 5999)
    assert grade(right, gold, reveal_gold=True).reward == 1.0
    assert grade(right[:-3] + "2}}", gold, reveal_gold=True).status is GradeStatus.WRONG
