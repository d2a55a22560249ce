"""SciKnowEval level 3, multiple choice, in two forms.

As published with the SDPO reference: JSON lines with `prompt`, `system`, `answer`; a folder with train.json and
test.json is one domain, a folder of such folders is all of them. As on the hub: `question`, `choices` with `text` and
`label`, `answerKey`, `domain`, `details.level`; domains become folders, other levels and kinds are left out.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Any

from sdpo.data.prepare.choices import choice_prompt
from sdpo.data.prepare.source import HubFiles, Source, optional, text_field
from sdpo.errors import DataError
from sdpo.records import Prompt

LEVEL = "L3"
_OPTION = re.compile(r"^([A-Z]):", re.MULTILINE)


def convert(row: Mapping[str, Any], split: str) -> Prompt:
    """The ground truth is {"answer": letter, "choices": number of options}."""
    if _from_hub(row):
        return _convert_choices(row, split)
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


def _from_hub(row: Mapping[str, Any]) -> bool:
    return "answerKey" in row


def _convert_choices(row: Mapping[str, Any], split: str) -> Prompt:
    choices, key = row.get("choices"), text_field(row, "answerKey").strip()
    if not isinstance(choices, Mapping) or not isinstance(choices.get("label"), list):
        raise DataError(f"choices: got {choices!r:.60}; it must hold text and label, two lists")
    if key not in choices["label"]:
        raise DataError(f"answerKey: got {key!r}; allowed: {', '.join(map(str, choices['label']))}")
    info = {"category": optional(row, "details", dict).get("task"), "split": split}
    place = choices["label"].index(key)
    return choice_prompt("sciknoweval", text_field(row, "question"), choices.get("text") or [], place, info)


def _selects(row: Mapping[str, Any]) -> bool:
    """Everything in the prepared form; of the hub's rows, multiple choice of level 3."""
    if not _from_hub(row):
        return True
    level = optional(row, "details", dict).get("level")
    return level == LEVEL and str(row.get("type", "")).startswith("mcq")


def _place(row: Mapping[str, Any], folder: str, split: str) -> tuple[str, str]:
    return (text_field(row, "domain").lower(), split) if _from_hub(row) else (folder, split)


SOURCE = Source(
    name="sciknoweval",
    convert=convert,
    origin="https://github.com/lasgroup/SDPO (SciKnowEval L3, https://github.com/HICAI-ZJU/SciKnowEval)",
    licence="MIT",
    description="multiple-choice science questions",
    hub=HubFiles("hicai-zju/SciKnowEval", ("*.json", "*.jsonl", "*.parquet")),
    selects=_selects,
    place=_place,
)
