"""Rows here are written by hand in the publishers' formats."""

from __future__ import annotations

import dataclasses
import gzip
import json
from pathlib import Path
from typing import Any

import pytest

from sdpo.cli.data import main
from sdpo.config.schema import DataConfig
from sdpo.data.load import load_prompts
from sdpo.data.prepare.source import Source
from sdpo.data.prepare.write import SOURCES, Selection, prepare
from sdpo.data.window import DateWindow
from sdpo.errors import DataError
from sdpo.records import Prompt

SYSTEM = "\nSelect the right answer.\n<answer>\n...\n</answer>\n"


def science(index: int, answer: str = "B", options: str = "A: iron\nB: gold\nC: lead\nD: zinc") -> dict[str, Any]:
    question = f"Which metal is number {index}?\n\n{options}\nPlease reason step by step."
    return {
        "idx": index,
        "kind": "mcq",
        "dataset": "sciknoweval",
        "answer": answer,
        "prompt": question,
        "system": SYSTEM,
    }


def action(name: str, arguments: str) -> dict[str, str]:
    return {"Action": name, "Action_Input": arguments}


TOOLUSE = [
    {
        "idx": 1,
        "system": None,
        "prompt": "Tools: ...\nQuestion: one",
        "answer": json.dumps([action("get-weather", '{"city": "Oslo"}')]),
    },
    {
        "idx": 2,
        "system": None,
        "prompt": "Tools: ...\nQuestion: two",
        "answer": json.dumps([action("a", "{}"), action("b", '{"n": 1}')]),
    },
    {"idx": 3, "system": None, "prompt": "Tools: ...\nQuestion: bad", "answer": json.dumps([action("a", "{oops")])},
]
HUMANEVAL = {
    "task_id": "HumanEval/900",
    "prompt": 'import math\n\n\ndef half(x):\n    return x / 2\n\n\ndef quarter(x):\n    """ A quarter. """\n',
    "entry_point": "quarter",
    "canonical_solution": "    return half(half(x))\n",
    "test": "\ndef check(candidate):\n    assert candidate(8) == half(4)\n",
}
GSM8K = [
    {"question": "How many? ", "answer": "3*4=<<3*4=12>>12\n#### 12"},
    {"question": "How much?", "answer": "Many.\n#### 1,200"},
    {"question": "How cold?", "answer": "Very.\n#### -5"},
    {"question": "How?", "answer": "No number."},
]


def question(text: str) -> dict[str, str]:
    return {"question": text, "answer": "Few.\n#### 3"}


def write(path: Path, rows: list[dict[str, Any]]) -> Path:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text("\n".join(map(json.dumps, rows)), encoding="utf-8")
    return path


def load(path: Path) -> list[Prompt]:
    return load_prompts([str(path)], DataConfig())


def manifest(folder: Path) -> dict[str, Any]:
    return json.loads((folder / "manifest.json").read_text(encoding="utf-8"))


def test_sciknoweval_keeps_question_system_letter_and_number_of_choices(tmp_path: Path) -> None:
    two = science(2, "A", "A: left\nB: right")
    for domain, rows in (("physics", [science(1)]), ("biology", [two])):
        write(tmp_path / "in" / domain / "train.json", rows)
        write(tmp_path / "in" / domain / "test.json", [science(9)])
    done = prepare("sciknoweval", tmp_path / "in", tmp_path / "out")
    assert done.rows == {f"{d}/{s}.parquet": 1 for d in ("physics", "biology") for s in ("train", "test")}
    (prompt,) = load(tmp_path / "out/biology/train.parquet")
    assert prompt.data_source == "sciknoweval" and prompt.ground_truth == {"answer": "A", "choices": 2}
    assert prompt.messages == ({"role": "system", "content": SYSTEM}, {"role": "user", "content": two["prompt"]})
    assert prompt.extra_info == {"index": 2, "split": "train"}


