"""What the grader says to the teacher about a failed program. Program output is untrusted text on its way into a
model's context: control characters, lone surrogates, direction marks and chat tokens are broken up."""

from __future__ import annotations

import re
import unicodedata
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from sdpo.records import GradeStatus, TestOutcome
from sdpo.sandbox.inside.frames import Opaque

CHAT_TOKEN = re.compile(
    r"<(?=[|｜/]|(?:s|bos|eos|pad|unk|think|start_of_turn|end_of_turn|begin_of_text|tool_call|im_)\b)|\[(?=/?INST\])"
)
TOO_LONG = "a number too long to show"
CUT = "\n... (cut)"
HEADLINES = {
    GradeStatus.WRONG: "Wrong answer",
    GradeStatus.RUNTIME_ERROR: "Runtime error",
    GradeStatus.TIMEOUT: "Time limit exceeded",
    GradeStatus.OUTPUT_LIMIT: "Output limit exceeded",
    GradeStatus.MEMORY_LIMIT: "Memory limit exceeded",
    GradeStatus.FORMAT_ERROR: "Format error",
}
PLAIN_TEMPLATE = "{headline}\nInput: {input}\nExpected: {expected}\nGot: {got}"


@dataclass(frozen=True)
class FeedbackOptions:
    """`style`: plain, or leetcode (Last Executed Input / Output / Expected sections)."""

    style: str = "plain"
    max_chars: int = 2000
    public_only: bool = False  # say nothing about hidden tests
    field_chars: int = 400  # longest input, expected value, answer or error of one test
    template: str = PLAIN_TEMPLATE  # of a wrong case in the plain style


def show(value: Any) -> str:
    """repr() of a value that a program returned or a row expects."""
    if isinstance(value, Opaque):
        return value.text
    try:
        return repr(value)
    except ValueError:  # Python refuses to spell integers of thousands of digits
        return TOO_LONG
    except Exception as error:  # plain data has odd corners: a Counter sorts its counts, and NaN has no order
        return f"a {type(value).__name__} that cannot be shown ({type(error).__name__})"


def clean(text: str, limit: int | None = None) -> str:
    """Safe to show a model: see the module's first lines. Cuts at `limit` characters and says so."""
    if limit is not None and len(text) > limit:
        text = text[:limit] + "... (cut)"
    return CHAT_TOKEN.sub(lambda m: m[0] + " ", "".join(map(_clean_character, text)))


def _clean_character(character: str) -> str:
    if character in "\n\t" or " " <= character <= "~":
        return character
    kind = unicodedata.category(character)
    if kind in ("Cc", "Cs", "Cf", "Co", "Cn", "Zl", "Zp"):
        return "\ufffd" if character != "\r" else ""
    return character


def describe_tests(outcomes: Sequence[TestOutcome], options: FeedbackOptions) -> str:
    """The first runtime error, else the first limit, else the two shortest wrong cases."""
    shown = [outcome for outcome in outcomes if not (options.public_only and outcome.hidden)]
    failed = [outcome for outcome in shown if outcome.status is not GradeStatus.OK]
    if not failed:
        return ""
    for group in (
        (GradeStatus.RUNTIME_ERROR,),
        (GradeStatus.TIMEOUT, GradeStatus.MEMORY_LIMIT, GradeStatus.OUTPUT_LIMIT),
    ):
        first = next((outcome for outcome in failed if outcome.status in group), None)
        if first is not None:
            return capped(render(first, options), options.max_chars)
    wrong = sorted(failed, key=lambda o: len(o.input) + len(o.expected) + len(o.got))[:2]
    return capped("\n\n".join(render(outcome, options) for outcome in wrong), options.max_chars)


def render(outcome: TestOutcome, options: FeedbackOptions) -> str:
    fields = {name: clean(getattr(outcome, name), options.field_chars) for name in ("input", "expected", "got")}
    error = clean(outcome.error, options.field_chars * 2)
    headline = HEADLINES.get(outcome.status, "Failed")
    if options.style == "leetcode":
        return _leetcode(outcome.status, headline, fields, error)
    if outcome.status is GradeStatus.WRONG:
        if not fields["input"] and error:
            return error
        return options.template.format(headline=headline, **fields) + (f"\n{error}" if error else "")
    if outcome.status in (GradeStatus.TIMEOUT, GradeStatus.OUTPUT_LIMIT):
        headline += f" ({error})" if error else ""
        error = ""
    parts = [headline, f"Input: {fields['input']}" if fields["input"] else "", error]
    return "\n".join(part for part in parts if part)


def _leetcode(status: GradeStatus, headline: str, fields: dict[str, str], error: str) -> str:
    if status is GradeStatus.WRONG:
        return (
            f"{headline}\n\nInput\n\n{fields['input']}\n\nOutput\n\n{fields['got']}\n\nExpected\n\n{fields['expected']}"
        )
    parts = [headline, error, f"Last Executed Input\n\n{fields['input']}" if fields["input"] else ""]
    return "\n\n".join(part for part in parts if part)


def capped(text: str, limit: int) -> str:
    return text if len(text) <= limit else text[: max(0, limit - len(CUT))] + CUT
