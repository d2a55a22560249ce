"""SciKnowEval level 3, multiple choice, as published with the SDPO reference: JSON lines; `prompt`, `system`, `answer`.

A folder with train.json and test.json is one domain; a folder of such folders is all of them.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Any

from sdpo.data.prepare.source import Source, text_field
from sdpo.errors import DataError
from sdpo.records import Prompt

_OPTION = re.compile(r"^([A-Z]):", re.MULTILINE)


def convert(row: Mapping[str, Any], split: str) -> Prompt:
    """The ground truth is {"answer": letter, "choices": number of options}."""
    question, answer = text_field(row, "prompt"), text_field(row, "answer").strip()
    letters = _OPTION.findall(question)
    expected = [chr(ord("A") + i) for i in range(len(letters))]
    if len(letters) < 2 or letters != expected:
        raise DataError(f"prompt: options {letters}; at least two lines that start with A:, B:, ... in order")
    if answer not in letters:
        raise DataError(f"answer: got {answer!r}; allowed: {', '.join(letters)}")
    system = row.get("system")
    messages = [{"role": "system", "content": system}] if system else []
    return Prompt(
        uid="",
        messages=(*messages, {"role": "user", "content": question}),
        data_source="sciknoweval",
        ground_truth={"answer": answer, "choices": len(letters)},
        extra_info={"index": row.get("idx"), "split": split},
    )


SOURCE = Source(
    name="sciknoweval",
    convert=convert,
    origin="https://github.com/lasgroup/SDPO (SciKnowEval L3, https://github.com/HICAI-ZJU/SciKnowEval)",
    licence="MIT",
    description="multiple-choice science questions",
)
