"""No text that a model can write makes the search for its answer more than linear.

Growth is measured, not time: eight times the text may cost three times as much as it should, plus a constant.
"""

from __future__ import annotations

import contextlib
import json
import random
import time
import tokenize
from collections.abc import Callable

import pytest

from sdpo.data.boxed import NoAnswer, last_boxed
from sdpo.data.long_integers import in_pieces
from sdpo.embedded.grader import answer_text
from sdpo.grading.backends.http import fault_of
from sdpo.grading.backends.remote import read_answers
from sdpo.grading.backends.reply import read_object
from sdpo.grading.backends.retry import TransportFault
from sdpo.grading.call_formats import OLD_MISTRAL, _closed, _from_gemma, format_of
from sdpo.grading.compare import outputs_equal, values_equal
from sdpo.grading.extract import extract_code, fenced_blocks, tagged
from sdpo.grading.feedback import FeedbackOptions, clean, describe_tests, show
from sdpo.grading.judge_model import read_verdict
from sdpo.grading.math_reading import read
from sdpo.grading.math_spelling import Unreadable
from sdpo.grading.mathematics import FORMS, final_answer
from sdpo.grading.multiple_choice import extract_letter
from sdpo.grading.text_match import answer_of
from sdpo.grading.tool_calls import MalformedCall, extract_calls
from sdpo.records import GradeStatus, TestOutcome
from sdpo.sandbox.inside.frames import FrameError, decode, unpack
from sdpo.sandbox.outcome import Fault, ProgramOutcome
from sdpo.sandbox.sandbox import flavor
from sdpo.tokens.think import strip_think

SIZE, FACTOR, CONSTANT_S = 12_000, 8, 0.05

