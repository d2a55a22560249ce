"""Finds the final answer of a mathematics response: the content of its last box, or of the last boxes where a sentence
joins several."""

from __future__ import annotations

import re

BOX = re.compile(r"\\(?:boxed|fbox)\s*(?=\{)")
BARE_BOX = re.compile(r"\\(?:boxed|fbox)\s*(-?\d[\d.,/]*\d|-?\d)(?=[\s$.,;]|$)")
BRACE = re.compile(r"\\.|[{}]", re.DOTALL)
# What takes back the letter or the box before it.
DENIED = re.compile(
    r"[\s).$*}]*+(?:(?:is|was|seems|can|would)(?:n['’]?t\b|\s++(?:(?:definitely|clearly|certainly|surely|be)\s++)?+"
    r"(?:not|never|wrong|incorrect|false|impossible|unlikely)\b)|cannot\b"
    r"|,?\s*+(?:which|but\s++(?:it|that|this))\s++is\s++(?:not\s++(?:right|correct)|wrong|incorrect)\b)",
    re.IGNORECASE,
)
MAX_JOINT = 60  # characters between two boxes of one answer

_BLANK = re.compile(r"\\text\s*(?=\{)|\\(?:quad|qquad|[()\[\],;:! ])|[\s$*{}~&]")
_JOINT = re.compile(r"(?:[,;]|,?(?:and|or))(?:[A-Za-z](?:_[A-Za-z0-9])?=)?", re.IGNORECASE)


class NoAnswer(Exception):
    """The response has no complete final answer."""


def last_boxed(text: str) -> str:
    """Content of the last box, of the outermost where boxes are nested, without further boxes around it. Boxes with
    nothing but blanks, a comma, "and" or "or" between them are one answer and come joined by commas.

    Raises NoAnswer when there is none, or when the last one is never closed or "is wrong": an earlier box is not the
    final answer then. Linear in the length of the text, which a model wrote.
    """
    boxes = list(BOX.finditer(text))
    bare = list(BARE_BOX.finditer(text))
    if not boxes and not bare:
        raise NoAnswer("no box")
    if bare and (not boxes or bare[-1].start() > boxes[-1].start()):
        return bare[-1][1]
    closing = matching_braces(text)
    if boxes[-1].end() not in closing:
        raise NoAnswer("the last box is not closed")
    outer: list[tuple[int, int, int]] = []  # start, index of the opening brace, index of the closing one
    for box in boxes:
        if box.end() in closing and not (outer and box.start() < outer[-1][2]):
            outer.append((box.start(), box.end(), closing[box.end()]))
    if DENIED.match(text, outer[-1][2] + 1):
        raise NoAnswer("the last box is taken back")
    answers = [_unwrap(text, closing, outer[-1][1] + 1, outer[-1][2])]
    for (_, opening, end), (following, _, _) in zip(outer[-2::-1], outer[:0:-1], strict=False):
        if not _joined(text[end + 1 : min(following, end + 2 + MAX_JOINT)]):
            break
        answer = _unwrap(text, closing, opening + 1, end)
        if answer != answers[-1]:
            answers.append(answer)
    return ", ".join(reversed(answers))


def _joined(between: str) -> bool:
    if len(between) > MAX_JOINT or "\n\n" in between:
        return False
    words = _BLANK.sub("", between)
    return _JOINT.fullmatch(words) is not None or not words and "\n" not in between


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
