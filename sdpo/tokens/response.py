"""From the ids of a response to its text."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from sdpo.tokens.think import MARK_TOKEN


class ResponseText:
    """Decodes responses without special tokens, except the marks of reasoning and of tool calls: whether those are
    special differs from model to model, and without them nobody could tell a draft from an answer."""

    def __init__(self, tokenizer: Any) -> None:
        self._tokenizer = tokenizer
        special = {int(token): str(tokenizer.convert_ids_to_tokens(int(token))) for token in tokenizer.all_special_ids}
        special |= {
            token: str(added)
            for token, added in getattr(tokenizer, "added_tokens_decoder", {}).items()
            if getattr(added, "special", False)
        }
        ends = {getattr(tokenizer, f"{name}_token_id", None) for name in ("bos", "eos", "pad", "unk")}
        marks = {token for token, text in special.items() if token not in ends and MARK_TOKEN.search(text)}
        self._dropped = special.keys() - marks if marks else None

    def decode(self, ids: Sequence[int]) -> str:
        if self._dropped is None:
            return self._tokenizer.decode(ids, skip_special_tokens=True)
        kept = [token for token in ids if token not in self._dropped]
        return self._tokenizer.decode(kept, skip_special_tokens=False)
