"""Mathematics: the last complete box against the gold answer."""

from __future__ import annotations

from typing import Any

from sdpo.records import Grade, GradeStatus, Prompt

from .math_answers import (
    NoAnswer,
    choice_letter,
    is_prose,
    last_boxed,
    looks_like_mathematics,
    normalize,
    plain_words,
    rational,
)
from .math_pool import AlgebraPool, AlgebraTimeout
from .result import failed, passed, ungraded

NO_BOX = "No final answer was found. Put it in \\boxed{}."
CUT_OFF = "The response was cut off before its final answer."
LONGEST_ANSWER = 2000  # characters given to the algebra


class MathGrader:
    """Raises math_pool.AlgebraFault when the algebra cannot run at all."""

    def __init__(self, pool: AlgebraPool, reveal_gold: bool = False) -> None:
        self.pool = pool
        self.reveal_gold = reveal_gold

    def check(self, prompt: Prompt) -> str | None:
        gold = read_gold(prompt.ground_truth)
        if gold is None or not (looks_like_mathematics(gold) or self._gradable(gold)):
            return f"gold answer {prompt.ground_truth!r} cannot be read as mathematics"
        return None

    def _gradable(self, gold: str) -> bool:
        if rational(gold) is not None or choice_letter(gold) or plain_words(gold):
            return True
        if is_prose(gold):
            return False
        try:
            return self.pool.readable(normalize(gold))
        except AlgebraTimeout:
            return False

    def grade(self, prompt: Prompt, answer: str, truncated: bool) -> Grade:
        gold = read_gold(prompt.ground_truth)
        if gold is None:
            return ungraded(GradeStatus.INVALID_GOLD, f"gold answer {prompt.ground_truth!r}")
        try:
            given = last_boxed(answer)
        except NoAnswer:
            return failed(GradeStatus.TRUNCATED, CUT_OFF) if truncated else failed(GradeStatus.FORMAT_ERROR, NO_BOX)
        verdict = self.equal(gold, given)
        if verdict is None:
            return ungraded(GradeStatus.INVALID_GOLD, f"gold answer {prompt.ground_truth!r}")
        if verdict:
            return passed()
        reveal = f" The correct answer is {gold}." if self.reveal_gold else ""
        return failed(GradeStatus.WRONG, f"Wrong answer: the final answer is not correct.{reveal}")

    def equal(self, gold: str, given: str) -> bool | None:
        """None: the gold answer cannot be read. Exact comparisons first; the algebra decides the rest."""
        if not normalize(given):
            return False
        if normalize(given).replace(" ", "") == normalize(gold).replace(" ", "") and not is_prose(gold):
            return True
        gold_number, given_number = rational(gold), rational(given)
        if gold_number is not None and given_number is not None:
            return gold_number == given_number
        gold_letter = choice_letter(gold)
        if gold_letter:
            given_letter = choice_letter(given)
            if given_letter:
                return gold_letter == given_letter
        words = plain_words(gold)
        if words:
            return normalize(given).lower() == words
        if is_prose(gold):
            return None
        return self._algebra(gold, gold_number is not None or bool(gold_letter), given)

    def _algebra(self, gold: str, gold_is_known: bool, given: str) -> bool | None:
        if len(given) > LONGEST_ANSWER:
            return False
        try:
            if self.pool.equal(normalize(gold), normalize(given)):
                return True
        except AlgebraTimeout:
            return False  # an answer that cannot be evaluated in time is not an answer
        return False if gold_is_known or self._gradable(gold) else None


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
