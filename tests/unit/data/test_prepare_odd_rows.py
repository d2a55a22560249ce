"""A row of a source that is not what its publisher says is dropped with a reason; it does not end the conversion."""

from __future__ import annotations

import csv
import json
from pathlib import Path
from typing import Any

import pytest

from sdpo.data.files import read_rows
from sdpo.data.prepare.write import SOURCES, prepare
from sdpo.errors import DataError

CASE = {"input": "1\n[2]", "output": "2", "testtype": "functional"}
# Sources without a file among the fixtures.
ROWS: dict[str, dict[str, Any]] = {
    "gsm8k": {"question": "2+2?", "answer": "#### 4"},
    "tooluse": {"prompt": "q", "system": None, "answer": '[{"Action": "a", "Action_Input": "{}"}]'},
    "humaneval": {
        "task_id": "HumanEval/900",
        "prompt": "def f(x):\n",
        "entry_point": "f",
        "canonical_solution": "    return x\n",
        "test": "def check(candidate):\n    assert candidate(8) == 8\n",
    },
    "livecodebench": {
        "question_content": "q",
        "starter_code": "class A: pass",
        "contest_date": "2025-02-01",
        "public_test_cases": json.dumps([CASE]),
        "private_test_cases": "[]",
        "metadata": '{"func_name": "f"}',
    },
}
DEEP = "[" * 100_000 + "]" * 100_000
ODD = (
    None, True, -1, 10**30, float("nan"), "", "x", [], [1], ["x"], {}, {"a": 1}, {"level": 3}, "1", "[1]", '{"a": 1}',
    "{1, 2}", "{[]: 1}", "\ud800", "\x00", DEEP, '{"a":' * 100_000, "{" + "-" * 100_000 + "1}", "a" + ".a" * 100_000,
    '[{"Action": 1}]', json.dumps([{"Action": "a", "Action_Input": DEEP}]), json.dumps([CASE | {"input": DEEP}]),
)  # fmt: skip


def good_rows(name: str, repository: Path) -> list[dict[str, Any]]:
    if name in ROWS:
        return [ROWS[name]]
    fixtures = repository / "tests/fixtures/data_sources"
    if name == "gpqa":
        with open(fixtures / "gpqa_diamond.csv", encoding="utf-8", newline="") as lines:
            return list(csv.DictReader(lines))[:1]
    return list(read_rows(fixtures / f"{'sciknoweval_hub' if name == 'sciknoweval' else name}.jsonl"))


@pytest.mark.parametrize("name", SOURCES)
def test_whatever_stands_in_a_field_the_row_is_converted_or_refused(name: str, repository: Path) -> None:
    source = SOURCES[name]
    refused = 0
    for row in good_rows(name, repository):
        for changed in ({**row, field: value} for field in row for value in ODD):
            try:
                if source.selects is None or source.selects(changed):
                    source.convert(changed, source.place(changed, "", "train")[1] if source.place else "train")
            except DataError as error:
                assert str(error)
                refused += 1
    assert refused


@pytest.mark.parametrize(("name", "field"), [("gpqa", "Record ID"), ("gpqa", "Subdomain"), ("tooluse", "answer")])
def test_half_of_a_surrogate_pair_anywhere_in_a_row_is_dropped_and_named(
    name: str, field: str, repository: Path, tmp_path: Path
) -> None:
    row = good_rows(name, repository)[0]
    half = json.dumps([{"Action": "\ud800"}]) if field == "answer" else "\ud800"
    (tmp_path / "train.jsonl").write_text("\n".join(map(json.dumps, [row, {**row, field: half}])))
    done = prepare(name, tmp_path / "train.jsonl", tmp_path / "out")
    assert done.rows == {"train.parquet": 1}
    assert [(d["row"], "surrogate pair" in str(d["why"])) for d in done.dropped] == [(2, True)]
