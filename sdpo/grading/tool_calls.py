"""Tool calls: an ordered list of (name, arguments), compared call by call."""

from __future__ import annotations

import ast
import json
import math
import re
from dataclasses import dataclass, field
from decimal import Decimal
from typing import Any, Protocol

from sdpo.records import Grade, GradeStatus, Prompt
from sdpo.sandbox import python_syntax

from .extract import SOURCE_NAME, fenced_blocks
from .feedback import clean
from .result import failed, passed, ungraded

# Around JSON or Python calls. A mark without an end reaches to the next one, or to the end of the text.
WRAPPERS = {
    "<tool_call>": "</tool_call>",
    "<longcat_tool_call>": "</longcat_tool_call>",
    "<ifm|tool_call>": "</ifm|tool_call>",
    "<tool_calls>": "</tool_calls>",
    "<function_calls>": "</function_calls>",
    "<tools>": "</tools>",
    "<|tool_call_start|>": "<|tool_call_end|>",
    "<|START_ACTION|>": "<|END_ACTION|>",
    "<|action_start|><|plugin|>": "<|action_end|>",
    "<|python_start|>": "<|python_end|>",
    "<|python_tag|>": "",
    "<|tool_call|>": "",
    "<|tool_calls|>": "",
    "<function_call>": "",
    "[TOOL_CALLS]": "",
    "functools": "",
}
_ENDS = frozenset(filter(None, WRAPPERS.values()))
_WRAPPER = re.compile(
    "|".join(re.escape(mark) for mark in (*WRAPPERS, *_ENDS) if mark != "functools") + r"|functools(?=\[)"
)
# What may end a body whose mark needs no end.
_LAX_END = re.compile(r"</function_call>|<\|/tool_calls?\|>|\[/TOOL_CALLS\]|<\|eo[mt]_id\|>")
# gpt-oss: a message addressed to a tool, in either order of channel and address. Llama 3.1: <function=name>{...}.
_HARMONY = re.compile(
    r"to=(?:functions\.)?([\w.-]{1,200})(?:<\|channel\|>\w+)?\s*+(?:<\|constrain\|>)?\w*+\s*+<\|message\|>"
    r"|<function=([^\s<>=]{1,200})>\s*+(?=\{)|<\|(?:call|end|return|start|channel)\|>|</function>"
)
ACTION = re.compile(r"^[ \t>*_-]*Action[ \t]*:(.*)$", re.MULTILINE)
ACTION_INPUT = re.compile(r"^[ \t>*_-]*Action[ _]Input[ \t]*:[ \t*_`]*", re.MULTILINE)
NAME_KEYS = ("name", "Action", "action", "tool_name", "function")
ARGUMENT_KEYS = ("arguments", "parameters", "args", "Action_Input", "action_input")
NUMBERS = (int, float, Decimal)
JSON_NAMES = {"true": True, "false": False, "null": None}
CALL_LANGUAGES = frozenset({"", "json", "tool_call", "tool_code", "python"})
NO_CALL = "No tool call was found in the response."
CUT_OFF = "The response was cut off before its tool call was complete."


@dataclass(frozen=True)
class Call:
    name: str
    arguments: dict[str, Any] = field(default_factory=dict)


class MalformedCall(Exception):
    """A call that cannot be read; the message is for the teacher."""


def read_gold(truth: Any) -> list[Call] | None:
    """A list of {"name", "arguments"} (or {"Action", "Action_Input"}), or JSON text of one; None when it cannot be
    read."""
    if isinstance(truth, str):
        try:
            truth = from_json(truth)
        except MalformedCall:
            return None
    truth = _listed(truth)
    if not isinstance(truth, list) or not truth:
        return None
    try:
        return [to_call(item) for item in truth]
    except MalformedCall:
        return None


