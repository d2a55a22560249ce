"""GPQA: CSV with `Question`, `Correct Answer`, `Incorrect Answer 1` to `3`, `Record ID`."""

from __future__ import annotations

import random
from collections.abc import Mapping
from typing import Any

from sdpo.data.prepare.choices import choice_prompt
from sdpo.data.prepare.source import HubFiles, Source, text_field
from sdpo.records import Prompt


def convert(row: Mapping[str, Any], split: str) -> Prompt:
    """The source always names the right answer first; here the order is drawn from the record's id, so that it is the
    same in every run. The ground truth is {"answer": letter, "choices": 4}."""
    right = text_field(row, "Correct Answer")
    options = [right, *(text_field(row, f"Incorrect Answer {i}") for i in (1, 2, 3))]
    record = text_field(row, "Record ID")
    order = list(range(len(options)))
    random.Random(f"gpqa:{record}".encode("utf-8", "surrogatepass")).shuffle(order)
    info = {"index": record, "category": row.get("Subdomain"), "split": split}
    return choice_prompt("gpqa", text_field(row, "Question"), [options[i] for i in order], order.index(0), info)


SOURCE = Source(
    name="gpqa",
    convert=convert,
    origin="https://huggingface.co/datasets/Idavidrein/gpqa",
    licence="CC-BY-4.0; its authors ask that questions are not published in plain text",
    description="graduate-level multiple-choice questions (diamond from the hub; other files by name)",
    hub=HubFiles("Idavidrein/gpqa", ("gpqa_diamond.csv",)),
)
