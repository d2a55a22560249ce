"""Tool calls as the models of each family write them: which format a response is in, and who reads it."""

from __future__ import annotations

import contextlib
import importlib.util
import json
import logging
import re
from collections.abc import Iterable
from pathlib import Path
from typing import Any

from .math_pool import AlgebraPool, AlgebraProcess, AlgebraTimeout
from .tool_calls import DECODER, Call, MalformedCall, extract_calls, from_json

WORKER = Path(__file__).with_name("vllm_calls.py")
HARD_SECONDS = 10.0  # the process itself stops after half a second
LONGEST = 200_000  # characters
logger = logging.getLogger(__name__)

# What cannot be mistaken in a text -> vLLM's parser. Bodies in JSON or Python need none (`tool_calls.WRAPPERS`).
FORMATS: tuple[tuple[str, str], ...] = (
    (r"<seed:tool_call>", "seed_oss"),
    (r"<function=[^\s<>=]{1,200}>\s*+\{", "none"),
    (r"<function=[^\s<>]", "qwen3_xml"),
    (r"<function_calls>\s*+<invoke\s", "minimax_m2"),
    (r"<tool_sep(?::[\w-]+)?>", "hy_v3"),
    (r"<tool_call>\s*+[\w.-]++\s*+(?:<arg_key>|</tool_call>)", "glm45"),
    (r"<\|tool_calls?_(?:section_)?begin\|>", "kimi_k2"),
    (r"\[TOOL_CALLS\]\s*+[^\s\[{]", "mistral"),
    (r"<｜tool▁call▁begin｜>function<｜tool▁sep｜>", "deepseek_v3"),
    (r"<｜tool▁call▁begin｜>", "deepseek_v31"),
    (r"<｜DSML｜function_calls>", "deepseek_v32"),
    (r"<｜DSML｜tool_calls>", "deepseek_v4"),
    (r"<｜DSML｜ calls>", "deepseek_v41"),
    (r"<dots_function_call>", "dots"),
    (r"<start_function_call>", "functiongemma"),
    (r"<\|tool_call>", "gemma4"),
    (r"<\|function_call\|>|function call<\|role_sep\|>", "gigachat3"),
    (r"<\|content_invoke_tool_json\|>", "inkling"),
    (r"<ifm\|tool_call>\s*+[^\s{]", "k2_horizon"),
    (r"<\|open\|>\s*+call\s", "kimi_k3"),
    (r"<minimax:tool_call>", "minimax_m2"),
    (r"\]<\]minimax\[>\[", "minimax_m3"),
    (r"<atem:invoke", "muse_glimmer"),
    (r"<steptml:invoke", "step3"),
    (r"<function name=", "minicpm5"),
    (r"<\|tools_prefix\|>", "apertus"),
)
# First what each begins with, so that the other places of a text, nearly all, cost nothing.
FORMAT = re.compile(rf"(?=[<\[\]]|function call<)(?:{'|'.join(f'({pattern})' for pattern, _ in FORMATS)})")
# Where a call begins (group 1) and ends, in the formats whose arguments are not one JSON object.
CALL_MARK = re.compile(
    r"(<function=|<function name=|<(?:seed:|ifm\|)?tool_call(?::[\w-]+)?>|<(?:｜DSML｜ ?|atem:|steptml:)?invoke\b"
    r"|<start_function_call>|<\|tool_call>|<\|open\|>\s*+call\s|<\|tools_prefix\|>)"
    r"|</function>|</(?:ifm\|)?tool_call(?::[\w-]+)?>|</(?:｜DSML｜ ?|atem:|steptml:)?invoke>|<end_function_call>"
    r"|<tool_call\|>|<\|close\|>\s*+call\b|<\|tools_suffix\|>"
)
# Formats without types: "3" is a number where the tool's schema says so.
UNTYPED = frozenset(
    re.findall(
        r"\w+",
        """dots functiongemma gemma4 glm45 glm47 hy_v3 hy_v4 k2_horizon ling3 mimo minicpm5 minimax_m2 minimax_m3
    poolside_v1 qwen3_coder qwen3_xml seed_oss step3 step3p5""",
    )
)
# Anthropic's calls are MiniMax's with other marks around them.
ANTHROPIC = re.compile(r"(?<=</)function_calls(?=>)|(?<=<)function_calls(?=>)")
# `call:name{key:value}`: JSON but for bare words, and marks for the quotes of texts. vLLM's parsers lose numbers.
GEMMA = frozenset({"functiongemma", "gemma4"})
GEMMA_CALL = re.compile(r"(?:<start_function_call>|<\|tool_call>)\s*+(?:call:([^\s{]{1,200})\s*+(?=\{))?")
GEMMA_QUOTE = re.compile(r'<escape>|<\|"\|>')
GEMMA_WORD = re.compile(r'"(?:[^"\\]|\\.)*+"|[^{}\[\],:]++', re.DOTALL)
OLD_MISTRAL = re.compile(r"\[TOOL_CALLS\]\s*+[\[{]")  # a JSON list, which vLLM's parser does not read any more
READ_HERE = frozenset({"none", "openai", "cohere_command3", "cohere_command4"})  # the latter three are stubs in vLLM
JSON_TYPES = {bool: "boolean", int: "integer", float: "number", str: "string", list: "array", dict: "object"}


