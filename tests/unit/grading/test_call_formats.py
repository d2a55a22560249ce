"""Tool calls in the formats of every family for which vLLM has a parser."""

from __future__ import annotations

import copy
import json
import re
import threading
import time

import pytest
from hypothesis import given
from hypothesis import strategies as st

from sdpo.config.parsers import TOOL_PARSERS
from sdpo.grading import call_formats
from sdpo.grading.call_formats import READ_HERE, CallReader, format_of
from sdpo.grading.tool_calls import ToolCallGrader
from sdpo.records import GradeStatus, Prompt
from sdpo.tokens.response import ResponseText
from sdpo.tokens.think import strip_think

pytest.importorskip("vllm")

GOLD = [{"name": "get_weather", "arguments": {"city": "Oslo", "days": 3}}]
A = json.dumps(GOLD[0]["arguments"])
J = json.dumps(GOLD[0])
P = '[get_weather(city="Oslo", days=3)]'
XML = (
    "<tool_call>\n<function=get_weather>\n<parameter=city>\nOslo\n</parameter>\n<parameter=days>\n3\n</parameter>\n"
    "</function>\n</tool_call>"
)
GLM = (
    "<tool_call>get_weather\n<arg_key>city</arg_key>\n<arg_value>Oslo</arg_value>\n<arg_key>days</arg_key>\n"
    "<arg_value>3</arg_value>\n</tool_call>"
)
INVOKE = (
    '{0}\n<{2}invoke name="get_weather">\n<{2}parameter name="city"{3}>Oslo</{2}parameter>\n'
    '<{2}parameter name="days"{4}>3</{2}parameter>\n</{2}invoke>\n{1}'
)
DSML = {"3": ' string="true"', "4": ' string="false"'}


def invoke(begin: str, end: str, prefix: str = "", typed: bool = False) -> str:
    return INVOKE.format(begin, end, prefix, *(DSML.values() if typed else ("", "")))


