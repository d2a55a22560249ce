"""Sources beside those of test_prepare.py, on small files in the publishers' own formats, through the real graders."""

from __future__ import annotations

import base64
import json
import pickle
import shutil
import zlib
from pathlib import Path
from typing import Any

import pytest

from sdpo.cli.gold_answers import responses
from sdpo.config.schema import Config, DataConfig
from sdpo.data.load import load_prompts
from sdpo.data.prepare.mathematics import convert as convert_math
from sdpo.data.prepare.write import SOURCES, Prepared, Selection, prepare
from sdpo.errors import DataError
from sdpo.grading.registry import build_source_grader
from sdpo.records import Prompt

CASES = [{"input": f"{i}\n", "output": f"{2 * i}\n", "testtype": "stdin"} for i in range(1, 9)]
DOUBLE = "print(2 * int(input()))"
LCB = {
    "question_title": "Double",
    "question_content": "Print twice the number.",
    "platform": "atcoder",
    "question_id": "abc400_a",
    "contest_id": "abc400",
    "contest_date": "2025-03-08T00:00:00",
    "starter_code": "",
    "difficulty": "easy",
    "metadata": "{}",
}
CALLS = [
    {"input": "[1, 2]\n3", "output": "6", "testtype": "functional"},
    {"input": "[]\n12345678901234567890", "output": "12345678901234567890", "testtype": "functional"},
]
SOLUTION_CLASS = "class Solution:\n    def total(self, nums, start):\n        return start + sum(nums)"


def packed(cases: list[dict[str, str]], protocol: int = pickle.DEFAULT_PROTOCOL) -> str:
    """As the publisher stores private tests."""
    return base64.b64encode(zlib.compress(pickle.dumps(json.dumps(cases), protocol))).decode()


def contest(cases: list[dict[str, str]], public: int, **changes: Any) -> dict[str, Any]:
    row = {**LCB, "public_test_cases": json.dumps(cases[:public]), "private_test_cases": packed(cases[public:])}
    return {**row, **changes}


@pytest.fixture(scope="module")
def grader():
    built = build_source_grader(Config())
    yield built
    built.close()


@pytest.fixture
def fixtures(repository: Path) -> Path:
    return repository / "tests/fixtures/data_sources"


def write(path: Path, rows: list[dict[str, Any]]) -> Path:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text("\n".join(map(json.dumps, rows)), encoding="utf-8")
    return path


def to_parquet(source: Path, target: Path) -> Path:
    import pyarrow
    import pyarrow.parquet

    rows = [json.loads(line) for line in source.read_text(encoding="utf-8").splitlines()]
    target.parent.mkdir(parents=True, exist_ok=True)
    pyarrow.parquet.write_table(pyarrow.Table.from_pylist(rows), target)
    return target


def load(done: Prepared, out: Path) -> list[Prompt]:
    return [p for name in done.rows for p in load_prompts([str(out / name)], DataConfig())]


def assert_graded(prompts: list[Prompt], grader) -> None:
    for prompt in prompts:
        assert grader.check(prompt) is None
        pair = responses(prompt)
        assert pair is not None
        grades = [grader.grade(prompt, text, False) for text in (pair.right, pair.wrong)]
        assert [grade.reward for grade in grades] == [1.0, 0.0], grades


@pytest.mark.parametrize(
    ("name", "file", "rows", "dropped"),
    [
        ("math", "math.jsonl", {"test.parquet": 3}, 1),
        ("mbpp", "mbpp.jsonl", {"train.parquet": 2, "test.parquet": 1, "validation.parquet": 1}, 1),
        ("mbpp_plus", "mbpp_plus.jsonl", {"test.parquet": 1}, 0),
        ("humaneval_plus", "humaneval_plus.jsonl", {"test.parquet": 1}, 0),
        ("kodcode", "kodcode.jsonl", {"test.parquet": 3}, 1),
        ("mmlu_pro", "mmlu_pro.jsonl", {"test.parquet": 2}, 1),
        ("gpqa", "gpqa_diamond.csv", {"test.parquet": 2}, 1),
        ("sciknoweval", "sciknoweval_hub.jsonl", {"chemistry/test.parquet": 1, "physics/test.parquet": 1}, 0),
    ],
)
def test_every_gold_answer_is_right_and_another_is_wrong(
    name: str, file: str, rows: dict[str, int], dropped: int, fixtures: Path, tmp_path: Path, grader
) -> None:
    done = prepare(name, fixtures / file, tmp_path)
    assert done.rows == rows and len(done.dropped) == dropped
    assert_graded(load(done, tmp_path), grader)


