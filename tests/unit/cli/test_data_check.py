from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from rich.console import Console

from sdpo.cli.data import FOUND_FAULTS, main
from sdpo.cli.data_check import inspect
from sdpo.cli.data_report import histogram, print_inspection
from sdpo.config.compose import compose
from sdpo.errors import ConfigError, DataError
from sdpo.records import Prompt

CONFIG = compose(["model=custom", "task=custom"])


def row(text: str, truth: Any = "4", source: str = "gsm8k", **more: Any) -> dict[str, Any]:
    return {"data_source": source, "prompt": text, "reward_model": {"ground_truth": truth}, **more}


def write(path: Path, rows: list[dict[str, Any]]) -> str:
    path.write_text("\n".join(map(json.dumps, rows)), encoding="utf-8")
    return str(path)


CHOICE = {"answer": "B", "choices": 4}
GOOD = [row("2+2?"), row("2-2?", "0"), row("Which?", CHOICE, "sciknoweval"), row("Add.", "4", tools=None)]
CALL = row("Weather?", [{"name": "get", "arguments": {"city": "Oslo"}}], "tooluse")
PROGRAM = row(
    "Double.",
    {"type": "stdin", "cases": [{"input": "2\n", "output": "4\n"}]},
    "code",
    extra_info={"solution": "print(2 * int(input()))"},
)


def printed(name: str, found, config=CONFIG) -> str:
    console = Console(record=True, width=300, highlight=False)
    with console.capture() as capture:
        print_inspection(name, found, config, console)
    return capture.get()


