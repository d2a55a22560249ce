"""KodCode: `question`, `solution`, `test` (a pytest file that imports from `solution`, or stdin and stdout lists)."""

from __future__ import annotations

import ast
import json
from collections.abc import Mapping
from typing import Any

from sdpo.data.prepare.source import HubFiles, Source, optional, parse_python, text_field
from sdpo.errors import DataError
from sdpo.records import Prompt

PROGRAM = "Answer with one Python code block that holds the whole program."
READS_STDIN = "The program reads standard input and writes standard output."


def convert(row: Mapping[str, Any], split: str) -> Prompt:
    """`extra_info.solution` is the published program, for checks of the grader; the policy never sees it."""
    question, test = text_field(row, "question").strip(), text_field(row, "test")
    streams = _streams(test)
    truth: dict[str, Any]
    if streams is None:
        truth, instruction = {"type": "assert", "code": _python(test)}, f"{PROGRAM}{_signatures(row)}"
    else:
        truth, instruction = {"type": "stdin", "cases": streams}, f"{PROGRAM} {READS_STDIN}"
    return Prompt(
        uid="",
        messages=({"role": "user", "content": f"{question}\n\n{instruction}"},),
        data_source="kodcode",
        ground_truth=truth,
        extra_info={
            "index": row.get("question_id") or row.get("conversation_id"),
            "category": row.get("subset"),
            "split": split,
            "solution": text_field(row, "solution"),
        },
    )


def _streams(test: str) -> list[dict[str, str]] | None:
    """Cases of a test written as {"stdin": [...], "stdout": [...]}, in JSON or as a Python literal; None for code."""
    if not test.lstrip().startswith("{"):
        return None
    try:
        data = json.loads(test)
    except (ValueError, RecursionError):
        try:
            data = ast.literal_eval(test)
        except (ValueError, SyntaxError, TypeError, RecursionError, MemoryError) as error:
            raise DataError(f"test: neither code nor stdin and stdout: {error}") from error
    given, expected = (data.get(name) if isinstance(data, dict) else None for name in ("stdin", "stdout"))
    if not isinstance(given, list) or not isinstance(expected, list) or not given or len(given) != len(expected):
        raise DataError("test: stdin and stdout must be lists of the same length, not empty")
    return [{"input": str(i), "output": str(o)} for i, o in zip(given, expected, strict=True)]


def _python(test: str) -> str:
    tree = parse_python(test, "test")
    if not any(isinstance(node, ast.FunctionDef) and node.name.startswith("test") for node in ast.walk(tree)):
        raise DataError("test: no test function")
    return test


def _signatures(row: Mapping[str, Any]) -> str:
    """The functions that the tests call; the question does not always name them."""
    infos = [info for info in optional(row, "test_info", list) if isinstance(info, Mapping)]
    lines = [line for info in infos if (line := optional(info, "function_declaration", str))]
    return " It has to define:\n\n```python\n" + "\n".join(lines) + "\n```" if lines else ""


SOURCE = Source(
    name="kodcode",
    convert=convert,
    origin="https://huggingface.co/datasets/KodCode/KodCode-V1",
    licence="CC-BY-NC-4.0",
    description="synthetic programming problems with verified solutions and tests",
    hub=HubFiles("KodCode/KodCode-V1", ("data/train-*.parquet",), "data"),
)