K3 = (
    '<|open|>tools<|sep|><|open|>call tool="get_weather" index="1"<|sep|><|open|>argument key="city" type="string"'
    '<|sep|>Oslo<|close|>argument<|sep|><|open|>argument key="days" type="number"<|sep|>3<|close|>argument<|sep|>'
    "<|close|>call<|sep|><|close|>tools<|sep|>"
)
DEEPSEEK = "<｜tool▁calls▁begin｜><｜tool▁call▁begin｜>{}<｜tool▁call▁end｜><｜tool▁calls▁end｜>"
COMMAND = f'<|START_ACTION|>[{{"tool_call_id": "0", "tool_name": "get_weather", "parameters": {A}}}]<|END_ACTION|>'
# vLLM's parser -> the call as its models write it.
NATIVE = {
    "apertus": f'<|tools_prefix|>[{{"get_weather": {A}}}]<|tools_suffix|>',
    "cohere_command3": COMMAND,
    "cohere_command4": COMMAND,
    "deepseek_v3": DEEPSEEK.format(f"function<｜tool▁sep｜>get_weather\n```json\n{A}\n```"),
    "deepseek_v31": DEEPSEEK.format(f"get_weather<｜tool▁sep｜>{A}"),
    "deepseek_v32": invoke("<｜DSML｜function_calls>", "</｜DSML｜function_calls>", "｜DSML｜", True),
    "deepseek_v4": invoke("<｜DSML｜tool_calls>", "</｜DSML｜tool_calls>", "｜DSML｜", True),
    "deepseek_v41": invoke("<｜DSML｜ calls>", "</｜DSML｜ calls>", "｜DSML｜ ", True),
    "dots": invoke("<dots_function_call>", "</dots_function_call>"),
    "ernie45": f"<tool_call>\n{J}\n</tool_call>",
    "functiongemma": "<start_function_call>call:get_weather{city:<escape>Oslo<escape>,days:<escape>3<escape>}"
    "<end_function_call>",
    "gemma4": '<|tool_call>call:get_weather{city:<|"|>Oslo<|"|>,days:3}<tool_call|>',
    "gigachat3": f"<|function_call|>{J}",
    "glm45": GLM,
    "glm47": GLM.replace("\n", ""),
    "granite": f"<|tool_call|>[{J}]",
    "granite-20b-fc": f"<function_call> {J}",
    "granite4": f"<tool_call>\n{J}\n</tool_call>",
    "hermes": f"<tool_call>\n{J}\n</tool_call>",
    "hunyuan_a13b": f"<tool_calls>[{J}]</tool_calls>",
    "hy_v3": f"<tool_calls>\n{GLM.replace('get_weather', 'get_weather<tool_sep>')}\n</tool_calls>",
    "hy_v4": f"<tool_calls>{GLM}</tool_calls>".replace("\n", ""),
    "inkling": f'<|message_model|><|content_invoke_tool_json|>{{"name":"get_weather","args":{A}}}<|end_message|>',
    "internlm": f'<|action_start|><|plugin|>{{"name": "get_weather", "parameters": {A}}}<|action_end|>',
    "jamba": f"<tool_calls>[{J}]</tool_calls>",
    "k2_horizon": re.sub("<(/?)(?=tool|arg)", r"<\1ifm|", f"<tool_calls>{GLM}</tool_calls>"),
    "kimi_k2": "<|tool_calls_section_begin|><|tool_call_begin|>functions.get_weather:0<|tool_call_argument_begin|>"
    f"{A}<|tool_call_end|><|tool_calls_section_end|>",
    "kimi_k3": K3,
    "lfm2": f"<|tool_call_start|>{P}<|tool_call_end|>",
    "ling3": GLM,
    "llama3_json": f'<|python_tag|>{{"name": "get_weather", "parameters": {A}}}',
    "llama4_json": f'{{"name": "get_weather", "parameters": {A}}}',
    "llama4_pythonic": P,
    "longcat": f"<longcat_tool_call>\n{J}\n</longcat_tool_call>",
    "mimo": XML,
    "minicpm5": '<function name="get_weather"><param name="city">Oslo</param><param name="days">3</param></function>',
    "minimax_m2": invoke("<minimax:tool_call>", "</minimax:tool_call>"),
    "mistral": f"[TOOL_CALLS]get_weather[ARGS]{A}",
    "muse_glimmer": "<|start|>assistant to=get_weather<|message|>"
    + invoke("<atem:function_calls>", "</atem:function_calls><|eom|>", "atem:"),
    "olmo3": f"<function_calls>\n{P[1:-1]}\n</function_calls>",
    "openai": f"<|channel|>commentary to=functions.get_weather <|constrain|>json<|message|>{A}<|call|>",
    "phi4_mini_json": f"functools[{J}]",
    "poolside_v1": GLM,
    "pythonic": P,
    "qwen3_coder": XML,
    "qwen3_xml": XML,
    "seed_oss": XML.replace("tool_call>", "seed:tool_call>"),
    "step3": "<｜tool_calls_begin｜><｜tool_call_begin｜>function<｜tool_sep｜>"
    + invoke("", "", "steptml:").strip()
    + "<｜tool_call_end｜><｜tool_calls_end｜>",
    "step3p5": XML,
    "xlam": f"[{J}]",
}
NOT_INSTALLED = {"minimax_m3"}  # written in Rust; not in vLLM's package for CPUs
OTHERS = {  # further spellings, read without naming a parser
    "mistral, version 11": f"[TOOL_CALLS]get_weather{A}",
    "mistral, a list": f"[TOOL_CALLS] [{J}]",
    "llama 3.2": f"<|python_tag|>{P}",
    "llama 4": f"<|python_start|>{P}<|python_end|>",
    "gpt-oss, the address first": f"to=functions.get_weather<|channel|>commentary json<|message|>{A}<|call|>",
    "k2_horizon, JSON": f"<ifm|tool_calls><ifm|tool_call>{J}</ifm|tool_call></ifm|tool_calls>",
    "hermes inside tool_calls": f"<tool_calls>\n<tool_call>\n{J}\n</tool_call>\n</tool_calls>",
    "no wrapper around the XML": XML.removeprefix("<tool_call>\n").removesuffix("\n</tool_call>"),
    "functiongemma, a bare number": "<start_function_call>call:get_weather{city:<escape>Oslo<escape>,days:3}"
    "<end_function_call>",
    "functiongemma, bare words": "<start_function_call>call:get_weather{city:Oslo, days: 3}<end_function_call>",
    "llama 3.1, JSON in a function": f"<function=get_weather>{A}</function>",
    "llama 3.1, a tool of its own": f"<|python_tag|>{P[1:-1].replace('(', '.call(')}<|eom_id|>",
    "a closed function_call": f"<function_call>{J}</function_call>",
    "phi 4": f"<|tool_call|>[{J}]<|/tool_call|>",
    "tool_calls with bars": f"<|tool_calls|>[{J}]<|/tool_calls|>",
    "mistral, closed": f"[TOOL_CALLS] [{J}] [/TOOL_CALLS]",
    "tools": f"<tools>{J}</tools>",
    "tools said again": f'<tools>[{{"name": "other"}}]</tools>\n<tool_call>{J}</tool_call>',
    "openai's message": json.dumps(
        {"content": None, "tool_calls": [{"type": "function", "function": {**GOLD[0], "arguments": A}}]}
    ),
    "anthropic": invoke("<function_calls>", "</function_calls>"),
    "behind text": f"I look it up.\n\n{XML}",
}
PROPERTIES = {"city": {"type": "string"}, "days": {"type": "integer"}}
TOOL = {"name": "get_weather", "parameters": {"type": "object", "properties": PROPERTIES}}


