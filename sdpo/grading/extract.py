"""Finds the answer in a response. Only the response is ever looked at, never the prompt."""

from __future__ import annotations

import re
import warnings
from dataclasses import dataclass, replace

from sdpo.sandbox import python_syntax

# Inside quotes and lists a fence stands behind "> " and "1. "; backticks after ``` make it inline code.
FENCE = re.compile(
    r"((?:[ \t]*+>)*+[ \t]*+)((?:[-*+]|[0-9]{1,9}[.)])[ \t]++(?:>[ \t]*+)*+)?+(`{3,}+(?=[^`]*+$)|~{3,}+)(.*)", re.DOTALL
)
LATE = re.compile(r"([^`]*+)(`{3,}+)([\w+#-]*+)[ \t]*+")  # a fence behind text
INFO = re.compile(r"\{?\s*+(?:#[\w-]*+\s++)?\.?([\w+#-]+)")  # python title="x", {.python}, {python}, python:main.py
PYTHON = re.compile(r"i?py(?:thon)?[0-9]*")
MAX_PARSE = 20_000  # characters of one block, and of all attempts at a longer one: the parser holds up all threads
SOURCE_NAME = "answer.py"
# The parser warns of odd escapes in what models write; set once, because catch_warnings() is not made for threads.
warnings.filterwarnings("ignore", module=r"answer(\.py)?\Z")


def tagged(text: str, tag: str) -> list[str]:
    """Contents of <tag>...</tag>, in order, upper or lower case. Linear in the length of the text, which a model
    wrote."""
    found = []
    start: int | None = None
    for match in re.finditer(rf"<(/?){tag}>", text, re.IGNORECASE):
        if not match[1]:
            start = match.end()
        elif start is not None:
            found.append(text[start : match.start()])
            start = None
    return found


@dataclass(frozen=True)
class Fence:
    line: int
    before: str  # blanks and quote marks
    bullet: str  # of the list item that begins with the fence
    marker: str
    info: str

    def closes(self, opening: Fence) -> bool:
        alone = not self.info and not self.bullet
        near = len(self.before) <= len(opening.before) + len(opening.bullet) + 3  # deeper ones stand in a docstring
        return alone and near and self.marker[0] == opening.marker[0] and len(self.marker) >= len(opening.marker)

    @property
    def language(self) -> str:
        """In lower case; "python" for all its names."""
        named = INFO.match(self.info.lower())
        return "" if named is None else "python" if PYTHON.fullmatch(named[1]) else named[1]


def extract_code(text: str, truncated: bool = False) -> str | None:
    """The program of a response, None when there is none.

    The last complete fenced block counts: the last one tagged as Python where there is one, else the last without a
    tag. A block left open at the end is no answer when the response was cut off; when it was not, the model forgot
    the closing fence, and the block counts if it parses. Backticks inside a string do not end a block if a later
    fence makes it parse. Fences that share their line with text count where the others leave no program.
    """
    code = _by_markdown(text, truncated)
    if code is None or not parses(code):
        loose = _by_markdown(_fences_apart(text), truncated)
        if loose is not None and parses(loose):
            return loose
    return code


def _fences_apart(text: str) -> str:
    """The text with a line for each fence that text stands before, or behind where it closes."""
    out: list[str] = []
    opening: Fence | None = None
    for line in _fences(text)[0]:
        if fences := _fences(line)[1]:
            fence = fences[0]
            bare = replace(fence, info="")
            if opening is None:
                opening = fence
            elif bare.closes(opening) and fence.language != "python":
                opening = None
                out += [fence.before + fence.marker, fence.info]
                continue
        elif late := LATE.fullmatch(line):
            fence = Fence(0, "", "", late[2], late[3])
            if opening is None:
                opening = fence
            elif "#" not in late[1] and fence.closes(opening):
                opening = None
            else:
                fence = None
            if fence is not None:
                out += [late[1], late[2] + late[3]]
                continue
        out.append(line)
    return "\n".join(out)