@pytest.mark.parametrize("broken", [science(1, "E"), science(1, "B", "A: only"), science(1, "A", "A: x\nC: y")])
def test_a_question_without_a_gradable_letter_is_dropped_and_listed(tmp_path: Path, broken: dict[str, Any]) -> None:
    done = prepare("sciknoweval", write(tmp_path / "in/train.json", [science(1), broken]), tmp_path / "out")
    assert done.rows == {"train.parquet": 1}
    (dropped,) = manifest(tmp_path / "out")["dropped"]
    assert (dropped["file"], dropped["row"]) == ("train.json", 2) and dropped["why"]


def test_gsm8k_gold_is_the_number_after_the_marks_without_separators(tmp_path: Path) -> None:
    done = prepare("gsm8k", write(tmp_path / "in/train.jsonl", GSM8K), tmp_path / "out")
    prompts = load(tmp_path / "out/train.parquet")
    assert [p.ground_truth for p in prompts] == ["12", "1200", "-5"] and len(done.dropped) == 1
    assert (
        prompts[0].messages[-1]["content"].startswith("How many?\n\n")
        and "\\boxed{}" in prompts[0].messages[-1]["content"]
    )


def test_tooluse_gold_is_an_ordered_list_of_calls_with_their_own_arguments(tmp_path: Path) -> None:
    done = prepare("tooluse", write(tmp_path / "in/test.json", TOOLUSE), tmp_path / "out")
    first, second = load(tmp_path / "out/test.parquet")
    assert first.ground_truth == [{"name": "get-weather", "arguments": {"city": "Oslo"}}]
    assert second.ground_truth == [{"name": "a", "arguments": {}}, {"name": "b", "arguments": {"n": 1}}]
    assert [d["row"] for d in done.dropped] == [3] and "not valid JSON" in str(done.dropped[0]["why"])


def test_humaneval_tests_run_alone_against_the_published_solution(tmp_path: Path) -> None:
    path = tmp_path / "HumanEval.jsonl.gz"
    with gzip.open(path, "wt", encoding="utf-8") as file:
        file.write(json.dumps(HUMANEVAL))
    prepare("humaneval", path, tmp_path / "out")
    (prompt,) = load(tmp_path / "out/test.parquet")
    truth, judge, program = prompt.ground_truth, {}, {}
    assert truth["type"] == "assert" and truth["entry_point"] == "quarter"
    exec(truth["code"], judge)  # own namespace: the given functions must be in the test code
    exec(prompt.extra_info["solution"], program)
    judge["check"](program["quarter"])
    assert "half(half(x))" not in prompt.messages[-1]["content"] and "def quarter" in prompt.messages[-1]["content"]


def test_the_manifest_says_what_came_from_where(tmp_path: Path) -> None:
    prepare("gsm8k", write(tmp_path / "in/train.jsonl", GSM8K), tmp_path / "out")
    written = manifest(tmp_path / "out")
    assert written["data_set"] == "gsm8k" and written["licence"] == "MIT" and "github.com" in written["origin"]
    assert written["source_files"][0]["rows"] == 4 and len(written["source_files"][0]["sha256"]) == 64
    assert written["files"] == [{"file": "train.parquet", "rows": 3, "sha256": written["files"][0]["sha256"]}]


def test_a_second_run_writes_the_same_bytes(tmp_path: Path) -> None:
    source = write(tmp_path / "in/train.jsonl", GSM8K)
    for out in ("one", "two"):
        prepare("gsm8k", source, tmp_path / out)
    assert manifest(tmp_path / "one") == manifest(tmp_path / "two")


