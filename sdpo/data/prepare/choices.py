"""A multiple-choice question from its parts, for sources that give the options one by one."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from sdpo.errors import DataError
from sdpo.records import Prompt

INSTRUCTION = "Reason step by step, then write the letter of the right option between <answer> and </answer>."
MAX_OPTIONS = 26


def choice_prompt(
    data_source: str, question: str, options: Sequence[Any], answer: int, extra_info: Mapping[str, Any]
) -> Prompt:
    """Options become lines "A: ...". `answer` is the place of the right one, from 0."""
    texts = [option.strip() if isinstance(option, str) else "" for option in options]
    if not 2 <= len(texts) <= MAX_OPTIONS or not all(texts):
        raise DataError(f"options: got {list(options)!r:.100}; it must be 2 to {MAX_OPTIONS} texts")
    if not 0 <= answer < len(texts):
        raise DataError(f"answer: option {answer} of {len(texts)}")
    lines = "\n".join(f"{letter(i)}: {text}" for i, text in enumerate(texts))
    return Prompt(
        uid="",
        messages=({"role": "user", "content": f"{question.strip()}\n\n{lines}\n\n{INSTRUCTION}"},),
        data_source=data_source,
        ground_truth={"answer": letter(answer), "choices": len(texts)},
        extra_info=dict(extra_info),
    )


def letter(place: int) -> str:
    return chr(ord("A") + place)