# Repeated to the size; a pair is (once at the start, repeated), a triple has an end too.
TEXTS: dict[str, tuple[str, str, str]] = {
    "backticks": ("", "`", ""),
    "backticks and a letter": ("", "`", "x`"),
    "unclosed fences": ("", "```python\n", ""),
    "fences with text": ("", "```python\nx = (\n```\n", "```python\n"),
    "fences of growing kinds": ("", "```\n~~~\n", "x"),
    "blanks after a fence": ("```python a", " ", "b\nx\n```"),
    "blanks": ("", " ", "x"),
    "newlines": ("", "\n", "x"),
    "lines of blanks": ("", " \t \n", "x"),
    "deeper and deeper lines": ("", "\n" + " \t" * 40 + "x", ""),
    "open think tags": ("", "<think>", ""),
    "closed think tags": ("", "</think> ", ""),
    "open tags of many families": ("", "<think><reasoning>[THINK]<|channel|>", ""),
    "tags of long names": ("", "<a_think_b-", ">x"),
    "one long name of a tag": ("<", "a_think_", ">x"),
    "think tags in inline code": ("`", "`<think>`", "x"),
    "blanks in a tag": ("<think", " ", ">x"),
    "open channels": ("", "<|channel|>analysis", "<|message|>x"),
    "channels with blanks": ("", "<|channel|>analysis ", "x"),
    "closed channels": ("", "<|channel|>final<|message|>", "x"),
    "starts of a turn": ("", "<|start|>  ", "x"),
    "addresses": ("", "to=", "x<|"),
    "Granite without an end": ("Here is my thought process:", "Here is my ", "x"),
    "closed responses": ("</think><response>", "</response> ", "x"),
    "nested think tags": ("<think>" * 500, "</think>", "<think>"),
    "open answer tags": ("", "<answer>", ""),
    "pairs of answer tags": ("", "<answer></answer>", ""),
    "answer of stops": ("<answer>A", ".", "</answer>"),
    "answer of letters": ("<answer>A", ", B", "</answer>"),
    "answer of blanks": ("<answer>A", " ", "x</answer>"),
    "answer of stars": ("<answer>", "*", "A?</answer>"),
    "doubts": ("", "not the answer is B ", "x"),
    "letters that are": ("", "B is the ", "right"),
    "I choose": ("", "I choose ", "x"),
    "answer is therefore": ("answer ", "therefore ", "?"),
    "letter, then blanks": ("<answer>B", " ", "is not</answer>"),
    "answer is, then blanks": ("the answer is", " ", "?"),
    "answer, then colons": ("answer", ":", "?"),
    "answer is is is": ("answer ", "is", "?"),
    "answer is option": ("answer is option", " ", "*"),
    "final answers": ("", "final answer ", ""),
    "final, then blanks": ("final", " ", "answe"),
    "open boxes": ("", r"\boxed{", ""),
    "nested boxes": ("", r"\boxed{", "1" + "}" * 9000),
    "empty boxes": ("", r"\boxed{}", ""),
    "box of blanks": (r"\boxed{", " ", "?}"),
    "box of text and blanks": (r"\boxed{\text{", " ", "?}}"),
    "boxes without braces": ("", r"\boxed 1", "x"),
    "box of one long number": (r"\boxed ", "1", "x"),
    "boxes and spaces": ("", r"\boxed ", "B"),
    "fences behind text": ("", "Code: ```python\nx = 1```\n", "x"),
    "fences before text": ("", "```python\nx = 1\n``` Done\n", "x"),
    "bullet of quotes before a fence": ("- ", "> ", "```"),
    "quotes before a fence": ("", "> ", "```"),
    "bullets before a fence": ("", "- ", "```"),
    "fences in quotes": ("", "> ```python\n> x = (\n", "> ```"),
    "indented blocks": ("", "    ```\n    (\n    ```\n", ""),
    "info string of marks": ("```{", "#a ", ".python}\nx\n```"),
    "open brackets before a letter": ("answer: ", "(", "A"),
    "open brackets and blanks": ("answer: ", "( ", "A)"),
    "brackets behind a letter": ("answer: (A", ".)", "x"),
    "styles": ("answer: ", r"\text{", "B"),
    "colours": ("answer: ", r"\color{", "B"),
    "answers of different letters": ("", "answer is A or ", "B"),
    "last line of signs": ("x\n", "> # ", "B!"),
    "box of separators": (r"\boxed ", "1,", "x"),
    "boxed thousands": (r"\boxed{1", ",234", "5}"),
    "boxed groups of digits": (r"\boxed{", "1,2345", "}"),
    "boxed texts": (r"\boxed{", r"\text{a}", "}"),
    "boxed open texts": (r"\boxed{", r"\text{", "}"),
    "boxed fractions": (r"\boxed{", r"\frac 1 2", "}"),
    "boxed spaces": (r"\boxed{", r"\ \,\;", "}"),
    "boxed letters": (r"\boxed{", "a b ", "1}"),
    "boxed minus": (r"\boxed{", "-", "1}"),
    "joined boxes": ("", r"\boxed{1} and ", r"\boxed{2}"),
    "boxed groups": (r"\boxed{", "{1}", "}"),
    "boxed pluses and minuses": (r"\boxed{", r"\pm 1,", "1}"),
    "boxed lists": (r"\boxed{", "1,", "1}"),
    "boxed pairs": (r"\boxed{", "(1,2),", "1}"),
    "boxed brackets": (r"\boxed{", "(", ")" * 9000 + "}"),
    "boxed bars": (r"\boxed{", "|x", "}"),
    "boxed relations": (r"\boxed{", "x=", "1}"),
    "boxed ratios": (r"\boxed{", "1:", "1}"),
    "boxed unions": (r"\boxed{", r"(1,2)\cup", "(1,2)}"),
    "boxed units": (r"\boxed{1", r"\text{ cm}", "}"),
    "boxed words": (r"\boxed{1", " apples", "}"),
    "boxed millions": (r"\boxed{1", " million", "}"),
    "boxed numbers and units": (r"\boxed{", r"1\text{ cm}", "}"),
    "boxed colours": (r"\boxed{", r"\color{red}", "1}"),
    "boxed options": (r"\boxed{", r"\color[", "1}"),
    "boxed styles": (r"\boxed{", r"\mathbf", "{1}}"),
    "boxed rows": (r"\boxed{\begin{matrix}", r"1 & 2 \\", r"\end{matrix}}"),
    "boxed environments": (r"\boxed{", r"\begin{matrix}", "}"),
    "boxed dots over digits": (r"\boxed{0.", r"\dot{1}", "}"),
    "boxed roots": (r"\boxed{", "√", "2}"),
    "boxed superscripts": (r"\boxed{x", "²", "}"),
    "boxed fractions in one sign": (r"\boxed{", "½", "}"),
    "boxed overlines": (r"\boxed{0.", "3\u0305", "}"),
    "boxed dollars": (r"\boxed{", "$", "1}"),
    "boxed products": (r"\boxed{", "2x", "}"),
    "boxed exponents": (r"\boxed{2", "^{2", "}" * 9000 + "}"),
    "braces": ("", "{", "}"),
    "backslashes": ("", "\\", ""),
    "action of blanks": ("Action: a", " ", "b\nAction Input: {}"),
    "action of stars": ("Action: a", "*", "b\nAction Input: {}"),
    "actions without input": ("", "Action: a\n", "Action Input: {}"),
    "action lines": ("", "Action: a\nAction Input: {}\n", ""),
    "marks before an action": ("", "-", "Action"),
    "open tool calls": ("", "<tool_call>", ""),
    "tool call of brackets": ("<tool_call>", "[", "</tool_call>"),
    "tool call of objects": ("<tool_call>", '{"a":', "</tool_call>"),
    "tool calls": ("", '<tool_call>{"name": "f"}</tool_call>', ""),
    "tool call of digits": ('<tool_call>{"name": "f", "arguments": {"a": ', "9", "}}</tool_call>"),
    "open wrappers": ("", "<|tool_call|>", ""),
    "wrappers of objects": ("<|python_tag|>", "{}; ", "{"),
    "wrappers in wrappers": ("", "<tool_calls><tool_call>", "{}"),
    "old Mistral": ("", "[TOOL_CALLS] ", "[{"),
    "addresses of calls": ("", "to=functions.f ", "<|message|>{}"),
    "open messages to tools": ("", "to=f<|message|>", "{}"),
    "one long address": ("to=", "a.", "<|message|>{}"),
    "XML functions": ("", "<function=f>", "</function>"),
    "calls in XML and JSON": ("", "<function=f>{", ""),
    "Gemma's calls": ("", "<start_function_call>call:f{", ""),
    "Gemma's quotes": ("<|tool_call>call:f{a:", '"\\', ""),
    "Gemma's words": ("<|tool_call>call:f{a:", '"a:', "}<tool_call|>"),
    "GLM names": ("<tool_call>", "a", "<arg_key>"),
    "GLM calls": ("", "<tool_call>a ", "<arg_key>"),
    "GLM blanks": ("<tool_call>a", " ", "<arg>"),
    "Kimi's spaces": ("", "<|open|>  ", "call x"),
    "lines of Python calls": ("<function_calls>", "f(a=1)\n", "</function_calls>"),
    "open brackets": ("", "[", ""),
    "python call": ("f(a=", "(", ")"),
    "dots": ("", "a.", "("),
    "chat tokens": ("", "<|", ""),
    "decimals": ("1.5 ", "1", "."),
    "exponents": ("1e", "9", ""),
    "digits": ("", "1", "x"),
    "digits, then a point": ("", "1", ".x"),
    "digits of an exponent": ("1.5e", "1", "x"),
    "points": ("1", ".", ""),
    "signs": ("", "+-", "1"),
    "exponents of exponents": ("1", "e1", ""),
    "many decimals": ("", "1.5 ", ""),
    "lines of decimals": ("", "1.5\n", ""),
    "carriage returns": ("", "\r", "\n"),
    "odd line ends": ("", "\u2028\x85\x0b", ""),
    "JSON lists": ("", "[", "]"),
    "JSON objects": ("", '{"a":', "1"),
    "JSON digits": ("[", "9", "]"),
    "JSON escapes": ('"', "\\u005c", '"'),
    "tracebacks": ("", "Traceback (most recent call last)\n", "E: x"),
    "colons": ("Traceback (most recent call last)\nE", ": ", ""),
    "numpy": ("", "numpy_", "numpy"),
    "surrogates": ("", "\ud800", ""),
}


