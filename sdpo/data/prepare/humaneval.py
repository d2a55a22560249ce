"""HumanEval: JSON lines with `task_id`, `prompt`, `entry_point`, `canonical_solution`, `test` (check(candidate))."""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Any

from sdpo.data.prepare.source import HubFiles, Source, text_field
from sdpo.errors import DataError
from sdpo.records import Prompt

INSTRUCTION = (
    "Complete the last function of this Python program. Answer with one Python code block that holds the whole program,"
    " imports and given functions included."
)


def convert(row: Mapping[str, Any], split: str) -> Prompt:
    """The ground truth is {"type": "assert", "code", "entry_point"}: `code` defines `check(candidate)`.

    Some tests call functions that the problem gives, so `code` starts with what stands before the entry point. The
    published solution is kept as `extra_info.solution`, for checks of the grader; the policy never sees it.
    """
    program, entry_point, test = (text_field(row, name) for name in ("prompt", "entry_point", "test"))
    start = re.search(rf"^def {re.escape(entry_point)}\(", program, re.MULTILINE)
    if not start or "def check(" not in test:
        raise DataError(f"prompt and test: no def of {entry_point} or no def of check")
    return Prompt(
        uid="",
        messages=({"role": "user", "content": f"{INSTRUCTION}\n\n```python\n{program.strip()}\n```"},),
        data_source="humaneval",
        ground_truth={"type": "assert", "code": program[: start.start()] + test, "entry_point": entry_point},
        extra_info={
            "index": text_field(row, "task_id"),
            "split": split,
            "solution": program + text_field(row, "canonical_solution"),
        },
    )


SOURCE = Source(
    name="humaneval",
    convert=convert,
    origin="https://github.com/openai/human-eval",
    licence="MIT",
    description="Python functions from their docstrings",
    hub=HubFiles("openai/openai_humaneval", ("openai_humaneval/*.parquet",), "openai_humaneval"),
)
PLUS = Source(
    name="humaneval_plus",
    convert=convert,
    origin="https://huggingface.co/datasets/evalplus/humanevalplus",
    licence="Apache-2.0",
    description="HumanEval with many more tests",
    hub=HubFiles("evalplus/humanevalplus", ("data/*.parquet",), "data"),
)