class CallProcess(AlgebraProcess):
    """vLLM's parsers in a process of their own; not thread-safe."""

    first = {"parser": "hermes", "text": "", "tools": None}
    start_seconds = 300.0  # of CPU time; importing vLLM's parsers takes ten
    kept = ("PATH", "LD_LIBRARY_PATH", "HOME", "TMPDIR")
    variables = {"OMP_NUM_THREADS": "1", "CUDA_VISIBLE_DEVICES": "", "VLLM_NO_USAGE_STATS": "1", "HF_HUB_OFFLINE": "1"}

    def __init__(self) -> None:
        super().__init__(WORKER)


class CallReader:
    """`parser`: auto (by the marks in the response), none (without vLLM), or one of vLLM's, which then reads alone.
    Thread-safe; the process starts with the first response that needs it."""

    def __init__(self, parser: str = "auto") -> None:
        self.parser = parser
        self._pool = AlgebraPool(1, HARD_SECONDS, CallProcess)
        self._installed = importlib.util.find_spec("vllm") is not None

    def read(self, answer: str, tools: Any, gold: list[Call], truncated: bool) -> list[Call]:
        """The calls of a response, in order; MalformedCall when one cannot be read. AlgebraFault when the process
        cannot be started."""
        parser = format_of(answer) if self.parser == "auto" else self.parser
        if parser is None or parser in READ_HERE or (parser == "mistral" and OLD_MISTRAL.search(answer)):
            return extract_calls(answer)
        schemas = schemas_of(tools, gold, parser)
        if parser in GEMMA:
            calls = _from_gemma(answer, schemas)
        elif not self._installed:
            logger.warning("tool calls in the format of %s cannot be read without vLLM", parser)
            return extract_calls(answer)
        elif len(answer) > LONGEST:
            raise MalformedCall(f"The response is longer than {LONGEST:,} characters.")
        else:
            if parser == "minimax_m2" and "<minimax:tool_call>" not in answer:
                answer = ANTHROPIC.sub("minimax:tool_call", answer)
            calls = [Call(name, _arguments(text)) for name, text in self._ask(parser, answer, schemas)]
        if truncated and calls and not _closed(answer):
            raise MalformedCall("The last tool call is not complete.")
        return calls

    def _ask(self, parser: str, text: str, schemas: list[dict[str, Any]]) -> list[list[str]]:
        try:
            result = self._pool.ask({"parser": parser, "text": text, "tools": schemas or None})
        except AlgebraTimeout:
            raise MalformedCall("The tool call cannot be read in time.") from None
        if "fault" in result:
            raise MalformedCall(f"The tool call cannot be read ({result['fault']}).")
        return result["calls"]

    def close(self) -> None:
        self._pool.close()