@pytest.fixture(scope="module")
def readers():
    pool: dict[str, CallReader] = {"auto": CallReader()}
    yield lambda name: pool["auto"] if name == "auto" else _sharing(pool["auto"], name)
    pool["auto"].close()


def _sharing(reader, name):
    """A reader for a named parser that uses the process of another one."""
    named = CallReader(name)
    named._pool = reader._pool
    return named


def grade(reader, text, gold=GOLD, truncated=False, tools=None):
    return ToolCallGrader(reader=reader).grade(Prompt("p", (), "tooluse", gold, tools=tools), text, truncated)


def test_every_tool_parser_of_vllm_has_a_row_here():
    from vllm.tool_parsers import ToolParserManager

    assert set(TOOL_PARSERS) == set(ToolParserManager.list_registered()) == NATIVE.keys() | NOT_INSTALLED


@pytest.mark.parametrize("name", NATIVE)
def test_a_call_in_the_format_of_its_family_is_right_unnamed_and_named(readers, name):
    text = NATIVE[name]
    for parser in ("auto", name):
        for tools in (None, (TOOL,), ({"type": "function", "function": TOOL},)):
            assert grade(readers(parser), text, tools=tools).reward == 1.0, (parser, tools)
        assert grade(readers(parser), text.replace("Oslo", "Rome")).status is GradeStatus.WRONG
        assert grade(readers(parser), text.replace("3", "4")).reward == 0.0


@pytest.mark.parametrize("name", NATIVE)
def test_calls_survive_decoding_and_the_removal_of_reasoning(readers, chatml_tokenizer, name):
    tokenizer = copy.deepcopy(chatml_tokenizer)
    marks = set(re.findall(r"<[^<>\s=]{1,40}>|\[[A-Z_]+\]", NATIVE[name])) | {"<think>", "</think>"}
    tokenizer.add_special_tokens({"additional_special_tokens": sorted(marks)})
    ids = tokenizer.encode(f"<think>plan</think>{NATIVE[name]}<|im_end|>", add_special_tokens=False)
    assert "plan" in ResponseText(tokenizer).decode(ids)
    assert grade(readers("auto"), strip_think(ResponseText(tokenizer).decode(ids))).reward == 1.0


@pytest.mark.parametrize("name", OTHERS)
def test_other_spellings_are_read_too(readers, name):
    assert grade(readers("auto"), OTHERS[name]).reward == 1.0
    assert grade(readers("auto"), OTHERS[name].replace("Oslo", "Rome")).status is GradeStatus.WRONG


@pytest.mark.parametrize("name", [name for name in NATIVE if format_of(NATIVE[name])])
def test_a_call_that_was_cut_in_its_arguments_is_no_answer(readers, name):
    text = NATIVE[name]
    whole = grade(readers("auto"), text, truncated=True)
    assert whole.reward == 1.0
    for end in (text.index("Oslo") + 2, text.index("Oslo") + 4, text.rindex("3")):
        gold = [{"name": "get_weather", "arguments": {"city": text[text.index("Oslo") : end][:4]}}]
        assert grade(readers("auto"), text[:end], gold, truncated=True).reward == 0.0, text[:end]


