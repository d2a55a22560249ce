"""Where a text can be cut so that its pieces, encoded one by one, have the ids of the whole.

Special tokens are such borders in every tokenizer. Within a text there are others, where no token of the vocabulary
reaches across: in byte-pair encoding that finds its words from left to right, ends of lines and blanks between words.
What cannot be shown for a tokenizer is not assumed: its texts stay whole.
"""

from __future__ import annotations

import json
import re
import string
from collections.abc import Iterator, Sequence
from itertools import pairwise
from typing import Any

_LETTER = r"[A-Za-z\u3040-\u30ff\u4e00-\u9fff]"
# Of several blanks in a row the last goes with the word behind it, where there is one: a single line break only.
_BORDER = re.compile(rf"(?<=[a-z])(?= [A-Za-z])|(?<=\S\n)(?={_LETTER})")
# The same places in a vocabulary, whose alphabet may stand for bytes: a blank is Ġ or ▁, a line break Ċ, and letters
# from Japanese and Chinese begin with one of seven bytes.
_ACROSS = re.compile(r"[a-z][Ġ▁ ]|[Ċ\n][A-Za-z\u3040-\u30ff\u4e00-\u9fffãäåæçèé]")
_CLASS = re.compile(r"\\\\|\[\^?\]?(?:\\.|[^\]\\])*\]")  # of characters, in a regular expression
# What lets a match depend on the text around it: anchors, a look back, or ahead to more than the end of blanks; and
# what may run over borders, any character at all.
_CONTEXT = re.compile(r"\\[bBAzZGKX\d]|\(\?<|\(\?=|\(\?!(?!\\S\))|[\^$]|(?<!\\)\.")
_TRIAL = (
    "of the end of it.\nSo it is:\n\nthe second one (a b) was, 12 and 345 of it;\n    return it\nit's what we've said\n"
    "字 of が\n字 and a\nx = [1, 2]\n\n  so ab cd\n"
)
_MIN_SHARED = 64  # characters; shorter pieces are not worth two more
_WINDOWS = (256, 4096)  # characters from the end in which the last border is looked for before the whole text is


def pieces_of(text: str, shared: Sequence[str]) -> list[str]:
    """The text, cut at the first and the last border inside of each shared text that it holds."""
    places = {0, len(text)}
    for part in shared:
        start = text.find(part) if len(part) >= _MIN_SHARED else -1
        if start >= 0:
            places |= set(_ends(text, start, start + len(part)))
    return [text[start:stop] for start, stop in pairwise(sorted(places))]


def _ends(text: str, start: int, stop: int) -> Iterator[int]:
    first = _BORDER.search(text, start, stop)
    if first is None:
        return
    yield first.start()
    for window in (*_WINDOWS, stop - start):
        found = [border.start() for border in _BORDER.finditer(text, max(start, stop - window), stop)]
        if found:
            yield found[-1]
            return


def has_borders(tokenizer: Any) -> bool:
    """Whether `pieces_of` is exact for this tokenizer."""
    core = getattr(tokenizer, "backend_tokenizer", None)
    if core is None or type(core.model).__name__ != "BPE":
        return False
    model, vocabulary = core.model, core.get_vocab(with_added_tokens=False)
    whole_words = not (model.dropout or model.continuing_subword_prefix or model.end_of_word_suffix)
    known = all(letter in vocabulary for letter in string.ascii_letters)  # unknown ones may be fused with what follows
    known = known and not vocabulary.keys().isdisjoint("Ġ▁ ") and not vocabulary.keys().isdisjoint("Ċ\n")
    steps = [*_steps(core.normalizer), *_steps(core.pre_tokenizer)]
    return (
        whole_words
        and known
        and all(map(_from_left_to_right, steps))
        and not any(map(_ACROSS.search, vocabulary))
        and not any(map(_reaches_across, core.get_added_tokens_decoder().values()))
        and _holds(tokenizer)
    )


def _holds(tokenizer: Any) -> bool:
    """Whether it is so for one text with borders of many kinds: what nobody has thought of."""
    places = [0, *(border.start() for border in _BORDER.finditer(_TRIAL)), len(_TRIAL)]
    pieces = [tokenizer.encode(_TRIAL[start:stop], add_special_tokens=False) for start, stop in pairwise(places)]
    return [token for piece in pieces for token in piece] == tokenizer.encode(_TRIAL, add_special_tokens=False)


def _steps(component: Any) -> list[dict[str, Any]]:
    """A normalizer or pre-tokenizer as plain data; a sequence of them one by one."""
    if component is None:
        return []
    state = json.loads(component.__getstate__())
    return state.get("normalizers") or state.get("pretokenizers") or ([] if state["type"] == "Sequence" else [state])


def _from_left_to_right(step: dict[str, Any]) -> bool:
    """Whether what it makes of a text behind a border depends on nothing before it, and the other way round."""
    match step["type"]:
        case "NFC" | "NFD" | "NFKC" | "NFKD" | "Digits":
            return True
        case "ByteLevel":
            return not step["add_prefix_space"]
        case "Metaspace":
            return step["prepend_scheme"] == "never"
        case "Replace":
            return step["pattern"] == {"String": " "}
        case "Split":
            pattern = step["pattern"]
            return pattern == {"String": " "} or not _CONTEXT.search(_CLASS.sub("", pattern.get("Regex", ".")))
    return False


def _reaches_across(added: Any) -> bool:
    """Added tokens are looked for in the whole text, some with the blanks around them."""
    content = added.content
    inside = re.search(rf"[a-z] |\n{_LETTER}", content)
    behind, before = added.rstrip and re.search("[a-z]$", content), added.lstrip and re.match(_LETTER, content)
    return bool(inside or behind or before)
