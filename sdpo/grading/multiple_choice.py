"""Multiple choice: one letter."""

from __future__ import annotations

import itertools
import re
from typing import Any

from sdpo.records import Grade, GradeStatus, Prompt

from .extract import tagged
from .result import failed, passed, ungraded

# Possessive (*+) wherever two repetitions of the same character meet: a model may write a million blanks.
BOXED = re.compile(r"\\boxed\s*+\{\s*+(?:\\text\s*+\{\s*+)?\(?([A-Za-z])\)?\.?\s*+\}?\s*+\}")
STATED = re.compile(
    r"(?:final\s+answer|correct\s+(?:answer|option|choice)|answer)\s*+(?:is|:|=)+\s*+(?:option|choice)?\s*+"
    r"[*_`]*+\(?([A-Za-z])\)?[*_`]*+(?=[\s.,;:!)]|$)",
    re.IGNORECASE,
)
NO_ANSWER = "No answer was found in the response. Give the letter of the chosen option as <answer>LETTER</answer>."
CUT_OFF = "The response was cut off before its answer."


def letters(choices: int) -> str:
    return "ABCDEFGHIJKLMNOPQRSTUVWXYZ"[:choices]


def read_gold(truth: Any) -> tuple[str, int] | None:
    """(letter, number of choices); None when the row's answer cannot be one of its choices.

    Takes "B", {"answer": "B", "choices": 4}, {"answer": 1, "choices": ["w", "x", "y", "z"]} (index from 0).
    """
    choices: Any = 4
    if isinstance(truth, dict):
        choices = truth.get("choices", 4)
        truth = truth.get("answer")
    count = len(choices) if isinstance(choices, list) else choices
    if isinstance(count, bool) or not isinstance(count, int) or not 2 <= count <= 26:
        return None
    if isinstance(truth, int) and not isinstance(truth, bool):
        return (letters(count)[truth], count) if 0 <= truth < count else None
    if not isinstance(truth, str):
        return None
    letter = truth.strip().strip("().").upper()
    if len(letter) == 1 and letter in letters(26) and not isinstance(choices, list) and letter not in letters(count):
        count = max(count, letters(26).index(letter) + 1) if not isinstance(choices, int) else count
    return (letter, count) if len(letter) == 1 and letter in letters(count) else None


def extract_letter(answer: str, choices: int, tags_required: bool = False) -> str | None:
    """The chosen letter in upper case, None when there is none. The last tagged answer decides; without tags a clear
    statement ("the answer is C", "\\boxed{C}", a last line that is only a letter) is taken, so an article or the
    pronoun I is not."""
    answers = tagged(answer, "answer")
    if answers:
        return from_tag(answers[-1], choices)
    if tags_required or "<answer>" in answer.lower():
        return None
    allowed = letters(choices)
    stated = [m for pattern in (BOXED, STATED) for m in pattern.finditer(answer)]
    last = max(stated, key=lambda m: m.start(), default=None)
    if last is not None and last[1].upper() in allowed and not _is_word(last, answer):
        return last[1].upper()
    lines = [line.strip().strip("*_`").strip() for line in answer.strip().splitlines() if line.strip()]
    alone = re.fullmatch(r"\(?([A-Z])\)?\.?", lines[-1]) if lines else None
    return alone[1] if alone and alone[1] in allowed else None


def _is_word(match: re.Match[str], text: str) -> bool:
    """ "the answer is a matter of taste": a lower-case letter followed by another word is an article."""
    return match[1] in "aI" and bool(re.match(r"\)?[*_`]*\s+[a-z]", text[match.end(1) :]))


def from_tag(content: str, choices: int) -> str | None:
    """B, b, (B), B., **B**, "B. mitochondria", "B: text"; "ABCD" or "A or B" is no answer."""
    text = content.strip().strip("*_`$ \n\t")
    boxed = BOXED.fullmatch(text)
    if boxed:
        text = boxed[1]
    text = re.sub(r"^(?:option|choice|answer)\s*:?\s+", "", text, flags=re.IGNORECASE)
    match = re.match(r"\(\s*([A-Za-z])\s*\)|([A-Za-z])(?=\s*[.:),\]\-\n]|\s*$)|([B-HJ-Zb-z])(?=\s+\S)", text)
    if not match:
        return None
    letter = next(group for group in match.groups() if group).upper()
    if _more_letters(text[match.end() :]):
        return None
    return letter if letter in letters(choices) else None


def _more_letters(rest: str) -> bool:
    """Whether nothing but further capital letters follows: "A or B", "A, B, C"."""
    words = [word[0] for word in itertools.islice(re.finditer(r"\w+", rest), 60)]
    named = [word for word in words if word not in ("or", "and")]
    return bool(named) and all(len(word) == 1 and "A" <= word <= "Z" for word in named)


class MultipleChoiceGrader:
    """`tags_required`: only <answer> counts. `reveal_gold`: may the feedback name the right letter."""

    def __init__(self, tags_required: bool = False, reveal_gold: bool = False) -> None:
        self.tags_required = tags_required
        self.reveal_gold = reveal_gold

    def check(self, prompt: Prompt) -> str | None:
        if read_gold(prompt.ground_truth) is None:
            return f"gold answer {prompt.ground_truth!r} is not a letter of the choices"
        return None

    def grade(self, prompt: Prompt, answer: str, truncated: bool) -> Grade:
        gold = read_gold(prompt.ground_truth)
        if gold is None:
            return ungraded(GradeStatus.INVALID_GOLD, f"gold answer {prompt.ground_truth!r}")
        letter = extract_letter(answer, gold[1], self.tags_required)
        if letter is None:
            return failed(GradeStatus.TRUNCATED, CUT_OFF) if truncated else failed(GradeStatus.FORMAT_ERROR, NO_ANSWER)
        if letter == gold[0]:
            return passed()
        reveal = f" The correct option is {gold[0]}." if self.reveal_gold else ""
        return failed(GradeStatus.WRONG, f"Wrong answer: option {letter} is not correct.{reveal}")
