"""Multiple choice: one letter."""

from __future__ import annotations

import itertools
import re
import unicodedata
from typing import Any

from sdpo.data.boxed import BOX, DENIED, matching_braces
from sdpo.records import Grade, GradeStatus, Prompt

from .extract import tagged
from .result import failed, passed, ungraded

# What may stand around a letter and says nothing: LaTeX styles and math shifts, Markdown, quotes, HTML.
COLOUR = re.compile(r"\\(?:text)?color\s*+\{[^{}]{0,40}+\}")
WRAPPER = re.compile(
    r"\\(?:text[a-z]*+|math[a-z]*+|[mfh]box|operatorname|underline|emph|boldsymbol|bm|pmb|displaystyle|left|right"
    r"|bf|it|rm|sf|tt|em|[Bb]ig[gG]?[lr]?|[Ll]arge|LARGE|[Hh]uge)(?![A-Za-z])\*?"
    r"|\\[()\[\]]|</?(?:b|strong|i|em|u|code|span|p|mark|sup|sub)\s*+/?>|[{}$*_`\"'“”‘’«»‹›„]",
    re.IGNORECASE,
)
SPACE = re.compile(r"\\(?:[,;:! ]|q?quad(?![A-Za-z]))|~")
ALIKE = str.maketrans(
    dict(zip("[]【】〔〕「」『』。、", "()()()()().,")) | dict.fromkeys("\u200b\u200c\u200d\u2060\ufeff")
)
BRACKETED = re.compile(r"(?<!\()\(++([A-Za-z])(?:[.\s]*+\))++")  # ((B.)) is (B)
BOX_OPEN = re.compile(BOX.pattern + r"\{")
BARE_BOX = re.compile(r"\\(?:boxed|fbox)\s++([A-Za-z])(?![A-Za-z])")
OPEN, CLOSE = "\ue010", "\ue011"  # private characters: the two ends of a box
BOXED = re.compile(f"{OPEN}([^{OPEN}{CLOSE}]*+){CLOSE}")
# Possessive (*+) wherever two repetitions of the same character meet: a model may write a million blanks.
STATED = re.compile(
    r"(?:(?:final\s++answer|correct\s++(?:answer|option|choice)|answer)"
    r"(?:\s*+(?:is\b|would\s++be\b|must\s++be\b|should\s++be\b|:|=|\b(?:therefore|thus|hence|then|clearly)\b))++"
    r"|\bI(?:['’]?ll|\s++will|\s++would)?+\s++(?:choose|pick|select|go\s++with))\s*+"
    r"(?:(?:option|choice|answer)\b)?+\s*+:?\s*+\(?+\s*+([A-Za-z])(?:\s*+\))?+(?=[\s.,;:!]|$)"
    r"|\b(?-i:([A-Z]))(?:\s*+\))?+\s++is\s++(?:therefore\s++|thus\s++)?+(?:the\s++)?+(?:correct|right)\b"
    r"(?!\s++(?:about|that|in|if|when|only)\b)",
    re.IGNORECASE,
)
# "The answer is a matter of taste": a letter that another word follows is an article, unless a reason follows.
ARTICLE = re.compile(r"\s++(?!(?:or|and|because|since|as|for|due|which|given|by|while|but)\b)[a-z]")
# A statement that is denied or doubted, before it in its clause or behind its letter, is no answer.
CLAUSE = re.compile(r"[.,;:!?\n]|\b(?:so|therefore|thus|hence|then|but|and)\b", re.IGNORECASE)
DOUBT = re.compile(
    r"\b(?:not|never|doubt\w*|wrong|incorrect|mistake\w*|false|unlikely|cannot|if|whether"
    r"|(?:do|does|did|is|was|would|could|should|ca|wo)n['’]?t)\b",
    re.IGNORECASE,
)
# A denial before a box: "it is not \\boxed{B}", while "it does not move: \\boxed{B}" says B.
DENYING = re.compile(
    r"\b(?:not|never|doubt\w*|wrong|incorrect|false|unlikely|cannot|if|whether|(?:do|does|is|was|would|ca|wo)n['’]?t)"
    r"(?:\s++(?:that|to|say|think|believe|it|the|a|final|correct|right|answer|option|choice|is|was|be|would)\b)*+[\s(]*$",
    re.IGNORECASE,
)
NAMED = re.compile(r"(?:option|choice|answer)(?:\s*+:\s*+|\s++)", re.IGNORECASE)
FIRST = re.compile(r"\(\s*+([A-Za-z])\s*+\)|([A-Za-z])(?=[^\S\n]*+[.:),\-\n]|\s*+$)|([B-HJ-Zb-z])(?=\s++\S)")
# A line, or the content of a tag, that is a letter alone or in the shortest of sentences; quotes are gone.
ALONE = re.compile(
    r"[#>\s-]*+(?:(?:so|thus|hence|therefore),?\s++)?+"
    r"(?:I(?:\s++would|\s++will|ll)?+\s++(?:think|believe|guess|say|choose|pick|select|go\s++with)\s++(?:that\s++)?+)?+"
    r"(?:(?:it|this|that|(?:the|my)\s++(?:\w++\s++)?(?:letter|one|answer|choice|option|pick))"
    r"(?:s|\s++(?:is|must\s++be|should\s++be|would\s++be))\b\s*+:?+\s*+)?+"
    r"(?:(?:the\s++)?+(?:option|choice|answer|letter)\s*+:?+\s*+)?+\(?([A-Za-z])\)?[.:!\s]*+",
    re.IGNORECASE,
)
BETWEEN = re.compile(r"[\s$.,;&/+|*()]*+(?:(?:and|or)\b[\s$.,;*()]*+)?+", re.IGNORECASE)
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
    pronoun I is not. What stands around a letter (`plain`) does not matter."""
    answers = tagged(answer, "answer")
    if answers:
        return from_tag(answers[-1], choices)
    if tags_required or "<answer>" in answer.lower():
        return None
    text = plain(answer)
    found = sorted([*_stated(text), *_boxed(text)])
    if found:
        start, _, letter = found[-1]
        for _, end, other in found[-2:-1]:
            if other != letter and BETWEEN.fullmatch(text, end, start):
                return None  # "\\boxed{A} or \\boxed{B}"
        if letter is not None and letter in letters(choices):
            return letter
    lines = [line.strip() for line in text.splitlines() if line.strip()]
    alone = ALONE.fullmatch(lines[-1]) if lines else None
    return alone[1] if alone and alone[1] in letters(choices) else None  # a small one may be an article


def _boxed(text: str) -> list[tuple[int, int, str | None]]:
    """(start, end, letter) of every box; one that is denied has none."""
    found = []
    for match in BOXED.finditer(text):
        denied = DENIED.match(text, match.end()) or DENYING.search(text[max(0, match.start() - 100) : match.start()])
        found.append((match.start(), match.end(), None if denied else _leading(match[1])))
    return found


def from_tag(content: str, choices: int) -> str | None:
    """B, b, (B), B., **B**, "B. mitochondria", "B: text"; "ABCD" or "A or B" is no answer."""
    text = _tight(plain(content).replace(OPEN, "").replace(CLOSE, ""))
    stated = [] if FIRST.match(text.strip()) else _stated(text)
    alone = ALONE.fullmatch(text.strip())
    letter = alone[1].upper() if alone else stated[-1][2] if stated else _leading(text)
    return letter if letter is not None and letter in letters(choices) else None


def plain(text: str) -> str:
    """The text without styles, math shifts, emphasis and quotes, full-width letters as ordinary ones, boxes between
    `OPEN` and `CLOSE`."""
    text = unicodedata.normalize("NFKC", text.replace(OPEN, "").replace(CLOSE, "")).translate(ALIKE)
    return _tight(SPACE.sub(" ", WRAPPER.sub("", COLOUR.sub("", _boxes_marked(text)))))


def _tight(text: str) -> str:
    return BRACKETED.sub(r"(\1)", re.sub(r"(?<=\()\s++", "", text))


def _boxes_marked(text: str) -> str:
    """A box that is never closed stays as it is."""
    closing = matching_braces(text)
    marks = {end: CLOSE for box in BOX.finditer(text) if (end := closing.get(box.end())) is not None}
    text = "".join(marks.get(at, c) for at, c in enumerate(text))
    text = BOX_OPEN.sub(lambda box: OPEN if closing.get(box.end() - 1) is not None else box[0], text)
    return BARE_BOX.sub(rf"{OPEN}\1{CLOSE}", text)


def _stated(text: str) -> list[tuple[int, int, str | None]]:
    """(start, end, letter) of every "the answer is B"; the letter is None where several are named."""
    found = []
    for match in STATED.finditer(text):
        group = match.lastindex or 1
        rest = text[match.end(group) : match.end(group) + 200].partition("\n")[0]
        clause = CLAUSE.split(text[max(0, match.start() - 100) : match.start()])[-1]
        article = match[group] in "aAI" and group == 1 and ARTICLE.match(rest)
        if not (article or DOUBT.search(clause) or DENIED.match(rest)):
            letter = match[group].upper()
            found.append((match.start(), match.end(), None if _other_letters(rest, letter) else letter))
    return found


def _leading(text: str) -> str | None:
    """The letter that an answer starts with, when it is the only one."""
    text = text.strip()
    named = NAMED.match(text)
    match = FIRST.match(text, named.end() if named else 0)
    if not match:
        return None
    letter = next(group for group in match.groups() if group).upper()
    rest = text[match.end() :]
    return None if _other_letters(rest, letter) or DENIED.match(rest) else letter


def _other_letters(rest: str, letter: str) -> bool:
    """Whether nothing but letters follows, another one among them: "A or B", "A, B, C"."""
    words = [word[0].upper() for word in itertools.islice(re.finditer(r"\w+", rest), 60)]
    named = [word for word in words if word not in ("OR", "AND")]
    return all(len(word) == 1 and "A" <= word <= "Z" for word in named) and any(word != letter for word in named)


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
