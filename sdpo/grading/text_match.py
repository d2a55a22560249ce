"""Answers that are a text: equal to the gold text, or matched by a regular expression."""

from __future__ import annotations

import string
from dataclasses import dataclass
from typing import Any

import regex

from sdpo.records import Grade, GradeStatus, Prompt

from .extract import tagged
from .result import failed, passed, ungraded

_NO_PUNCTUATION = str.maketrans("", "", string.punctuation)
MATCH_SECONDS = 1.0  # patterns come with the data, the text comes from a model: together they may explode


@dataclass(frozen=True)
class Target:
    text: str
    is_pattern: bool = False
    ignore_case: bool = False
    spellings: frozenset[str] = frozenset()  # any of them, written as `folded` does


def folded(text: str) -> str:
    """As answers to open questions are compared: without case, punctuation and articles."""
    return " ".join(word for word in text.lower().translate(_NO_PUNCTUATION).split() if word not in ("a", "an", "the"))


def read_gold(truth: Any) -> Target | None:
    """ "text", {"exact": "text"} or {"regex": "pattern"}, the last two with "ignore_case"; {"target": [texts]}."""
    if isinstance(truth, str):
        return Target(truth) if truth.strip() else None
    if not isinstance(truth, dict):
        return None
    ignore_case = bool(truth.get("ignore_case", False))
    targets = truth.get("target")
    texts = [text for text in (targets if isinstance(targets, list) else [targets]) if isinstance(text, str)]
    if spellings := frozenset(filter(None, map(folded, texts))):
        return Target(texts[0], spellings=spellings)
    if isinstance(truth.get("exact"), str) and truth["exact"].strip():
        return Target(truth["exact"], False, ignore_case)
    if isinstance(truth.get("regex"), str):
        try:
            regex.compile(truth["regex"])
        except regex.error:
            return None
        return Target(truth["regex"], True, ignore_case)
    return None


def answer_of(response: str) -> str:
    """The last tagged answer, else the whole response; white space collapsed."""
    answers = tagged(response, "answer")
    return " ".join((answers[-1] if answers else response).split())


class TextGrader:
    def check(self, prompt: Prompt) -> str | None:
        return None if read_gold(prompt.ground_truth) else f"gold text {prompt.ground_truth!r} cannot be used"

    def grade(self, prompt: Prompt, answer: str, truncated: bool) -> Grade:
        gold = read_gold(prompt.ground_truth)
        if gold is None:
            return ungraded(GradeStatus.INVALID_GOLD, "gold text cannot be used")
        given = answer_of(answer)
        if not given:
            return failed(
                GradeStatus.TRUNCATED if truncated else GradeStatus.FORMAT_ERROR, "The response holds no answer."
            )
        if self._matches(gold, given):
            return passed()
        return failed(GradeStatus.WRONG, "Wrong answer.")

    def _matches(self, gold: Target, given: str) -> bool:
        if gold.spellings:
            return folded(given) in gold.spellings
        if not gold.is_pattern:
            wanted = " ".join(gold.text.split())
            return given.lower() == wanted.lower() if gold.ignore_case else given == wanted
        try:
            flags = regex.IGNORECASE if gold.ignore_case else 0
            return regex.fullmatch(gold.text, given, flags=flags, timeout=MATCH_SECONDS) is not None
        except TimeoutError:
            return False
