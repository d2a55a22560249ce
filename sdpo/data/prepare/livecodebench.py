"""LiveCodeBench, code generation: JSON lines with `question_content`, `starter_code`, `contest_date` and tests as JSON
text, the private ones compressed (`private_tests.py`)."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from sdpo.data.prepare.private_tests import decode_tests
from sdpo.data.prepare.source import HubFiles, Source, optional, parse_json, text_field
from sdpo.errors import DataError
from sdpo.records import Prompt

READS_STDIN = (
    "Write a Python program that reads standard input and writes standard output. Answer with one Python code block"
    " that holds the whole program."
)
STARTER = (
    "Complete this code. Answer with one Python code block that holds the whole program, the given names included."
)
TEST_SECONDS = 6.0  # CPU time of one test, as the benchmark's own runner allows


def convert(row: Mapping[str, Any], split: str) -> Prompt:
    """The ground truth holds every test; those that the publisher keeps private are `hidden`."""
    public = decode_tests(text_field(row, "public_test_cases"))
    private = decode_tests(optional(row, "private_test_cases", str) or "[]")
    tests = [*((test, False) for test in public), *((test, True) for test in private)]
    kinds = {test["testtype"] for test, _ in tests}
    if len(kinds) != 1 or not kinds <= {"stdin", "functional"}:
        raise DataError(f"test cases: kinds {sorted(kinds)}; all of a problem are stdin, or all are functional")
    if kinds == {"stdin"}:
        cases = [{"input": t["input"], "output": t["output"], "hidden": hidden} for t, hidden in tests]
        truth: dict[str, Any] = {"type": "stdin", "cases": cases}
    else:
        truth = {"type": "function", "name": _function(row), "cases": [_call(t, hidden) for t, hidden in tests]}
    return Prompt(
        uid="",
        messages=({"role": "user", "content": _question(row)},),
        data_source="livecodebench",
        ground_truth=truth | {"limits": {"cpu_s": TEST_SECONDS}},
        extra_info={
            "index": row.get("question_id"),
            "category": row.get("difficulty"),
            "date": row.get("contest_date"),
            "split": split,
        },
    )


def _question(row: Mapping[str, Any]) -> str:
    question, starter = text_field(row, "question_content").strip(), optional(row, "starter_code", str)
    if starter.strip():
        return f"{question}\n\n{STARTER}\n\n```python\n{starter.rstrip()}\n```"
    return f"{question}\n\n{READS_STDIN}"


def _function(row: Mapping[str, Any]) -> str:
    metadata = parse_json(text_field(row, "metadata"), "metadata")
    name = metadata.get("func_name") if isinstance(metadata, dict) else None
    if not isinstance(name, str) or not name:
        raise DataError("metadata: no func_name for functional tests")
    return name


def _call(test: Mapping[str, str], hidden: bool) -> dict[str, Any]:
    """Arguments are one JSON value a line."""
    where = "test cases: a functional test"
    arguments = [parse_json(line, where) for line in test["input"].split("\n") if line.strip()]
    return {"args": arguments, "expected": parse_json(test["output"], where), "hidden": hidden}


SOURCE = Source(
    name="livecodebench",
    convert=convert,
    origin="https://huggingface.co/datasets/livecodebench/code_generation_lite",
    licence="CC",
    description="contest problems with dates; version 6 from the hub",
    hub=HubFiles("livecodebench/code_generation_lite", ("test6.jsonl",)),
    date_field="contest_date",
    division="tests",
)
