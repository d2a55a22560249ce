"""Thinking blocks out of a response."""

from __future__ import annotations

import re

_TAG = re.compile(r"<think>|</think>\s*")


def strip_think(text: str) -> str:
    """The answer part of a response.

    Blocks `<think>...</think>` are cut out. A closing tag without an opening one ends a block that the generation
    header opened: all before it goes. An opening tag that is never closed leaves no answer: "". Text without tags is
    unchanged.

    >>> strip_think("plan\\n</think>\\n\\nANSWER"), strip_think("<think>plan")
    ('ANSWER', '')
    """
    kept: list[str] = []  # pieces outside of blocks; one pass, because the text may be made to be slow
    at, opened, tags = 0, None, False
    for tag in _TAG.finditer(text):
        tags = True
        if tag[0] == "<think>":
            opened = tag.start() if opened is None else opened
        elif opened is not None:
            kept.append(text[at:opened])
            at, opened = tag.end(), None
        else:
            kept.clear()
            at = tag.end()
    if opened is not None:
        return ""
    return "".join([*kept, text[at:]]).lstrip() if tags else text