def test_a_named_parser_reads_its_format_only(readers):
    assert grade(readers("qwen3_xml"), NATIVE["kimi_k2"]).status is GradeStatus.FORMAT_ERROR
    assert grade(readers("none"), NATIVE["kimi_k2"]).status is GradeStatus.FORMAT_ERROR
    assert grade(readers("none"), NATIVE["hermes"]).reward == 1.0
    assert {"openai", "cohere_command3"} <= READ_HERE


VALUES = st.one_of(
    st.integers(-(10**6), 10**6),
    st.booleans(),
    st.text(st.characters(codec="ascii", categories=("L", "N")), min_size=1),
    st.lists(st.integers(0, 9), max_size=3),
)


@given(st.dictionaries(st.sampled_from(["a", "b", "c"]), VALUES, max_size=3))
def test_untyped_formats_mean_what_the_types_of_the_gold_answer_say(readers, arguments):
    def written(value):
        return value if isinstance(value, str) else json.dumps(value)

    body = "".join(f"<parameter={key}>\n{written(value)}\n</parameter>\n" for key, value in arguments.items())
    text = f"<tool_call>\n<function=f>\n{body}</function>\n</tool_call>"
    assert grade(readers("auto"), text, [{"name": "f", "arguments": arguments}]).reward == 1.0
    other = [{"name": "f", "arguments": {**arguments, "d": 1}}]
    assert grade(readers("auto"), text, other).status is GradeStatus.WRONG


JSON = st.recursive(
    st.none()
    | st.booleans()
    | st.integers()
    | st.floats(allow_nan=False, allow_infinity=False)
    | st.text("aé1 ,:{}\"'"),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.sampled_from(["k", "l-m"]), inner, max_size=2),
    max_leaves=6,
)


@given(st.dictionaries(st.sampled_from(["a", "b_c", "d"]), JSON, max_size=3), st.booleans())
def test_every_value_of_a_gemma_call_is_read_whether_vllm_is_installed_or_not(arguments, function_gemma):
    begin, quote, end = ("<|tool_call>", '<|"|>', "<tool_call|>")
    if function_gemma:
        begin, quote, end = "<start_function_call>", "<escape>", "<end_function_call>"

    def written(value):
        if isinstance(value, dict):
            return "{" + ",".join(f"{key}:{written(item)}" for key, item in value.items()) + "}"
        if isinstance(value, list):
            return "[" + ",".join(map(written, value)) + "]"
        return quote + value + quote if isinstance(value, str) else json.dumps(value)

    reader = CallReader()
    reader._installed = False
    text = f"{begin}call:f{written(arguments)}{end}"
    assert grade(reader, f"So: {text}{text}", [{"name": "f", "arguments": arguments}] * 2).reward == 1.0
    other = [{"name": "f", "arguments": {**arguments, "e": None}}]
    assert grade(reader, text, other).status is GradeStatus.WRONG
    assert grade(reader, text[: -len(end) - 1], other).status is GradeStatus.FORMAT_ERROR


def test_a_text_that_takes_a_parser_too_long_is_no_answer_and_the_next_one_is_read_at_once(readers):
    reader = readers("auto")
    assert grade(reader, XML).reward == 1.0
    process = reader._pool._idle.queue[-1]._process.pid
    for hostile in ("<tool_call><function=f>" * 20_000, GLM[:60] + "<arg_key>" * 20_000, "<tool_call>f" * 20_000 + GLM):
        assert grade(reader, hostile).status is GradeStatus.FORMAT_ERROR
    assert grade(reader, "x" * 300_000 + XML).status is GradeStatus.FORMAT_ERROR
    assert grade(reader, XML).reward == 1.0
    assert reader._pool._idle.queue[-1]._process.pid == process  # nothing had to start again


def test_formats_that_need_no_parser_wait_for_none(readers):
    hostile = threading.Thread(target=grade, args=(readers("auto"), "<tool_call><function=f>" * 20_000))
    hostile.start()
    start = time.thread_time()
    assert grade(readers("auto"), NATIVE["hermes"]).reward == 1.0
    assert hostile.is_alive() or time.thread_time() - start < 0.5
    hostile.join()


def test_without_vllm_only_its_formats_are_lost(monkeypatch):
    monkeypatch.setattr(call_formats.importlib.util, "find_spec", lambda name: None)
    reader = CallReader()
    assert grade(reader, NATIVE["hermes"]).reward == 1.0
    assert grade(reader, NATIVE["kimi_k2"]).status is GradeStatus.FORMAT_ERROR
    assert reader._pool._idle.queue == [None]
