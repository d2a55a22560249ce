"""MMLU-Pro: `question`, `options` (up to ten), `answer` (letter), `answer_index`, `category`."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from sdpo.data.prepare.choices import MAX_OPTIONS, choice_prompt, letter
from sdpo.data.prepare.source import HubFiles, Source, optional, text_field
from sdpo.errors import DataError
from sdpo.records import Prompt


def convert(row: Mapping[str, Any], split: str) -> Prompt:
    """The ground truth is {"answer": letter, "choices": number of options}."""
    answer, index = text_field(row, "answer").strip(), row.get("answer_index")
    if not isinstance(index, int) or index not in range(MAX_OPTIONS) or letter(index) != answer:
        raise DataError(f"answer: got {answer!r} with answer_index {index!r}; they name different options")
    info = {"index": row.get("question_id"), "category": row.get("category"), "split": split}
    return choice_prompt("mmlu_pro", text_field(row, "question"), optional(row, "options", list), index, info)


SOURCE = Source(
    name="mmlu_pro",
    convert=convert,
    origin="https://huggingface.co/datasets/TIGER-Lab/MMLU-Pro",
    licence="MIT",
    description="multiple-choice questions of fourteen subjects, up to ten options",
    hub=HubFiles("TIGER-Lab/MMLU-Pro", ("data/*.parquet",), "data"),
)