def _by_markdown(text: str, truncated: bool) -> str | None:
    lines, fences = _fences(text)
    blocks, dangling = _pair(fences)
    if dangling is not None and (dangling.info or any(line.strip() for line in lines[dangling.line + 1 :])):
        longer = _longer_parse(lines, fences, blocks)
        if longer is not None:
            return longer
        if truncated:
            return None
        rest = _between(lines, dangling)
        if dangling.language == "python" and parses(rest):
            return rest
    chosen = _last(blocks)
    if chosen is None:
        return None
    code = _between(lines, *chosen)
    if (len(fences) > 2 * len(blocks) or len(blocks) > 1) and not parses(code):
        return _longer_parse(lines, fences, blocks) or code
    return code


def fenced_blocks(text: str) -> list[tuple[str, str]]:
    """(language, content) of every complete fenced block."""
    lines, fences = _fences(text)
    return [(opening.language, _between(lines, opening, closing)) for opening, closing in _pair(fences)[0]]


def _fences(text: str) -> tuple[list[str], list[Fence]]:
    lines = text.replace("\r\n", "\n").split("\n")
    return lines, [
        Fence(i, m[1], m[2] or "", m[3], m[4].strip(" \t")) for i, line in enumerate(lines) if (m := FENCE.match(line))
    ]


def _pair(fences: list[Fence]) -> tuple[list[tuple[Fence, Fence]], Fence | None]:
    """Blocks in order, and the opening fence that nothing closes."""
    blocks = []
    opening: Fence | None = None
    for fence in fences:
        if opening is None:
            opening = fence
        elif fence.closes(opening):
            blocks.append((opening, fence))
            opening = None
    return blocks, opening


def _last(blocks: list[tuple[Fence, Fence]]) -> tuple[Fence, Fence] | None:
    tagged = [block for block in blocks if block[0].language == "python"]
    plain = [block for block in blocks if not block[0].info]
    chosen = tagged or plain
    return chosen[-1] if chosen else None


def _longer_parse(lines: list[str], fences: list[Fence], blocks: list[tuple[Fence, Fence]]) -> str | None:
    """The chosen block extended to a later closing fence, when that parses and the block alone does not."""
    chosen = _last(blocks)
    if chosen is None or parses(_between(lines, *chosen)):
        return None
    room = MAX_PARSE
    for later in reversed([fence for fence in fences if fence.line > chosen[1].line and fence.closes(chosen[0])][:20]):
        code = _between(lines, chosen[0], later)
        room -= len(code)
        if room < 0:
            return None
        if parses(code):
            return code
    return None


def _between(lines: list[str], opening: Fence, closing: Fence | None = None) -> str:
    """The content of a block without the quote marks and the indentation that it has from where it stands."""
    content = lines[opening.line + 1 : None if closing is None else closing.line]
    place = opening.before + opening.bullet
    quotes = place.count(">")
    if quotes:
        content = [re.sub(rf"(?:[ \t]*+>){{0,{min(quotes, 99)}}}+ ?", "", line, count=1) for line in content]
    depth = len(place.rpartition(">")[2].removeprefix(" " if quotes else ""))
    first = next((line for line in content if line.strip()), "")
    own = len(first) - len(first.lstrip(" \t"))
    if not depth and not own:
        return "\n".join(content)
    # As it is, less the fence's indentation (Markdown's rule), less that of the first line: what Python can read.
    choices = ["\n".join(_outdented(line, by) for line in content) for by in dict.fromkeys((0, depth, own))]
    return next(filter(parses, choices), choices[min(1, len(choices) - 1)])


def _outdented(line: str, by: int) -> str:
    return line[min(by, len(line) - len(line.lstrip(" \t"))) :]


def parses(code: str) -> bool:
    """Whether the text is a Python program. Only the parser runs, nothing of the text does."""
    if len(code) > MAX_PARSE or not code.strip():
        return False
    try:
        python_syntax.parse(code, SOURCE_NAME)
    except (SyntaxError, ValueError, MemoryError, RecursionError):
        return False
    return True
