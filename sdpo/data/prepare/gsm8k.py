"""GSM8K: JSON lines with `question` and `answer`, a worked solution whose last line is "#### NUMBER"."""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Any

from sdpo.data.prepare.source import HubFiles, Source, text_field
from sdpo.errors import DataError
from sdpo.records import Prompt

INSTRUCTION = "Reason step by step and put your final answer, a number, within \\boxed{}."
_GOLD = re.compile(r"####\s*(-?[\d,]*\.?\d+)\s*$")


def convert(row: Mapping[str, Any], split: str) -> Prompt:
    """The ground truth is the number as text, without thousands separators."""
    question, answer = text_field(row, "question").strip(), text_field(row, "answer")
    found = _GOLD.search(answer)
    if not found:
        raise DataError(f"answer: ends in {answer[-30:]!r}; it must end in #### and a number")
    return Prompt(
        uid="",
        messages=({"role": "user", "content": f"{question}\n\n{INSTRUCTION}"},),
        data_source="gsm8k",
        ground_truth=found.group(1).replace(",", ""),
        extra_info={"split": split},
    )


SOURCE = Source(
    name="gsm8k",
    convert=convert,
    origin="https://github.com/openai/grade-school-math",
    licence="MIT",
    description="grade-school mathematics",
    hub=HubFiles("openai/gsm8k", ("main/*.parquet",), "main"),
)
