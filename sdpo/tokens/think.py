"""Thinking blocks out of a response."""

from __future__ import annotations

import re

_BLOCK = re.compile(r"<think>.*?</think>\s*", re.DOTALL)


def strip_think(text: str) -> str:
    """The answer part of a response.

    Blocks `<think>...</think>` are cut out. A closing tag without an opening one ends a block that the generation
    header opened: all before it goes. An opening tag that is never closed leaves no answer: "". Text without tags is
    unchanged.

    >>> strip_think("plan\\n</think>\\n\\nANSWER"), strip_think("<think>plan")
    ('ANSWER', '')
    """
    text, blocks = _BLOCK.subn("", text)
    if "</think>" in text:
        return text.rpartition("</think>")[2].lstrip()
    if "<think>" in text:
        return ""
    return text.lstrip() if blocks else text
