"""Reasoning out of a response: what a model thinks before its answer is neither graded nor shown as a solution.

Families mark it differently, and most templates, stored answers and tools do not say whose model wrote a text, so all
marks are known at once. A response can be hostile: every search here is linear.
"""

from __future__ import annotations

import re
from collections.abc import Iterator

from sdpo.config.parsers import REASONING_PARSERS

# A rule, not a list: a name of parts one of which is such a word. <reasoning_effort>, <think_off> say how to think.
_WORDS = r"(?:think(?:ing)?|thoughts?|reasoning|reflections?|rationale|scratch_?pad|monologue)"
_TAGS = (
    r"(?!(?:begin|start|end|stop|no|enable|disable)[_-])(?:\w[\w:|.-]{0,40}[_:|.-])?"
    rf"{_WORDS}(?:[_:.-](?!(?:effort|budget|level|mode|tokens|on|off)\b)[\w:.-]{{1,40}})?"
)
# Family -> opening and closing mark. One that also ends other things closes nothing that was not opened.
FAMILIES: dict[str, tuple[str, str]] = {
    "mistral": (r"\[THINK\]", r"\[/THINK\]"),
    "kimi_vl": (r"◁think▷", r"◁/think▷"),
    "cohere": (r"<\|START_THINKING\|>", r"<\|END_THINKING\|>"),
    "begin_of_thought": (r"<\|begin_of_thought\|>", r"<\|end_of_thought\|>"),
    "begin_think": (rf"(?i:<(?:begin|start)_(?:of_)?{_WORDS}>)", rf"(?i:<(?:end|stop)_(?:of_)?{_WORDS}>)"),
    "reason": (r"(?<![^\n>])<reason>", r"</reason>"),  # elsewhere in a line it is a placeholder: cancel <id> <reason>
    "apertus": (r"<\|inner_prefix\|>", r"<\|inner_suffix\|>"),
    "gemma": (r"<\|channel>(?:thought\n)?", r"<channel\|>"),
    "medgemma": (r"<unused94>(?:thought\n)?", r"<unused95>"),
    "kimi_k3": (r"<\|open\|>\s*+think\s*+<\|sep\|>", r"<\|close\|>\s*+think\s*+<\|sep\|>"),
    "solar": (r"<\|think(?:ing)?\|>", r"<\|(?:/|end_)think(?:ing)?\|>"),
}
SHARED_CLOSERS: dict[str, tuple[str, str]] = {
    "inkling": (r"<\|content_thinking\|>", r"<\|end_message\|>|<\|content_model_end_sampling\|>"),
    "muse": (r"to=self<\|message\|>", r"<\|eom\|>"),
    # An analysis message that is addressed to a tool is a call.
    "harmony": (
        r"<\|channel\|>analysis(?![^<]{0,200}to=)[^<]{0,200}<\|message\|>",
        r"<\|(?:end|return|call)\|>|(?=<\|(?:start|channel)\|>)",
    ),
}
_PAIRS = list((FAMILIES | SHARED_CLOSERS).items())
# First what every mark begins with, so that the other places of a text, nearly all, cost nothing.
_MARK = re.compile(
    r"(?=[<\[◁]|to=self)(?:"
    + "|".join(
        (
            rf"<(?P<opened>(?i:{_TAGS}))(?:\s[^<>]{{0,200}})?>",
            rf"</(?P<closed>(?i:{_TAGS}))\s*+>\s*+",
            *(f"(?P<open{i}>{pair[0]})|(?P<close{i}>(?:{pair[1]})\\s*+)" for i, (_, pair) in enumerate(_PAIRS)),
        )
    )
    + ")"
)
_BEGINNING = re.compile(r"[<\[◁]|to=self<")  # of any mark; without it every alternative is tried at every letter
# Sentences, not marks, and at the start only. In another wording (Here's) they count where both stand.
_GRANITE = re.compile(r"\s*Here(?: i|')s my thought process:")
_GRANITE_END = re.compile(r"Here(?: i|')s my response:\s*")
# What some families put around the answer itself; calls keep theirs for the parser that reads them.
_SHELL = re.compile(
    r"(?=<\||to=user)(?:"
    r"(?:<\|start\|>\s*assistant)?<\|channel\|>(?:final|commentary)(?:\s*<\|constrain\|>\w+)?<\|message\|>"
    r"|<\|(?:end|return|end_message|message_model|content_text|content_model_end_sampling|eot)\|>"
    r"|(?:<\|start\|>\s*assistant\s*)?to=user<\|message\|>"
    r"|<\|(?:START|END)_(?:RESPONSE|TEXT)\|>|<\|(?:begin|end)_of_solution\|>"
    r"|<\|(?:open|close)\|>(?:response|message)<\|sep\|>)"
)
_CALL = re.compile(r"to=(?!(?:self|user)\b)[\w.-]{1,200}[^<\n]{0,100}<\||<\|content_invoke|<\|open\|>\s*call\b")
_RESPONSE = re.compile(r"\s*<response>(.*)</response>\s*", re.DOTALL)
# Special tokens that stay in the text of a response: marks of reasoning and of tool calls, in whole or in part.
MARK_TOKEN = re.compile(
    r"think|thought|reason|scratch|solution|inner_|tool|func|call|arg_|param|invoke|plugin|action|python_"
    r"|channel|message|constrain|content_|DSML|minimax|ifm\||seed:t|(?:START|END)_(?:RESP|TEXT|ACTION)"
    r"|<\|(?:open|close|sep|start|end|eom|eot|\")\|>|escape|unused9[45]",
    re.IGNORECASE,
)


