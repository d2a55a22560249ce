"""MATH: `problem`, `solution` (its last \\boxed{} is the answer), `level`, `type`; MATH-500 also has `answer`."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from sdpo.data.boxed import NoAnswer, last_boxed
from sdpo.data.prepare.source import HubFiles, Source, text_field
from sdpo.errors import DataError
from sdpo.records import Prompt

INSTRUCTION = "Reason step by step and put your final answer within \\boxed{}."


def convert(row: Mapping[str, Any], split: str) -> Prompt:
    """The ground truth is the answer as LaTeX."""
    problem_text = text_field(row, "problem").strip()
    return Prompt(
        uid="",
        messages=({"role": "user", "content": f"{problem_text}\n\n{INSTRUCTION}"},),
        data_source="math",
        ground_truth=_answer(row),
        extra_info={"level": row.get("level"), "category": row.get("type") or row.get("subject"), "split": split},
    )


def _answer(row: Mapping[str, Any]) -> str:
    if row.get("answer") is not None:
        return text_field(row, "answer").strip()
    try:
        answer = last_boxed(text_field(row, "solution"))
    except NoAnswer:
        answer = ""
    if not answer:
        raise DataError("solution: holds no complete \\boxed{}")
    return answer


def _place(row: Mapping[str, Any], folder: str, split: str) -> tuple[str, str]:
    """Subjects are folders in the source; here they are `extra_info.category` of one file."""
    return "", split


SOURCE = Source(
    name="math",
    convert=convert,
    origin="https://github.com/hendrycks/math",
    licence="MIT",
    description="competition mathematics",
    hub=HubFiles("EleutherAI/hendrycks_math"),
    place=_place,
)