def test_a_good_file_has_nothing_to_object_to(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path = write(tmp_path / "a.jsonl", GOOD)
    assert main(["check", path]) == 0
    text = capsys.readouterr().out
    assert "4 rows, 4 usable" in text and "no rows that do not fit the schema" in text
    assert "gsm8k" in text and "math" in text and "multiple_choice" in text


def test_the_schema_says_what_the_ground_truths_are(tmp_path: Path) -> None:
    found = inspect(write(tmp_path / "a.jsonl", [*GOOD, row("q", None)]), CONFIG)
    column = found.columns["reward_model.ground_truth"]
    assert column.filled == 4 and column.types == {"text": 3, "object": 1}
    assert "reward_model.ground_truth  text | object" in printed("a.jsonl", found)


def test_every_unusable_row_is_listed_with_number_field_and_problem(tmp_path: Path) -> None:
    rows = [*GOOD, {"data_source": "x"}, row("  "), row("q", tools="[{")]
    found = inspect(write(tmp_path / "a.jsonl", rows), CONFIG)
    assert (found.rows, found.usable) == (7, 4)
    assert [(f.row, f.field) for f in found.unusable] == [(5, "prompt"), (6, "prompt"), (7, "tools")]
    text = printed("a.jsonl", found)
    assert "3 rows that do not fit the schema" in text and "row 6: prompt: the last user message is blank" in text


def test_gold_answers_that_nobody_can_grade_are_listed(tmp_path: Path) -> None:
    bad = [row("q1", "see the figure"), row("q2", {"answer": "E", "choices": 4}, "gpqa"), row("q3", "x", "poetry")]
    found = inspect(write(tmp_path / "a.jsonl", [*GOOD, *bad]), CONFIG)
    assert [f.row for f in found.ungradable] == [5, 6, 7] and found.faulty
    assert "poetry" in found.ungradable[2].why


def test_repeated_questions_are_counted_and_contradictions_told(tmp_path: Path) -> None:
    rows = [row("What is 2 + 2?"), row("what  is 2 + 2?\n"), row("What is 2 - 2?", "0"), row("What is 2 + 2?", "5")]
    found = inspect(write(tmp_path / "a.jsonl", rows), CONFIG)
    assert [(f.row, f.why) for f in found.repeated] == [(2, "as row 1"), (4, "as row 1, other answer")]
    assert found.contradicted == 1 and not found.faulty
    assert "(1 with another answer)" in printed("a.jsonl", found)


def test_questions_of_the_other_file_are_found(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    train, test = write(tmp_path / "train.jsonl", GOOD), write(tmp_path / "test.jsonl", [row("New?"), row("2+2? ")])
    assert main(["check", train, "--against", test]) == FOUND_FAULTS
    assert "1 rows with a question of the other file" in capsys.readouterr().out
    assert main(["check", train, "--against", write(tmp_path / "other.jsonl", [row("New?")])]) == 0


def test_lengths_are_tokens_under_the_models_template(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path = write(tmp_path / "a.jsonl", [row("add 1"), row("add 1 " * 300)])
    assert main(["check", path, "--model", "builtin://tiny/hard", "data.max_prompt_length=100"]) == 0
    text = capsys.readouterr().out
    assert "prompt length in tokens" in text and "1 over data.max_prompt_length=100" in text
    assert main(["check", path]) == 0
    assert "prompt length in characters: median 1800" in capsys.readouterr().out


def test_rows_that_the_models_template_refuses_are_listed(tmp_path: Path) -> None:
    def count(prompt: Prompt) -> int:
        if prompt.messages[0]["role"] == "system":
            raise DataError("chat template: cannot render messages with roles ['system', 'user']")
        return 3

    system = [{"role": "system", "content": "s"}, {"role": "user", "content": "q"}]
    found = inspect(write(tmp_path / "a.jsonl", [*GOOD, row("q") | {"prompt": system}]), CONFIG, count)
    assert (found.rows, found.usable, list(found.lengths)) == (5, 4, [3] * 4)
    assert [(f.row, f.field, f.why[:13]) for f in found.unusable] == [(5, "prompt", "chat template")]


def test_histograms_cover_every_length_once() -> None:
    for lengths in ([5], [1, 1, 1], list(range(100)), [3, 1000, 17], [0, 10]):
        bins = histogram(lengths)
        assert sum(count for *_, count in bins) == len(lengths) and len(bins) <= 10
        assert bins[0][0] == min(lengths) and bins[-1][1] >= max(lengths)
        assert all(high + 1 == low for (_, high, _), (low, _, _) in zip(bins, bins[1:]))


def test_right_and_wrong_answers_of_every_kind_are_graded(tmp_path: Path) -> None:
    rows = [
        *GOOD,
        CALL,
        PROGRAM,
        row("Tests only.", {"type": "stdin", "cases": [{"input": "", "output": "1"}]}, "code"),
    ]
    found = inspect(write(tmp_path / "a.jsonl", rows), CONFIG, grade=True)
    assert found.gold is not None and not found.gold.exceptions
    assert (found.gold.right, found.gold.wrong, found.gold.without_answer) == (6, 6, 1)


@pytest.mark.parametrize(
    ("source", "truth"),
    [
        ("tooluse", {"name": "get", "arguments": {"city": "Oslo"}}),
        ("tooluse", [{"Action": "get", "Action_Input": '{"city": "Oslo"}'}]),
        ("tooluse", '{"name": "list"}'),
        ("tooluse", [{"function": {"name": "get", "arguments": "{}"}}]),
        ("gpqa", "(a)."),
        ("gpqa", {"answer": 1, "choices": ["w", "x"]}),
        ("exact_city", "Oslo"),
        ("exact_city", {"exact": "Oslo", "ignore_case": True}),
    ],
)
def test_every_shape_of_a_gold_answer_that_the_grader_reads_is_written_down(
    source: str, truth: Any, tmp_path: Path
) -> None:
    found = inspect(write(tmp_path / "a.jsonl", [row("q", truth, source)]), CONFIG, grade=True)
    assert found.gold is not None and not found.faulty
    assert (found.gold.right, found.gold.wrong, found.gold.without_answer) == (1, 1, 0)


def test_a_pattern_is_no_answer(tmp_path: Path) -> None:
    found = inspect(write(tmp_path / "a.jsonl", [row("q", {"regex": "a+"}, "regex")]), CONFIG, grade=True)
    assert found.gold is not None and not found.faulty and found.gold.without_answer == 1


def test_a_gold_answer_that_fails_its_own_tests_is_an_exception(tmp_path: Path) -> None:
    broken = {**PROGRAM, "extra_info": {"solution": "print(3)"}}
    found = inspect(write(tmp_path / "a.jsonl", [broken]), CONFIG, grade=True)
    assert found.gold is not None and found.faulty
    (exception,) = found.gold.exceptions
    assert (exception.row, exception.field) == (1, "right answer") and "wrong, reward 0.0" in exception.why


def test_rows_of_a_custom_grader_are_checked_with_it(tmp_path: Path) -> None:
    (tmp_path / "reward.py").write_text("def compute_score(**_):\n    return 1.0\n")
    config = compose(["model=custom", "task=custom", f"custom_reward_function.path={tmp_path}/reward.py"])
    found = inspect(write(tmp_path / "a.jsonl", [row("Write a poem.", source="poetry")]), config, grade=True)
    assert not found.faulty and found.gold is not None and found.gold.trial.answers == 4
    assert "reward.py" in printed("a.jsonl", found, config)


def test_the_builtin_task_and_folders_can_be_checked(tmp_path: Path) -> None:
    found = inspect("builtin://programs/hard/test", CONFIG)
    assert (found.rows, found.usable) == (200, 200) and not found.faulty
    (tmp_path / "repo").mkdir()
    write(tmp_path / "repo/train.jsonl", GOOD)
    assert inspect(f"{tmp_path}/repo:train", CONFIG).usable == 4


def test_everything_found_can_be_had_as_json(tmp_path: Path) -> None:
    path = write(tmp_path / "a.jsonl", [*GOOD, row(" ")])
    assert main(["check", path, "--json", str(tmp_path / "found.json")]) == FOUND_FAULTS
    found = json.loads((tmp_path / "found.json").read_text())
    assert found["rows"] == 5 and found["unusable"][0]["row"] == 5 and len(found["lengths"]) == 4


def test_the_json_file_may_lie_in_a_new_folder_and_one_that_cannot_be_written_is_told_first(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    path = write(tmp_path / "a.jsonl", GOOD)
    assert main(["check", path, "--json", str(tmp_path / "new/found.json")]) == 0
    assert json.loads((tmp_path / "new/found.json").read_text())["rows"] == 4
    monkeypatch.setattr("sdpo.cli.data_check.inspect", lambda *given: pytest.fail("read"))
    assert main(["check", path, "--json", f"{path}/found.json"]) == ConfigError.exit_code
    assert capsys.readouterr().err.startswith("error: --json ")


@pytest.mark.parametrize(
    ("argv", "part"),
    [
        (["{0}/gone.jsonl"], "an existing file"),
        (["{0}/a.csv"], "a file that ends in"),
        (["{0}/broken.json"], "not readable as JSON"),
        (["{0}/a.jsonl", "--model", "{0}/no-model"], "an existing folder or a hub id"),
        (["{0}/a.jsonl", "data.max_prompt_len=3"], "data.max_prompt_length"),
        (["{0}/a.jsonl", "--against", "{0}/gone.jsonl"], "an existing file"),
    ],
)
def test_input_that_cannot_be_used_ends_in_one_line(
    argv: list[str], part: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    write(tmp_path / "a.jsonl", GOOD)
    (tmp_path / "a.csv").write_text("a,b")
    (tmp_path / "broken.json").write_text("[{")
    assert main(["check", *(text.format(tmp_path) for text in argv)]) not in (0, FOUND_FAULTS)
    (line,) = capsys.readouterr().err.strip().splitlines()
    assert line.startswith("error: ") and part in line


def test_a_file_that_cannot_be_read_has_the_exit_code_of_data_errors(tmp_path: Path) -> None:
    assert main(["check", str(tmp_path / "gone.jsonl")]) == DataError.exit_code