def test_parquet_shards_in_the_hubs_layout_give_the_same_rows(fixtures: Path, tmp_path: Path) -> None:
    for shard in range(2):
        to_parquet(fixtures / "mmlu_pro.jsonl", tmp_path / f"in/data/test-0000{shard}-of-00002.parquet")
    to_parquet(fixtures / "mmlu_pro.jsonl", tmp_path / "in/data/validation-00000-of-00001.parquet")
    done = prepare("mmlu_pro", tmp_path / "in/data", tmp_path / "out")
    assert done.rows == {"test.parquet": 4, "validation.parquet": 2}


def test_every_source_that_is_on_the_hub_is_read_from_a_snapshot_of_it(
    fixtures: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The hub's cache, laid out as the client does; the network is off."""
    commit = "0123456789abcdef0123456789abcdef01234567"
    monkeypatch.setattr("huggingface_hub.constants.HF_HUB_CACHE", str(tmp_path / "cache"))
    for name, file, inside in (
        ("mmlu_pro", "mmlu_pro.jsonl", "data/test-00000-of-00001.parquet"),
        ("mbpp_plus", "mbpp_plus.jsonl", "data/test-00000-of-00001-d5781c9c51e02795.parquet"),
        ("kodcode", "kodcode.jsonl", "data/train-00000-of-00001.parquet"),
        ("math", "math.jsonl", "algebra/train-00000-of-00001.parquet"),
        ("gpqa", "gpqa_diamond.csv", "gpqa_diamond.csv"),
    ):
        hub = SOURCES[name].hub
        assert hub is not None
        store = tmp_path / "cache" / f"datasets--{hub.id.replace('/', '--')}"
        target = store / "snapshots" / commit / inside
        target.parent.mkdir(parents=True)
        (store / "refs").mkdir()
        (store / "refs/main").write_text(commit)
        to_parquet(fixtures / file, target) if inside.endswith(".parquet") else shutil.copy(fixtures / file, target)
        prepare(name, None, tmp_path / name)
        manifest = json.loads((tmp_path / name / "manifest.json").read_text())
        assert (manifest["hub_id"], manifest["revision"]) == (hub.id, commit)
        assert sum(f["rows"] for f in manifest["files"]) + len(manifest["dropped"]) == sum(
            f["rows"] for f in manifest["source_files"]
        )


def test_a_source_that_is_not_on_the_hub_says_where_it_is(tmp_path: Path) -> None:
    with pytest.raises(DataError, match="tooluse: not on the hub .*github.com/lasgroup/SDPO"):
        prepare("tooluse", None, tmp_path)


@pytest.mark.parametrize(
    ("solution", "answer"),
    [
        (r"\boxed{\frac{1}{2}} or rather \boxed{3}", "3"),
        (r"\boxed{\{x : \sqrt{x} > 1\}}", r"\{x : \sqrt{x} > 1\}"),
        (r"so $\boxed 7$.", "7"),
        (r"the points $\boxed{(2,2)}$ and $\boxed{(6,2)}$.", "(2,2), (6,2)"),
        (r"\fbox{x}", "x"),
        (r"\boxed{3} and \boxed{4", None),
        ("none", None),
    ],
)
def test_the_answer_of_a_solution_is_its_last_complete_box(solution: str, answer: str | None) -> None:
    row = {"problem": "?", "solution": solution}
    if answer is None:
        with pytest.raises(DataError, match="no complete"):
            convert_math(row, "train")
    else:
        assert convert_math(row, "train").ground_truth == answer


def test_gpqa_answers_stand_at_different_letters_and_always_at_the_same(fixtures: Path, tmp_path: Path) -> None:
    orders = []
    for out in ("a", "b"):
        done = prepare("gpqa", fixtures / "gpqa_diamond.csv", tmp_path / out)
        orders.append([(p.ground_truth["answer"], p.messages[0]["content"]) for p in load(done, tmp_path / out)])
    assert orders[0] == orders[1]
    assert ": neutron" in orders[0][0][1].split(f"\n{orders[0][0][0]}", 1)[1].split("\n")[0]


# -- LiveCodeBench -----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("protocol", range(pickle.HIGHEST_PROTOCOL + 1))
def test_private_tests_in_the_sources_encoding_come_back(protocol: int, tmp_path: Path, grader) -> None:
    row = contest(CASES, 2, private_test_cases=packed(CASES[2:], protocol))
    done = prepare(
        "livecodebench", write(tmp_path / "test6.jsonl", [row]), tmp_path / "out", Selection(division="source")
    )
    (prompt,) = load(done, tmp_path / "out")
    cases = prompt.ground_truth["cases"]
    assert [(c["input"], c["output"]) for c in cases] == [(c["input"], c["output"]) for c in CASES]
    assert [c["hidden"] for c in cases] == [False] * 2 + [True] * 6
    assert grader.grade(prompt, f"```python\n{DOUBLE}\n```", False).reward == 1.0
    assert grader.grade(prompt, "```python\nprint(2)\n```", False).passed_fraction == 1 / 8


def test_functional_tests_call_the_method_of_the_starter_code(tmp_path: Path, grader) -> None:
    starter = "class Solution:\n    def total(self, nums: List[int], start: int) -> int:\n        "
    row = contest(CALLS, 1, starter_code=starter, metadata=json.dumps({"func_name": "total"}))
    done = prepare("livecodebench", write(tmp_path / "test6.jsonl", [row]), tmp_path / "out")
    train, test = load(done, tmp_path / "out")
    assert "def total" in test.messages[0]["content"] and test.ground_truth["name"] == "total"
    assert [len(p.ground_truth["cases"]) for p in (train, test)] == [1, 2]
    for prompt in (train, test):
        assert grader.grade(prompt, f"```python\n{SOLUTION_CLASS}\n```", False).reward == 1.0
        wrong = SOLUTION_CLASS.replace("start + ", "")
        assert grader.grade(prompt, f"```python\n{wrong}\n```", False).reward == 0.0


def test_training_sees_half_of_the_tests_and_evaluation_all_of_them(tmp_path: Path) -> None:
    rows = [contest(CASES, 2, question_id=str(i), question_content=f"Double {i}.") for i in range(3)]
    source = write(tmp_path / "test6.jsonl", rows)
    done = prepare("livecodebench", source, tmp_path / "out")
    assert done.rows == {"train.parquet": 3, "test.parquet": 3}
    train, test = (load_prompts([str(tmp_path / f"out/{s}.parquet")], DataConfig()) for s in ("train", "test"))
    for few, all_of_them in zip(train, test, strict=True):
        half = [case["input"] for case in few.ground_truth["cases"]]
        assert len(half) == 4 and half[:2] == ["1\n", "2\n"]  # what the publisher shows is in it
        assert not any(case["hidden"] for case in few.ground_truth["cases"])
        shown = [case["input"] for case in all_of_them.ground_truth["cases"] if not case["hidden"]]
        assert len(all_of_them.ground_truth["cases"]) == 8 and shown == half
        assert few.messages == all_of_them.messages
    assert len({tuple(c["input"] for c in p.ground_truth["cases"]) for p in train}) > 1  # drawn for each question
    prepare("livecodebench", source, tmp_path / "again")
    prepare("livecodebench", source, tmp_path / "other", Selection(seed=1))
    same = [
        (tmp_path / f / "train.parquet").read_bytes() == (tmp_path / "out/train.parquet").read_bytes()
        for f in ("again", "other")
    ]
    assert same == [True, False]


def test_the_window_of_contest_dates_counts_what_it_leaves_out(tmp_path: Path) -> None:
    from sdpo.data.window import DateWindow

    dates = ("2025-01-31T00:00:00", "2025-02-01T00:00:00", "2025-05-31T23:59:59")
    rows = [contest(CASES, 2, contest_date=date, question_id=date) for date in dates]
    window = DateWindow.parse("2025-02-01", "2025-05-31")
    done = prepare("livecodebench", write(tmp_path / "test6.jsonl", rows), tmp_path / "out", Selection(window=window))
    assert done.outside_window == 1 and done.rows == {"train.parquet": 2, "test.parquet": 2}
    assert {p.extra_info["date"] for p in load(done, tmp_path / "out")} == set(dates[1:])


def test_several_files_of_a_release_become_one_set(tmp_path: Path) -> None:
    for name in ("test.jsonl", "test2.jsonl", "test6.jsonl"):
        write(tmp_path / "in" / name, [contest(CASES, 2, question_id=name)])
    done = prepare("livecodebench", tmp_path / "in", tmp_path / "out")
    assert done.rows == {"train.parquet": 3, "test.parquet": 3}


@pytest.mark.parametrize("index", [1.0, "1", None, -1, 26, [1]])
def test_an_mmlu_pro_answer_index_that_is_no_place_is_refused(index: Any) -> None:
    row = {"question": "q", "options": ["a", "b"], "answer": "B", "answer_index": index}
    with pytest.raises(DataError, match="they name different options"):
        SOURCES["mmlu_pro"].convert(row, "test")


def test_sources_without_a_list_of_tests_cannot_be_divided_by_them(fixtures: Path, tmp_path: Path) -> None:
    with pytest.raises(DataError, match="mmlu_pro: its rows have no list of test cases"):
        prepare("mmlu_pro", fixtures / "mmlu_pro.jsonl", tmp_path, Selection(division="tests"))
