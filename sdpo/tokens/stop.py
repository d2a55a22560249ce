"""Which token ids end a response."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from sdpo.errors import ModelError


def stop_token_ids(folder: str | Path, tokenizer: Any) -> tuple[int, ...]:
    """All end-of-sequence ids of a model, the tokenizer's own first.

    Models name them in up to three places and often disagree: the tokenizer, generation_config.json and config.json
    (there also under `text_config`). A response that stops on any of them has stopped.
    """
    found: list[int] = [] if tokenizer.eos_token_id is None else [int(tokenizer.eos_token_id)]
    for name in ("generation_config.json", "config.json"):
        path = Path(folder) / name
        if path.is_file():
            try:
                content = json.loads(path.read_text(encoding="utf-8"))
            except ValueError as error:
                raise ModelError(f"{path}: not valid JSON ({error}); repair or remove the file") from error
            for holder in (content, content.get("text_config") or {}):
                ids = holder.get("eos_token_id")
                found += [ids] if isinstance(ids, int) else list(ids or [])
    if not found:
        raise ModelError(
            f"{folder}: no end-of-sequence id in tokenizer, generation_config.json or config.json; set one"
        )
    return tuple(dict.fromkeys(found))