def test_a_file_is_divided_by_question_and_seed(tmp_path: Path) -> None:
    rows = [science(i // 2) for i in range(20)]  # every question twice
    source = write(tmp_path / "in/all.json", rows)
    parts = []
    for seed in (0, 0, 1):
        prepare("sciknoweval", source, tmp_path / "out", Selection(0.7, seed))
        parts.append(
            [{p.messages[-1]["content"] for p in load(tmp_path / f"out/{s}.parquet")} for s in ("train", "test")]
        )
    (train, test), again, other = parts
    assert (len(train), len(test)) == (7, 3) and not train & test
    assert again == [train, test] and other != again


def test_spellings_of_one_question_stay_on_one_side(tmp_path: Path) -> None:
    rows = [
        gsm for i in range(20) for gsm in (question(f"How many are {i} nuts?"), question(f"how  MANY are {i} nuts?"))
    ]
    prepare("gsm8k", write(tmp_path / "in/all.jsonl", rows), tmp_path / "out", Selection(0.5))
    train, test = (str(tmp_path / f"out/{part}.parquet") for part in ("train", "test"))
    assert len(load(Path(train))) == len(load(Path(test))) == 20
    assert main(["check", train, "--against", test]) == 0


def test_a_file_in_another_format_is_refused_with_the_first_reason(tmp_path: Path) -> None:
    with pytest.raises(DataError, match=r"no row can be used as gsm8k \(question: got None"):
        prepare("gsm8k", write(tmp_path / "in/train.json", [science(1)]), tmp_path / "out")
    assert not (tmp_path / "out").exists()


def test_two_files_for_one_output_are_refused(tmp_path: Path) -> None:
    for name in ("a.jsonl", "b.jsonl"):
        write(tmp_path / "in" / name, GSM8K)
    with pytest.raises(DataError, match=r"a second file for test\.parquet"):
        prepare("gsm8k", tmp_path / "in", tmp_path / "out")


DATED = [
    {"id": i, "date": date}
    for i, date in enumerate(("2025-01-31T00:00:00", "2025-02-01T00:00:00", "2025-05-31T23:59:59", "2025-06-01"), 1)
]


@pytest.fixture
def dated_source(monkeypatch: pytest.MonkeyPatch) -> None:
    def convert(row, split: str) -> Prompt:
        return Prompt("", ({"role": "user", "content": "q"},), "x", ground_truth=str(row["id"]))

    monkeypatch.setitem(SOURCES, "dated", Source("dated", convert, "here", "none", "dated rows", date_field="date"))


@pytest.mark.usefixtures("dated_source")
def test_a_window_of_dates_holds_both_ends_from_every_entry_point(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    source = write(tmp_path / "in/test.jsonl", DATED)
    done = prepare("dated", source, tmp_path / "a", Selection(window=DateWindow.parse("2025-02-01", "2025-05-31")))
    dates = ["--first-date", "2025-02-01", "--last-date", "2025-05-31"]
    assert main(["prepare", "dated", str(source), str(tmp_path / "b"), *dates]) == 0
    for out in ("a", "b"):
        assert [p.ground_truth for p in load(tmp_path / out / "test.parquet")] == ["2", "3"]
    assert done.outside_window == manifest(tmp_path / "b")["outside_window"] == 2
    assert "left out 2 rows outside of the window" in capsys.readouterr().out


@pytest.mark.usefixtures("dated_source")
def test_a_window_that_holds_no_row_is_an_error(tmp_path: Path) -> None:
    source = write(tmp_path / "in/test.jsonl", DATED)
    with pytest.raises(DataError, match="all rows are outside of the window of dates"):
        prepare("dated", source, tmp_path / "out", Selection(window=DateWindow.parse("2026-01-01", None)))


@pytest.mark.usefixtures("dated_source")
def test_a_file_that_lies_outside_of_the_window_does_not_hold_up_the_others(tmp_path: Path) -> None:
    write(tmp_path / "in/train.jsonl", DATED[:1])
    write(tmp_path / "in/test.jsonl", DATED[1:])
    selection = Selection(window=DateWindow.parse("2025-02-01", None))
    done = prepare("dated", tmp_path / "in", tmp_path / "out", selection)
    assert done.rows == {"test.parquet": 3} and done.outside_window == 1
    assert [entry["file"] for entry in manifest(tmp_path / "out")["source_files"]] == ["test.jsonl", "train.jsonl"]


@pytest.mark.usefixtures("dated_source")
def test_a_folder_of_which_nothing_is_left_is_refused_with_all_reasons(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    chosen = dataclasses.replace(SOURCES["dated"], selects=lambda row: row["id"] != 1)
    monkeypatch.setitem(SOURCES, "dated", chosen)
    write(tmp_path / "in/train.jsonl", DATED[:1])
    write(tmp_path / "in/test.jsonl", DATED[1:])
    selection = Selection(window=DateWindow.parse("2026-01-01", None))
    with pytest.raises(DataError, match="no row can .*3 rows outside of the window.* 1 rows of another kind"):
        prepare("dated", tmp_path / "in", tmp_path / "out", selection)
    assert prepare("dated", tmp_path / "in", tmp_path / "out").rows == {"test.parquet": 3}


@pytest.mark.parametrize("bad", ["test.jsonl", "test.csv"])
def test_a_file_without_a_usable_row_is_refused_whatever_the_others_hold(bad: str, tmp_path: Path) -> None:
    write(tmp_path / "in/train.jsonl", GSM8K)
    write(tmp_path / "in" / bad, GSM8K[3:] if bad.endswith("l") else [])
    with pytest.raises(DataError, match=f"{bad}: no row can be used as gsm8k"):
        prepare("gsm8k", tmp_path / "in", tmp_path / "out")


def test_a_window_for_a_source_without_dates_is_an_error_not_ignored(tmp_path: Path) -> None:
    source = write(tmp_path / "in/train.jsonl", GSM8K)
    with pytest.raises(DataError, match="gsm8k: its rows have no dates"):
        prepare("gsm8k", source, tmp_path / "out", Selection(window=DateWindow.parse(None, "2025-01-01")))


@pytest.mark.parametrize(
    ("options", "part"),
    [(["--split", "source", "--train-fraction", "0.5"], "train fraction"), (["--revision", "main"], "revision")],
)
def test_an_option_that_would_do_nothing_is_refused(
    options: list[str], part: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    source = write(tmp_path / "in/train.jsonl", GSM8K)
    assert main(["prepare", "gsm8k", str(source), str(tmp_path / "out"), *options]) == DataError.exit_code
    assert capsys.readouterr().err.startswith(f"error: {part}: got ") and not (tmp_path / "out").exists()


@pytest.mark.parametrize("dates", [("2025-02-30", None), ("2025-02-02", "2025-02-01")])
def test_an_impossible_window_is_refused(dates: tuple[str, str | None]) -> None:
    with pytest.raises(DataError, match="date: got"):
        DateWindow.parse(*dates)


def test_output_below_the_source_folder_is_refused(tmp_path: Path) -> None:
    write(tmp_path / "in/train.jsonl", GSM8K)
    with pytest.raises(DataError, match="output folder"):
        prepare("gsm8k", tmp_path / "in", tmp_path / "in/out")


def test_the_command_prints_counts_and_drops(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    source = write(tmp_path / "in/train.jsonl", GSM8K)
    assert main(["prepare", "gsm8k", str(source), str(tmp_path / "out")]) == 0
    printed = capsys.readouterr().out
    assert (
        "train.parquet: 3 rows" in printed
        and "dropped 1 rows" in printed
        and "train.jsonl row 4: answer: ends in" in printed
    )


def test_prepared_data_goes_where_the_built_in_tasks_look_for_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    source = write(tmp_path / "in/train.jsonl", GSM8K)
    for folder in ("moved", ""):
        monkeypatch.setenv("SDPO_DATA_DIR", str(tmp_path / folder) if folder else "")
        monkeypatch.chdir(tmp_path)
        assert main(["prepare", "gsm8k", str(source)]) == 0
    assert (tmp_path / "moved/gsm8k/train.parquet").is_file() and (tmp_path / "datasets/gsm8k/train.parquet").is_file()


def test_the_command_ends_in_one_line_on_bad_input(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["prepare", "poems", str(tmp_path), str(tmp_path / "out")]) == DataError.exit_code
    (tmp_path / "in").mkdir()
    assert main(["prepare", "gsm8k", str(tmp_path / "in"), str(tmp_path / "out")]) == DataError.exit_code
    lines = capsys.readouterr().err.splitlines()
    assert len(lines) == 2 and f"allowed: {', '.join(SOURCES)}" in lines[0] and "a folder with files" in lines[1]