def strip_think(text: str, header: str = "", parser: str = "auto") -> str:
    """The answer part of a response.

    Blocks of reasoning are cut out. A closing mark without an opening one ends a block that the generation header
    opened: all before it goes. An opening mark that is never closed leaves no answer: "". Text without marks is
    unchanged.

    `header`: what the template put between prompt and response. `parser`: whose marks count: of every family ("auto"),
    of one of vLLM's parsers, or nobody's ("none").

    >>> strip_think("plan\\n</think>\\n\\nANSWER"), strip_think("<think>plan"), strip_think("plan", "<think>")
    ('ANSWER', '', '')
    """
    if parser == "none":
        return text
    family = REASONING_PARSERS.get(parser)
    text, found = _without_granite(text, family)
    kept, opened, marks = _pieces(header + text, len(header), family)
    if opened is not None:
        return ""
    answer = "".join(kept)
    if "<|" in answer and not _CALL.search(answer):
        answer, shells = _SHELL.subn("", answer)
        marks += shells
    if not marks and not found:
        return text
    wrapped = _RESPONSE.fullmatch(answer)  # ERNIE
    return (wrapped[1] if wrapped else answer).lstrip()


def left_open(header: str, parser: str = "auto") -> str:
    """The end of a generation header from the mark with which it opens the response's reasoning; "" when it opens
    none."""
    if parser == "none":
        return ""
    opened = _pieces(header, 0, REASONING_PARSERS.get(parser))[1]
    return "" if opened is None else header[opened:]


def _pieces(text: str, start: int, family: str | None) -> tuple[list[str], int | None, int]:
    """What stands outside of blocks behind `start`, where the block that is still open began, number of marks. One
    pass, because the text may be made to be slow."""
    kept: list[str] = []
    at, opened, inside, marks = start, None, "", 0
    for match in _marks(text):
        name, opening, shared = _meaning(match)
        if family not in (None, name) or (opened is None and _quoted(text, match)):
            continue
        if opening and opened is None:
            kept.append(text[at : max(at, match.start())])
            opened, inside = match.start(), name
        elif not opening and opened is not None and name == inside:
            at, opened = max(start, match.end()), None
        elif not opening and opened is None and not shared:
            kept.clear()
            at = max(start, match.end())
        else:
            continue
        marks += 1
    return [*kept, text[at:]], opened, marks


def _marks(text: str) -> Iterator[re.Match[str]]:
    """As `_MARK.finditer`."""
    at = 0
    while beginning := _BEGINNING.search(text, at):
        match = _MARK.match(text, beginning.start())
        at = beginning.start() + 1
        if match is not None:
            at = max(at, match.end())
            yield match


def _quoted(text: str, match: re.Match[str]) -> bool:
    """Whether the mark stands in inline code or in quotes of its own: the answer speaks of it."""
    before = text[max(0, match.start() - 500) : match.start()].rpartition("\n")[2]
    after = text[match.end() : match.end() + 500].partition("\n")[0]
    return before[-1:] == after[:1] != "" and after[0] in "\"'" or ("`" in after and before.count("`") % 2 == 1)


def _meaning(match: re.Match[str]) -> tuple[str, bool, bool]:
    """(family, whether it opens, whether its closing mark ends other things, too)."""
    group = match.lastgroup or ""
    if group in ("opened", "closed"):
        tag = match[group].lower()
        return "think" if tag.startswith("think:") else tag, group == "opened", False
    opens = group.startswith("open")
    name = _PAIRS[int(group.removeprefix("open" if opens else "close"))][0]
    return name, opens, name in SHARED_CLOSERS


def _without_granite(text: str, family: str | None) -> tuple[str, bool]:
    """Granite marks its reasoning with two sentences."""
    opening = _GRANITE.match(text) if family in (None, "granite") else None
    if opening is None:
        return text, False
    closing = _GRANITE_END.search(text, opening.end())
    if closing is not None:
        return text[closing.end() :], True
    literal = "Here is" in opening[0] or family == "granite"
    return ("", True) if literal else (text, False)
