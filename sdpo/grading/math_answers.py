"""Finds the final answer of a mathematics response and compares what can be compared exactly, without a computer
algebra."""

from __future__ import annotations

import re
from fractions import Fraction

BOX = re.compile(r"\\(?:boxed|fbox)\s*(?=\{)")
BARE_BOX = re.compile(r"\\(?:boxed|fbox)\s+(-?\d[\d.,/]*\d|-?\d)(?=[\s$.,;]|$)")
BRACE = re.compile(r"\\.|[{}]", re.DOTALL)
LONGEST_NUMBER = 2000  # digits compared exactly; longer ones are compared as text

_SPACES = re.compile(r"\\[,;:!>]|\\ |~|\\quad|\\qquad")
_WRAPPERS = re.compile(r"\\(?:text|textbf|textit|textrm|mathrm|mathbf|mathit|mbox)\s*\{([^{}]*)\}")
_SIZES = re.compile(r"\\(?:left|right|bigl?|bigr?|Bigl?|Bigr?|displaystyle|limits)(?![a-zA-Z])")
_THOUSANDS = re.compile(r"(?<![\d.])(-?\d{1,3})((?:,\d{3})+)(?!\d)")
_DECIMAL = re.compile(r"([+-]?)(\d+\.?\d*|\.\d+)")
_RATIO = re.compile(r"([+-]?)(?:\\frac\{([+-]?\d+)\}\{([+-]?\d+)\}|(\d+)/(\d+))")
_SHORT_FRACTION = re.compile(r"\\frac\s*(\d)\s*(\d)(?!\d)")


_WORD = re.compile(r"(?<![\\A-Za-z])[A-Za-z]{2,}")
_FUNCTIONS = frozenset({"sin", "cos", "tan", "cot", "sec", "csc", "log", "ln", "exp", "sqrt", "pi", "cm", "mod"})


class NoAnswer(Exception):
    """The response has no complete final answer."""


def last_boxed(text: str) -> str:
    """Content of the last box, of the outermost where boxes are nested, without further boxes around it.

    Raises NoAnswer when there is none, or when the last one is never closed: an earlier box is not the final answer
    then. Linear in the length of the text, which a model wrote.
    """
    boxes = list(BOX.finditer(text))
    bare = list(BARE_BOX.finditer(text))
    if not boxes and not bare:
        raise NoAnswer("no box")
    if bare and (not boxes or bare[-1].start() > boxes[-1].start()):
        return bare[-1][1]
    closing = matching_braces(text)
    last = boxes[-1]
    if last.end() not in closing:
        raise NoAnswer("the last box is not closed")
    outer = next((box for box in boxes if closing.get(box.end(), -1) >= closing[last.end()]), last)
    return _unwrap(text, closing, outer.end() + 1, closing[outer.end()])


def matching_braces(text: str) -> dict[int, int]:
    """Index of each opening brace -> index of the one that closes it; escaped braces do not count."""
    pairs: dict[int, int] = {}
    open_at: list[int] = []
    for match in BRACE.finditer(text):
        if match[0] == "{":
            open_at.append(match.start())
        elif match[0] == "}" and open_at:
            pairs[open_at.pop()] = match.start()
    return pairs


def _unwrap(text: str, closing: dict[int, int], start: int, end: int) -> str:
    """The text between two indices without the boxes that enclose all of it."""
    while True:
        while start < end and text[start].isspace():
            start += 1
        while start < end and text[end - 1].isspace():
            end -= 1
        box = BOX.match(text, start, end)
        if box is None or closing.get(box.end(), -1) != end - 1:
            return text[start:end]
        start, end = box.end() + 1, end - 1


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


def looks_like_mathematics(answer: str) -> bool:
    """Without asking the algebra, which takes milliseconds a row: balanced braces, no bare words but function names."""
    text = normalize(answer)
    words = _WORD.findall(text)
    balanced = len(matching_braces(text)) == text.count("{") - text.count("\\{")
    return bool(text) and balanced and text.count("{") == text.count("}") and all(word in _FUNCTIONS for word in words)