def _listed(data: Any) -> Any:
    """A list of calls; of a message of OpenAI's those that it makes."""
    if isinstance(data, dict) and isinstance(data.get("tool_calls"), list) and "name" not in data:
        return data["tool_calls"]
    return data if isinstance(data, list) else [data]


def to_call(item: Any) -> Call:
    """One call in any of the usual shapes; arguments may be JSON text."""
    if isinstance(item, dict) and isinstance(item.get("function"), dict):
        item = item["function"]
    if not isinstance(item, dict):
        raise MalformedCall("A tool call has to be a JSON object with name and arguments.")
    name = next((item[key] for key in NAME_KEYS if key in item), None)
    arguments = next((item[key] for key in ARGUMENT_KEYS if item.get(key) is not None), None)
    if isinstance(arguments, str):
        arguments = from_json(arguments) if arguments.strip() else None
    if arguments is None:  # null, missing and "" are calls without arguments
        arguments = {}
    if not isinstance(name, str) or not name.strip() or not isinstance(arguments, dict):
        raise MalformedCall("A tool call has to have a name, and arguments that form a JSON object.")
    return Call(name.strip(), arguments)


def from_json(text: str) -> Any:
    """Numbers of any length, exactly. Of equal keys the last one counts, as for every JSON reader of Python."""
    try:
        return DECODER.decode(text)
    except (ValueError, RecursionError):
        raise MalformedCall("The arguments of a tool call are not valid JSON.") from None


def _integer(digits: str) -> int | Decimal:
    """Python refuses to read integers of more than 4,300 digits."""
    return int(digits) if len(digits) < 4000 else Decimal(digits)


def _decimal(digits: str) -> float | Decimal:
    """A float, unless it is too large for one: 1e400 is not 1e999."""
    value = float(digits)
    try:
        return Decimal(digits) if math.isinf(value) else value
    except ArithmeticError:  # an exponent of twenty digits
        return value


def extract_calls(answer: str) -> list[Call]:
    """The calls of a response, in order: bodies in the marks of a family, else Action / Action Input lines, else JSON
    or `name(a=1)` that is the whole answer or its last fenced block. Empty when there is none; MalformedCall when one
    cannot be read."""
    built_in = "<|python_tag|>" in answer
    calls = _from_harmony(answer) or [call for body in _bodies(answer) for call in _from_text(body.strip(), built_in)]
    if calls:
        return calls
    if ACTION_INPUT.search(answer):
        return _from_action_lines(answer)
    blocks = [content for language, content in fenced_blocks(answer) if language in CALL_LANGUAGES]
    text = (blocks[-1] if blocks else answer).strip()
    if text.startswith(("{", "[")) or re.match(r"[\w.-]+\(", text):
        return _from_text(text)
    return []


def _bodies(answer: str) -> list[str]:
    """What stands between the marks of the kind that comes first."""
    bodies, kind, start = [], "", None
    outer = ("<tool_calls>", "<tools>") if "<tool_call>" in answer else ()
    for match in _WRAPPER.finditer(answer):
        mark = match[0]
        if mark in outer:
            continue
        kind = kind or (mark if mark in WRAPPERS else "")
        if mark == kind:
            if start is not None and not WRAPPERS[kind]:
                bodies.append(answer[start : match.start()])
            start = match.end()
        elif kind and mark == WRAPPERS[kind] and start is not None:
            bodies.append(answer[start : match.start()])
            start = None
    if start is not None and not WRAPPERS[kind]:
        bodies.append(answer[start:])
    return bodies if WRAPPERS.get(kind) else [_LAX_END.split(body, 1)[0] for body in bodies]


def _from_harmony(answer: str) -> list[Call]:
    calls, name, start = [], None, 0
    for match in _HARMONY.finditer(answer):
        if name is not None:
            calls.append(to_call({"name": name, "arguments": answer[start : match.start()].strip()}))
        name, start = match[1] or match[2], match.end()
    if name is not None:
        calls.append(to_call({"name": name, "arguments": answer[start:].strip()}))
    return calls