def boxed(text: str) -> None:
    try:
        given = last_boxed(text)
    except NoAnswer:
        given = text
    with contextlib.suppress(NoAnswer):
        final_answer(text, [*FORMS])
    with contextlib.suppress(Unreadable):  # the grader gives it 2,000 characters at most
        read(given[: len(given) // 8], loose=True)


def decimals_for(text: str) -> str:
    return "\n".join(" ".join("0.5" for _ in line.split()) for line in text.split("\n"))


def outcome_of(text: str) -> TestOutcome:
    return TestOutcome(GradeStatus.WRONG, text, text, text, text)


def printed(text: str) -> ProgramOutcome:
    return ProgramOutcome(GradeStatus.OK, f"=={text}\n=={text}\n=.{text}".encode("utf-8", "replace"), b"", 0)


def reply(text: str) -> None:
    data = text.encode("utf-8", "replace")
    with contextlib.suppress(TransportFault):
        read_object(data)
    with contextlib.suppress(TransportFault):
        read_object(b'{"a": ' + data + b"}")
    with contextlib.suppress(ValueError, TypeError, KeyError, RecursionError):
        read_verdict(text)


def pieces(text: str) -> None:
    with contextlib.suppress(SyntaxError, tokenize.TokenError):
        in_pieces(text)


def calls(text: str) -> None:
    with contextlib.suppress(MalformedCall):
        extract_calls(text)
    with contextlib.suppress(MalformedCall):
        _from_gemma(text, [])


SEARCHES: dict[str, Callable[[str], object]] = {
    "code": extract_code,
    "code of a response that was cut off": lambda text: extract_code(text, truncated=True),
    "blocks": fenced_blocks,
    "tags": lambda text: tagged(text, "answer"),
    "thinking": strip_think,
    "mathematics": boxed,
    "multiple choice": lambda text: extract_letter(text, 4),
    "tool calls": calls,
    "format of tool calls": lambda text: (format_of(text), _closed(text), OLD_MISTRAL.search(text)),
    "text behind an opening mark": lambda text: strip_think(text, header="<think>"),
    "Granite": lambda text: strip_think(text, parser="granite"),
    "text": answer_of,
    "feedback": clean,
    "standard output": lambda text: outputs_equal(text, "1.5 2.5"),
    "standard output, a decimal for each word": lambda text: outputs_equal(text, decimals_for(text)),
    "standard output, decimals in the text": lambda text: outputs_equal(decimals_for(text), text),
    "feedback of tests": lambda text: describe_tests([outcome_of(text)] * 3, FeedbackOptions()),
    "a returned text": lambda text: (show(text), values_equal(text, "1"), values_equal([text], [1.5])),
    "a description of an exception": lambda text: Fault.from_message({"type": text, "message": text, "frames": [text]}),
    "a traceback": fault_of,
    "answers of a service": lambda text: read_answers(printed(text), "=", 3),
    "a reply of a service": lambda text: reply(text),
    "a program": flavor,
    "an answer to the built-in task": answer_text,
    "tests": lambda text: pieces(text),
}


def seconds(search: Callable[[str], object], text: str) -> float:
    start = time.thread_time()
    search(text)
    return time.thread_time() - start


def too_slow(search: Callable[[str], object], text: Callable[[int], str]) -> tuple[float, float] | None:
    """Seconds for a text and for one eight times as long, where that is too much three times in a row: what else runs
    on the machine slows a thread down, too."""
    for _ in range(3):
        large = seconds(search, text(FACTOR * SIZE))
        if large <= CONSTANT_S:
            return None
        small = min(seconds(search, text(SIZE)) for _ in range(2))
        if large <= 3 * FACTOR * small + CONSTANT_S:
            return None
    return small, large


def text_of(name: str, size: int) -> str:
    start, middle, end = TEXTS[name]
    return start + middle * (size // len(middle)) + end


@pytest.mark.parametrize("search", SEARCHES)
def test_eight_times_the_text_costs_about_eight_times_as_much(search):
    found = {name: too_slow(SEARCHES[search], lambda size, name=name: text_of(name, size)) for name in TEXTS}
    assert {name: times for name, times in found.items() if times} == {}


OF_OUTPUT = [name for name in SEARCHES if "output" in name or "service" in name or "returned" in name]


@pytest.mark.parametrize("search", OF_OUTPUT)
def test_drawn_shapes_cost_in_proportion_too(search):
    """What a pattern can be lured into is a beginning, something repeated, and an end that does not fit."""
    draw, found = random.Random(11), {}
    for _ in range(40):
        start, middle, end = ("".join(draw.choices('019.eE+-x_ \n\t{["', k=k)) for k in (2, draw.randint(1, 3), 2))
        times = too_slow(SEARCHES[search], lambda size, s=start, m=middle, e=end: s + m * (size // len(m)) + e)
        if times:
            found[start, middle, end] = times
    assert found == {}


def test_the_measure_sees_a_quadratic_search():
    def quadratic(text: str) -> int:
        return sum(len(text[i:].lstrip(" ")) for i in range(0, len(text), 64))

    assert too_slow(quadratic, lambda size: text_of("blanks", size))


NUMBERS = {
    "colliding integers": lambda n: {"s": [{"i": hex(k * ((1 << 61) - 1))} for k in range(n // 20)]},
    "a mapping of colliding integers": lambda n: {"d": [[{"i": hex(k * ((1 << 61) - 1))}, 1] for k in range(n // 20)]},
    "one long integer": lambda n: {"i": "0x" + "f" * n},
    "one long fraction": lambda n: {"F": ["0x1" + "0" * (n // 2), "0x" + "f" * (n // 2)]},
    "one long decimal": lambda n: {"D": "9" * n},
    "decimals of the length that is read": lambda n: [{"D": "9" * 15_000}] * (n // 15_000),
    "decimals beside integers of the same hash": lambda n: {"s": [{"D": "9" * (n // 2)}, {"i": "0x" + "f" * (n // 2)}]},
    "digits without quotes": lambda n: [10**4000] * (n // 4000),
    "an opaque value": lambda n: {"o": [[]] * (n // 3)},
    "a huge exponent": lambda n: [{"D": "1e999999999"}] * (n // 20),
    "many lists": lambda n: [[]] * (n // 2),
    "a deep list": lambda n: json.loads("[" * 90 + "1," * (n // 2) + "1" + "]" * 90),
    "strings": lambda n: ["\u2028\\"] * (n // 9),
}


@pytest.mark.parametrize("name", NUMBERS)
def test_a_hostile_value_is_read_in_linear_time(name):
    def read(text: str) -> None:
        with contextlib.suppress(FrameError):
            value = decode(unpack(text.encode()))
            show(value)
            values_equal(value, 10**5000), values_equal(value, 1.5), values_equal([value], [[1, 2]])

    assert not too_slow(read, lambda size: json.dumps(NUMBERS[name](size)))
