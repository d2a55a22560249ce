"""MBPP and MBPP+: `text` (or `prompt`), `code`, `test_list` of assert statements; MBPP+ adds `test`, a program."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from sdpo.data.prepare.source import HubFiles, Source, optional, parse_python, text_field
from sdpo.errors import DataError
from sdpo.records import Prompt

INSTRUCTION = "Answer with one Python code block that holds the whole program. It has to pass tests such as:"
TEST_IDS, VALIDATION_IDS = range(11, 511), range(511, 601)  # the publisher's split; few-shot rows 1 to 10 are training
SHOWN_TESTS = 1  # the name and the arguments of the function stand nowhere else


def convert(row: Mapping[str, Any], split: str) -> Prompt:
    """The ground truth is {"type": "assert", "code"}: the shown tests are part of it. `extra_info.solution` is the
    published program, for checks of the grader; the policy never sees it."""
    question = row.get("text") or row.get("prompt")
    if not isinstance(question, str) or not question.strip():
        raise DataError(f"text: got {question!r}; it must be text")
    shown = row.get("test_list")
    if not isinstance(shown, list) or not shown or not all(isinstance(test, str) for test in shown):
        raise DataError(f"test_list: got {shown!r:.60}; it must be a list of assert statements")
    tests = "\n".join(shown[:SHOWN_TESTS])
    code = optional(row, "test", str) or "\n".join([*_set_up(row), *shown])
    parse_python(code, "test_list")
    return Prompt(
        uid="",
        messages=({"role": "user", "content": f"{question.strip()}\n\n{INSTRUCTION}\n\n```python\n{tests}\n```"},),
        data_source="mbpp",
        ground_truth={"type": "assert", "code": code},
        extra_info={"index": row.get("task_id"), "split": split, "solution": text_field(row, "code")},
    )


def _set_up(row: Mapping[str, Any]) -> list[str]:
    """Lines before the tests: `test_setup_code` (text) or `test_imports` (a list)."""
    lines = [optional(row, "test_setup_code", str), *optional(row, "test_imports", list)]
    return [line for line in lines if isinstance(line, str) and line]


def _place(row: Mapping[str, Any], folder: str, split: str) -> tuple[str, str]:
    """MBPP is one file; the split follows from `task_id`."""
    number = row.get("task_id")
    if not isinstance(number, int):
        raise DataError(f"task_id: got {number!r}; it must be a number")
    return folder, "test" if number in TEST_IDS else "validation" if number in VALIDATION_IDS else "train"


SOURCE = Source(
    name="mbpp",
    convert=convert,
    origin="https://github.com/google-research/google-research/tree/master/mbpp",
    licence="CC-BY-4.0",
    description="short Python functions from one sentence",
    hub=HubFiles("google-research-datasets/mbpp", ("full/*.parquet",), "full"),
    place=_place,
)
PLUS = Source(
    name="mbpp_plus",
    convert=convert,
    origin="https://huggingface.co/datasets/evalplus/mbppplus",
    licence="Apache-2.0",
    description="MBPP with many more tests",
    hub=HubFiles("evalplus/mbppplus", ("data/*.parquet",), "data"),
)