def _from_text(text: str, built_in: bool = False) -> list[Call]:
    if text.startswith(("{", "[{")) or re.match(r"\[\s*\{", text):
        return [to_call(item) for data in _values(text) for item in _listed(data)]
    return _from_python(text, built_in)


def _values(text: str) -> list[Any]:
    """JSON values behind each other, with nothing but blanks, commas and semicolons between."""
    values, at = [], 0
    while at < len(text):
        try:
            value, at = DECODER.raw_decode(text, at)
        except (ValueError, RecursionError):
            raise MalformedCall("The tool call is not valid JSON.") from None
        values.append(value)
        at = SEPARATORS.match(text, at).end()  # type: ignore[union-attr]
    return values


def _from_python(text: str, built_in: bool) -> list[Call]:
    """`f(a=1)`, one a line, or `[f(a=1), g(b="x")]`, with literal keyword arguments; parsed, never evaluated.
    `built_in`: Llama's form for tools of its own, `f.call(a=1)`, is another way to write it."""
    try:
        body = python_syntax.parse(text[:20_000], SOURCE_NAME).body
        lines = [line.value if isinstance(line, ast.Expr) else line for line in body]
        nodes = [node for line in lines for node in (line.elts if isinstance(line, ast.List) else [line])]
        calls = []
        for node in nodes:
            if not isinstance(node, ast.Call) or node.args:
                raise MalformedCall("A tool call has to name its arguments.")
            arguments = {str(k.arg): ast.literal_eval(_JsonNames().visit(k.value)) for k in node.keywords}
            name = ast.unparse(node.func)
            calls.append(Call(name.removesuffix(".call") if built_in else name, arguments))
        if not calls:
            raise MalformedCall("The tool call is empty.")
        return calls
    except (SyntaxError, ValueError, MemoryError, RecursionError, TypeError):
        raise MalformedCall("The tool call cannot be read.") from None


DECODER = json.JSONDecoder(parse_int=_integer, parse_float=_decimal)
SEPARATORS = re.compile(r"[\s,;]*+")


class _JsonNames(ast.NodeTransformer):
    """true, false and null, as JSON writes them."""

    def visit_Name(self, node: ast.Name) -> ast.expr:
        return ast.Constant(JSON_NAMES[node.id]) if node.id in JSON_NAMES else node


def _from_action_lines(answer: str) -> list[Call]:
    names = [match for match in ACTION.finditer(answer) if action_name(match)]
    calls = []
    for index, match in enumerate(names):
        end = names[index + 1].start() if index + 1 < len(names) else len(answer)
        given = ACTION_INPUT.search(answer, match.end(), end)
        if given is None:
            raise MalformedCall("An Action has no Action Input.")
        calls.append(Call(action_name(match), _leading_object(answer[given.end() : end].strip())))
    return calls


def action_name(match: re.Match[str]) -> str:
    return match[1].strip(" \t*_`")


def _leading_object(text: str) -> dict[str, Any]:
    """The JSON object a text starts with; an empty text is a call without arguments."""
    text = re.sub(r"^```(?:json)?\s*", "", text)
    if not text or text.lower().startswith(("none", "null", "n/a")):
        return {}
    try:
        value, _ = DECODER.raw_decode(text)
    except (ValueError, RecursionError):
        raise MalformedCall("The Action Input is not valid JSON.") from None
    if isinstance(value, str):
        value = from_json(value)
    if not isinstance(value, dict):
        raise MalformedCall("The Action Input has to be a JSON object.")
    return value


