"""Finds the final answer of a mathematics response and compares what can be compared exactly, without a computer
algebra."""

from __future__ import annotations

import re
from fractions import Fraction

BOX = re.compile(r"\\(?:boxed|fbox)\s*(?=\{)")
BARE_BOX = re.compile(r"\\(?:boxed|fbox)\s+(-?\d[\d.,/]*\d|-?\d)(?=[\s$.,;]|$)")
LONGEST_NUMBER = 2000  # digits compared exactly; longer ones are compared as text

_SPACES = re.compile(r"\\[,;:!>]|\\ |~|\\quad|\\qquad")
_WRAPPERS = re.compile(r"\\(?:text|textbf|textit|textrm|mathrm|mathbf|mathit|mbox)\s*\{([^{}]*)\}")
_SIZES = re.compile(r"\\(?:left|right|bigl?|bigr?|Bigl?|Bigr?|displaystyle|limits)(?![a-zA-Z])")
_THOUSANDS = re.compile(r"(?<![\d.])(-?\d{1,3})((?:,\d{3})+)(?!\d)")
_DECIMAL = re.compile(r"([+-]?)(\d+\.?\d*|\.\d+)")
_RATIO = re.compile(r"([+-]?)(?:\\frac\{([+-]?\d+)\}\{([+-]?\d+)\}|(\d+)/(\d+))")
_SHORT_FRACTION = re.compile(r"\\frac\s*(\d)\s*(\d)(?!\d)")


class NoAnswer(Exception):
    """The response has no complete final answer."""


def last_boxed(text: str) -> str:
    """Content of the last box. Raises NoAnswer when there is none, or when the last one is never closed: an earlier
    box is not the final answer then."""
    found = list(BOX.finditer(text))
    bare = list(BARE_BOX.finditer(text))
    if not found and not bare:
        raise NoAnswer("no box")
    if bare and (not found or bare[-1].start() > found[-1].start()):
        return bare[-1][1]
    spans = {match.start(): _closing(text, match.end()) for match in found}
    last = found[-1]
    if spans[last.start()] is None:
        raise NoAnswer("the last box is not closed")
    for match in found:  # a box inside a box: the outer one is the answer, and unwrap() looks inside
        end = spans[match.start()]
        if end is not None and end > last.start():
            last = match
            break
    return unwrap(text[last.end() + 1 : spans[last.start()]])


def _closing(text: str, opening: int) -> int | None:
    """Index of the brace that closes the one at `opening`; escaped braces do not count."""
    depth = 0
    at = opening
    while at < len(text):
        character = text[at]
        if character == "\\":
            at += 2
            continue
        depth += (character == "{") - (character == "}")
        if depth == 0:
            return at
        at += 1
    return None


def unwrap(content: str) -> str:
    while True:
        match = BOX.match(content.strip())
        if not match:
            return content.strip()
        inner = content.strip()
        end = _closing(inner, match.end())
        if end != len(inner) - 1:
            return inner
        content = inner[match.end() + 1 : end]


def normalize(answer: str) -> str:
    """The same mathematics in one spelling: no math shifts, spacing commands, size commands or text wrappers."""
    text = answer.strip().strip("$").strip()
    text = text.removeprefix("\\(").removesuffix("\\)").removeprefix("\\[").removesuffix("\\]")
    text = (
        text.replace("{,}", ",")
        .replace("\\!", "")
        .replace("\u2212", "-")
        .replace("\\dfrac", "\\frac")
        .replace("\\tfrac", "\\frac")
    )
    text = _SIZES.sub("", _SPACES.sub(" ", text))
    for _ in range(3):
        text = _WRAPPERS.sub(r"\1", text)
    text = _SHORT_FRACTION.sub(r"\\frac{\1}{\2}", text.replace("\\$", "").replace("\\ ", " "))
    text = _THOUSANDS.sub(lambda m: m[1] + m[2].replace(",", ""), text)
    return re.sub(r"\s+", " ", text).strip().rstrip(".").strip()


def rational(answer: str) -> Fraction | None:
    """The exact value of an integer, decimal or simple fraction; None for anything else."""
    text = normalize(answer).replace(" ", "")
    if len(text) > LONGEST_NUMBER:
        return None
    match = _DECIMAL.fullmatch(text)
    if match:
        return Fraction(text.lstrip("+"))
    match = _RATIO.fullmatch(text)
    if match:
        sign = -1 if match[1] == "-" else 1
        top, bottom = (match[2], match[3]) if match[2] is not None else (match[4], match[5])
        return sign * Fraction(int(top), int(bottom)) if int(bottom) else None
    return None


def choice_letter(answer: str) -> str | None:
    """B for "(B)", "B.", "\\text{(B)}"; None for anything that is not one capital letter."""
    match = re.fullmatch(r"\(?([A-Z])\)?\.?", normalize(answer).replace(" ", ""))
    return match[1] if match else None


def plain_words(answer: str) -> str | None:
    """A verbal answer in lower case ("east"), None when it is mathematics: needs a text wrapper or to be one bare
    word."""
    text = normalize(answer)
    wrapped = re.fullmatch(r"\s*\\(?:text|textbf|mathrm|mbox)\s*\{[^{}]*\}\s*", answer.strip().strip("$"))
    if not re.fullmatch(r"[A-Za-z][A-Za-z' -]*", text) or len(text) < 3:
        return None
    return text.lower() if wrapped or " " not in text else None


def is_prose(answer: str) -> bool:
    """Several bare words: no algebra system should read "see the figure" as a product of letters."""
    return bool(re.search(r"(?<![\\A-Za-z])[A-Za-z]{2,}\s+[A-Za-z]{2,}", normalize(answer))) and "\\" not in normalize(
        answer
    )