def _from_gemma(answer: str, schemas: list[dict[str, Any]]) -> list[Call]:
    marks = list(GEMMA_CALL.finditer(answer))
    ends = [*(mark.start() for mark in marks[1:]), len(answer)]
    calls = []
    for mark, end in zip(marks, ends):
        parts = GEMMA_QUOTE.split(answer[mark.end() : end])
        text = "".join(json.dumps(p) if i % 2 else GEMMA_WORD.sub(_json_word, p) for i, p in enumerate(parts))
        try:
            arguments = DECODER.raw_decode(text)[0]
        except (ValueError, RecursionError):
            arguments = None
        if not mark[1] or not isinstance(arguments, dict):
            raise MalformedCall("The tool call cannot be read.")
        calls.append(Call(mark[1], {key: _typed(schemas, mark[1], key, value) for key, value in arguments.items()}))
    return calls


def _json_word(match: re.Match[str]) -> str:
    """A number, a constant or JSON text as it is; a bare word as a text."""
    word = match[0].strip()
    try:
        if word:
            DECODER.decode(word)
        return word
    except ValueError:
        return json.dumps(word)


def _typed(schemas: list[dict[str, Any]], name: str, key: str, value: Any) -> Any:
    """A text where the tool wants something else is what it says: `days:<escape>3<escape>`."""
    found = [schema["function"] for schema in schemas if isinstance(schema["function"], dict)]
    for parameters in (function.get("parameters") for function in found if function.get("name") == name):
        properties = parameters.get("properties") if isinstance(parameters, dict) else None
        wanted = properties.get(key) if isinstance(properties, dict) else None
        types = wanted.get("type") if isinstance(wanted, dict) else None
        if isinstance(value, str) and types and "string" not in types:
            with contextlib.suppress(MalformedCall):
                return from_json(value)
    return value


def _arguments(text: str) -> dict[str, Any]:
    arguments = from_json(text) if text.strip() else None
    if arguments is None:
        return {}
    if not isinstance(arguments, dict):
        raise MalformedCall("The arguments of a tool call have to form a JSON object.")
    return arguments


def _closed(answer: str) -> bool:
    """Whether the last call has its end. The parsers, made for streams, also read one that was cut off."""
    opened = closed = -1
    for match in CALL_MARK.finditer(answer):
        opened, closed = (match.start(), closed) if match[1] else (opened, match.start())
    return opened <= closed


def format_of(answer: str) -> str | None:
    """The vLLM parser for the first mark in the text that only its format has."""
    match = FORMAT.search(answer)
    return FORMATS[match.lastindex - 1][1] if match and match.lastindex else None


def _one_or_all(types: set[str]) -> str | list[str]:
    return next(iter(types)) if len(types) == 1 else sorted(types)


def schemas_of(tools: Any, gold: Iterable[Call], parser: str) -> list[dict[str, Any]]:
    """The row's tools in OpenAI's form. Where it has none for a tool of the gold answer and the format has no types,
    the types are those of the gold arguments."""
    given = [tool for tool in tools or () if isinstance(tool, dict)]
    found = [tool if "function" in tool else {"type": "function", "function": tool} for tool in given]
    known = {tool["function"].get("name") for tool in found if isinstance(tool["function"], dict)}
    typed: dict[str, dict[str, set[str]]] = {}
    for call in gold if parser in UNTYPED else ():
        for key, value in call.arguments.items():
            typed.setdefault(call.name, {}).setdefault(key, set()).add(JSON_TYPES.get(type(value), "null"))
        typed.setdefault(call.name, {})
    for name in typed.keys() - known:
        properties = {key: {"type": _one_or_all(types)} for key, types in typed[name].items()}
        function = {"name": name, "parameters": {"type": "object", "properties": properties}}
        found.append({"type": "function", "function": function})
    return found
