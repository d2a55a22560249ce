"""Mathematics: the last complete box against the gold answer."""

from __future__ import annotations

from typing import Any

from sdpo.data.boxed import NoAnswer, last_boxed
from sdpo.records import Grade, GradeStatus, Prompt

from .math_objects import Leaf, Text, Value
from .math_pool import AlgebraPool, AlgebraTimeout
from .math_reading import read, trimmed
from .math_spelling import Items, Unreadable, tree
from .result import failed, passed, ungraded

NO_BOX = "No final answer was found. Put it in \\boxed{}."
CUT_OFF = "The response was cut off before its final answer."
MAX_ANSWER = 2000  # characters that are read as mathematics


class MathGrader:
    """Raises math_pool.AlgebraFault when the algebra cannot run at all."""

    def __init__(self, pool: AlgebraPool, reveal_gold: bool = False) -> None:
        self.pool = pool
        self.reveal_gold = reveal_gold

    def check(self, prompt: Prompt) -> str | None:
        gold = read_gold(prompt.ground_truth)
        if gold is None or not is_usable(gold):
            return f"gold answer {prompt.ground_truth!r} cannot be read as mathematics"
        return None

    def grade(self, prompt: Prompt, answer: str, truncated: bool) -> Grade:
        gold = read_gold(prompt.ground_truth)
        if gold is None or not is_usable(gold):
            return ungraded(GradeStatus.INVALID_GOLD, f"gold answer {prompt.ground_truth!r}")
        try:
            given = last_boxed(answer)
        except NoAnswer:
            return failed(GradeStatus.TRUNCATED, CUT_OFF) if truncated else failed(GradeStatus.FORMAT_ERROR, NO_BOX)
        if self.equal(gold, given):
            return passed()
        reveal = f" The correct answer is {gold}." if self.reveal_gold else ""
        return failed(GradeStatus.WRONG, f"Wrong answer: the final answer is not correct.{reveal}")

    def equal(self, gold: str, given: str) -> bool:
        """The same text, or plain numbers, need no algebra."""
        if len(given) > MAX_ANSWER or len(gold) > MAX_ANSWER:
            return given == gold
        ours, theirs = _spelled(gold), _spelled(given)
        if not ours or not theirs:
            return False
        one, other = _value(gold), _value(given)
        if ours == theirs:
            return True
        if one is None or other is None:
            return False
        if isinstance(one, Leaf) and isinstance(other, Leaf) and None not in (one.exact, other.exact):
            return one.exact == other.exact
        try:
            return self.pool.equal(gold, given)
        except AlgebraTimeout:
            return False  # an answer that cannot be evaluated in time is not an answer


def is_usable(gold: str) -> bool:
    """Anything but running text. What is not read as mathematics is compared by its spelling."""
    if len(gold) > MAX_ANSWER:
        return True
    value = _value(gold)
    return bool(_spelled(gold)) and not (isinstance(value, Text) and " " in value.words and "\\" not in gold)


def _spelled(text: str) -> Items | None:
    try:
        return trimmed(tree(text))
    except Unreadable:
        return None


def _value(text: str) -> Value | None:
    try:
        return read(text)
    except Unreadable:
        return None


def read_gold(truth: Any) -> str | None:
    """Text or a number; a box around it is taken off."""
    if isinstance(truth, bool) or truth is None:
        return None
    if isinstance(truth, (int, float)):
        return repr(truth)
    if not isinstance(truth, str) or not truth.strip():
        return None
    try:
        return last_boxed(truth) if "\\boxed" in truth else truth.strip()
    except NoAnswer:
        return None
