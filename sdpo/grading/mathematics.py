"""Mathematics: the last complete box, or the form that the row asks for, against the gold answer."""

from __future__ import annotations

import re
from typing import Any

from sdpo.data.boxed import NoAnswer, last_boxed
from sdpo.records import Grade, GradeStatus, Prompt

from .math_objects import Leaf, Text, Value
from .math_pool import AlgebraPool, AlgebraTimeout
from .math_reading import read, trimmed
from .math_spelling import Items, NoValue, Unreadable, tree
from .result import failed, passed, ungraded

NO_ANSWER = "No final answer was found. {}"
BOX = "Put it in \\boxed{}."
HASHES = "####"
# Forms beside the box, which count in rows that speak of them: what finds them, and what to do.
FORMS = {
    HASHES: (re.compile(r"####([^\n#]*+)"), 'Put it behind "####".'),
    "Answer:": (re.compile(r"(?i)\banswer:([^\n]*+)"), 'Put it on a last line that begins with "Answer:".'),
}
CUT_OFF = "The response was cut off before its final answer."
NOT_READ = "cannot be read as mathematics: write it as LaTeX, words within \\text{}"
NO_VALUE = "has no value: it divides by zero, or asks a function for what it does not have"
MAX_ANSWER = 2000  # characters that are read as mathematics


class MathGrader:
    """Raises math_pool.AlgebraFault when the algebra cannot run at all."""

    def __init__(self, pool: AlgebraPool, reveal_gold: bool = False) -> None:
        self.pool = pool
        self.reveal_gold = reveal_gold

    def check(self, prompt: Prompt) -> str | None:
        fault = gold_fault(read_gold(prompt.ground_truth))
        return f"gold answer {prompt.ground_truth!r} {fault}" if fault else None

    def grade(self, prompt: Prompt, answer: str, truncated: bool) -> Grade:
        gold = read_gold(prompt.ground_truth)
        fault = gold_fault(gold)
        if gold is None or fault:
            return ungraded(GradeStatus.INVALID_GOLD, f"gold answer {prompt.ground_truth!r} {fault}")
        forms = forms_of(prompt)
        try:
            given = final_answer(answer, forms, truncated)
        except NoAnswer:
            if truncated:
                return failed(GradeStatus.TRUNCATED, CUT_OFF)
            return failed(GradeStatus.FORMAT_ERROR, NO_ANSWER.format(FORMS[forms[0]][1] if forms else BOX))
        equal = self.equal(gold, given)
        if equal is None:
            return ungraded(GradeStatus.INVALID_GOLD, f"gold answer {gold!r} {NO_VALUE}")
        if equal:
            return passed()
        reveal = f" The correct answer is {gold}." if self.reveal_gold else ""
        return failed(GradeStatus.WRONG, f"Wrong answer: the final answer is not correct.{reveal}")

    def equal(self, gold: str, given: str) -> bool | None:
        """The same text, or plain numbers, need no algebra. None: the gold answer has no value."""
        if len(given) > MAX_ANSWER or len(gold) > MAX_ANSWER:
            return given == gold
        (ours, one), (theirs, other) = _read(gold), _read(given)
        if not ours or not theirs:
            return False
        if ours == theirs or isinstance(one, Unreadable) or isinstance(other, Unreadable):
            return ours == theirs
        if isinstance(one, Leaf) and isinstance(other, Leaf) and None not in (one.exact, other.exact):
            return one.exact == other.exact
        try:
            return self.pool.equal(gold, given)
        except AlgebraTimeout:
            return False  # an answer that cannot be evaluated in time is not an answer


def gold_fault(gold: str | None) -> str | None:
    """Why a gold answer cannot be one: it is running text, or divides by zero. What is not read as mathematics is
    compared by its spelling."""
    if gold is None or len(gold) > MAX_ANSWER:
        return NOT_READ if gold is None else None
    items, value = _read(gold)
    if isinstance(value, NoValue):
        return NO_VALUE
    text = isinstance(value, Text) and " " in value.words and "\\" not in gold
    return NOT_READ if text or not items else None


def _read(text: str) -> tuple[Items, Value | Unreadable]:
    """The tokens of a text, none where its braces do not match, and what they say."""
    items: Items = ()
    try:
        items = trimmed(tree(text))
        return items, read(text)
    except Unreadable as error:
        return items, error


def forms_of(prompt: Prompt) -> list[str]:
    """The forms that the question asks for, or the gold answer has."""
    texts = [str(message.get("content", "")) for message in prompt.messages]
    texts += [prompt.ground_truth] if isinstance(prompt.ground_truth, str) else []
    return [form for form in FORMS if any(form in text for text in texts)]


def final_answer(response: str, forms: list[str], truncated: bool = False) -> str:
    """The last box, or what stands behind the last mark of one of the forms, whichever comes last. NoAnswer: nothing,
    or the response was cut off while it was written."""
    marked = [m for form in forms for m in FORMS[form][0].finditer(response) if _is_answer(m[1].strip(" *$."))]
    last = max(marked, key=lambda match: match.start(), default=None)
    if last is None or "\\boxed" in response[last.start() :]:
        return last_boxed(response)
    if truncated and last.end() == len(response):
        raise NoAnswer("cut off")
    return last[1].strip(" *\r\t").removesuffix(".")


def _is_answer(text: str) -> bool:
    """Not a heading, which in Markdown begins with the same mark."""
    return bool(text) and (not text[0].isalpha() or " " not in text or "=" in text)


def read_gold(truth: Any) -> str | None:
    """Text or a number; of a worked solution what stands behind "####", or in its last box."""
    if isinstance(truth, bool) or truth is None:
        return None
    if isinstance(truth, (int, float)):
        return repr(truth)
    if not isinstance(truth, str) or not truth.strip():
        return None
    if HASHES in truth:
        return truth.rpartition(HASHES)[2].strip().partition("\n")[0] or None
    try:
        return last_boxed(truth) if "\\boxed" in truth else truth.strip()
    except NoAnswer:
        return None