def json_equal(a: Any, b: Any) -> bool:
    """Key order does not matter; 1 equals 1.0; 1 is neither "1" nor true. Nesting may be as deep as can be read."""
    pairs = [(a, b)]
    while pairs:
        a, b = pairs.pop()
        if isinstance(a, bool) or isinstance(b, bool):
            equal = a is b
        elif isinstance(a, NUMBERS) and isinstance(b, NUMBERS):
            equal = a == b or (a != a and b != b)  # NaN is what the gold answer says, too
        elif type(a) is not type(b):
            equal = False
        elif isinstance(a, dict):
            equal = a.keys() == b.keys()
            pairs += [(a[key], b[key]) for key in a] if equal else []
        elif isinstance(a, list):
            equal = len(a) == len(b)
            pairs += zip(a, b)
        else:
            equal = a == b
        if not equal:
            return False
    return True


def defaults_of(tools: Any, name: str) -> dict[str, Any]:
    """Default values that a tool's schema states."""
    for tool in tools or ():
        schema = tool.get("function", tool) if isinstance(tool, dict) else {}
        if schema.get("name") == name:
            properties = (schema.get("parameters") or {}).get("properties") or {}
            return {
                key: spec["default"] for key, spec in properties.items() if isinstance(spec, dict) and "default" in spec
            }
    return {}


def difference(given: list[Call], gold: list[Call], tools: Any) -> str:
    """What is wrong, without the right answer; "" when nothing is."""
    for index, (call, wanted) in enumerate(zip(given, gold), 1):
        if call.name != wanted.name:
            return f"Call {index}: {clean(call.name, 80)!r} is not the right tool."
        defaults = defaults_of(tools, call.name)
        for key in call.arguments:
            if key not in wanted.arguments:
                if key in defaults and json_equal(call.arguments[key], defaults[key]):
                    continue
                return f"Call {index}: the argument {clean(key, 80)!r} does not belong there."
            if not json_equal(call.arguments[key], wanted.arguments[key]):
                return f"Call {index}: the argument {clean(key, 80)!r} has a wrong value."
        for key, value in wanted.arguments.items():
            if key not in call.arguments and not (key in defaults and json_equal(value, defaults[key])):
                return f"Call {index}: an argument is missing."
    if len(given) != len(gold):
        return f"The response makes {len(given)} calls; {'more' if len(given) < len(gold) else 'fewer'} are needed."
    return ""


def shown(calls: list[Call]) -> str:
    try:
        return json.dumps([vars(call) for call in calls], default=str)
    except (ValueError, RecursionError):  # integers of thousands of digits, deep nesting
        return "too long to be shown"


class CallReading(Protocol):
    """Reads the calls of a response; see `call_formats.CallReader`, which knows more formats than this module."""

    def read(self, answer: str, tools: Any, gold: list[Call], truncated: bool) -> list[Call]: ...


class ToolCallGrader:
    """`reader`: without one, calls are read by `extract_calls`."""

    def __init__(self, reveal_gold: bool = False, reader: CallReading | None = None) -> None:
        self.reveal_gold = reveal_gold
        self.reader = reader

    def check(self, prompt: Prompt) -> str | None:
        return None if read_gold(prompt.ground_truth) else "gold tool calls cannot be read"

    def grade(self, prompt: Prompt, answer: str, truncated: bool) -> Grade:
        gold = read_gold(prompt.ground_truth)
        if gold is None:
            return ungraded(GradeStatus.INVALID_GOLD, "gold tool calls cannot be read")
        try:
            reader = self.reader
            calls = reader.read(answer, prompt.tools, gold, truncated) if reader else extract_calls(answer)
        except MalformedCall as error:
            return failed(GradeStatus.TRUNCATED, CUT_OFF) if truncated else failed(GradeStatus.FORMAT_ERROR, str(error))
        if not calls:
            return failed(GradeStatus.TRUNCATED, CUT_OFF) if truncated else failed(GradeStatus.FORMAT_ERROR, NO_CALL)
        text = difference(calls, gold, prompt.tools)
        if not text:
            return passed()
        reveal = f" The right calls are {shown(gold)}." if self.reveal_gold else ""
        return failed(GradeStatus.WRONG, f"Wrong answer. {text}{reveal}")
