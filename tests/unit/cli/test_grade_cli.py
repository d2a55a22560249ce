from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time

import pytest

from sdpo.cli import grade
from sdpo.data.rows import to_row
from sdpo.embedded.programs import problems

FUNCTION = {"type": "function", "name": "f", "cases": [{"args": [1], "expected": 2}, {"args": [2], "expected": 3}]}
ECHO = {"type": "stdin", "cases": [{"input": "a", "output": "a"}]}
ASSERT = {"type": "assert", "code": "assert f(1)", "entry_point": None}
RIGHT = "```python\ndef f(x): return x + 1\n```"
LINES = [
    {"id": 1, "kind": "math", "response": r"\boxed{4}", "gold": "4"},
    {"id": "two", "kind": "multiple_choice", "response": "<answer>E</answer>", "gold": "E", "choices": 5},
    {"id": 3, "kind": "code", "response": RIGHT, "tests": FUNCTION, "limits": {"cpu_s": 1}},
    {"id": 4, "kind": "code", "response": RIGHT.replace("x + 1", "2"), "tests": FUNCTION},
    {"id": 5, "kind": "code", "response": "```python\nprint(input())\n```", "tests": ECHO},
    {"id": 6, "kind": "code", "response": "no code", "tests": ASSERT},
    {
        "id": 7,
        "kind": "tool_calls",
        "response": "Action: f\nAction Input: {}",
        "gold": [{"name": "f", "arguments": {}}],
    },
    {"id": 8, "kind": "math", "response": r"so \boxed{", "gold": "4", "truncated": True, "prompt": "2 + 2?"},
    {"id": 9, "kind": "code", "response": "```python\npass\n```", "tests": []},
    {"id": 10, "kind": "math", "response": r"\boxed{4}", "gold": "see the figure"},
]
STATUSES = ["ok", "ok", "ok", "wrong", "ok", "format_error", "ok", "truncated", "no_tests", "invalid_gold"]


def run(tmp_path, lines, *options):
    source, target = tmp_path / "answers.jsonl", tmp_path / "grades.jsonl"
    source.write_text("\n".join(line if isinstance(line, str) else json.dumps(line) for line in lines) + "\n")
    code = grade.main([str(source), "--out", str(target), *options])
    return code, [json.loads(line) for line in target.read_text().splitlines()]


def test_one_result_line_per_input_line_in_the_same_order(tmp_path):
    code, results = run(tmp_path, LINES, "--workers", "4")
    assert code == 0
    assert [result["id"] for result in results] == [line["id"] for line in LINES]
    assert [result["status"] for result in results] == STATUSES
    assert results[3]["passed_fraction"] == 0.5
    assert "Got: 2" in results[3]["feedback"]
    assert results[8]["reward"] is None
    for result in results:
        assert {"id", "status", "reward", "passed_fraction", "feedback", "seconds"} <= result.keys()


@pytest.mark.parametrize(
    ("line", "words"),
    [
        ("{not json", "not valid JSON"),
        ("[1]", "a JSON object"),
        ({"kind": "math", "response": "", "gold": "1"}, "id: missing"),
        ({"id": 1, "kind": "poem", "response": ""}, "kind: got 'poem'"),
        ({"id": 1, "kind": "math", "gold": "1"}, "response"),
        ({"id": 1, "kind": "math", "response": "x"}, "gold: missing"),
        ({"id": 1, "kind": "code", "response": "x"}, "tests: missing"),
        ({"id": 1, "kind": "code", "response": "x", "tests": {"type": "guess"}}, "tests.type"),
        ({"id": 1, "kind": "code", "response": "x", "tests": {"type": "stdin", "cases": [{}]}}, "tests.cases[0]"),
        ({"id": 1, "kind": "code", "response": "x", "tests": FUNCTION, "limits": {"cpu_s": -1}}, "limits"),
        ({"id": 1, "kind": "code", "response": "x", "tests": FUNCTION, "limits": {"cpu": 1}}, "limits.cpu"),
        ({"id": 1, "kind": "code", "response": "x", "tests": FUNCTION, "limits": {"cpu_s": 1e12}}, "limits.cpu_s"),
        ({"id": 1, "kind": "code", "response": "x", "tests": FUNCTION, "limits": {"cpu_s": True}}, "limits.cpu_s"),
        ({"id": 1, "kind": "code", "response": "x", "tests": FUNCTION, "limits": {"memory_mb": 1}}, "limits.memory_mb"),
        ({"id": 1, "kind": "code", "response": "x", "tests": {"type": "stdin", "cases": "no"}}, "tests.cases"),
        ({"id": 1, "kind": "code", "response": "x", "tests": {**ASSERT, "entry_point": "a b"}}, "tests.entry_point"),
        ({"id": 1, "kind": ["code"], "response": "x"}, "kind"),
        ({"id": 1, "kind": "math", "response": None, "gold": "1"}, "response: got NoneType"),
        ({"id": 1, "kind": "math", "response": "x", "gold": "1", "tools": 5}, "tools"),
        ("[" * 100_000, "not valid JSON"),
        ('{"id": 1, "kind": "code"', "not valid JSON"),
        ({"id": 1, "kind": "math", "response": "x", "gold": "1", "truncated": "yes"}, "truncated"),
    ],
)
def test_a_malformed_line_is_named_with_its_field_and_the_others_are_graded(tmp_path, capsys, line, words):
    code, results = run(tmp_path, [LINES[0], line, LINES[1]])
    assert code == 2
    said = capsys.readouterr().err
    assert said.startswith("line 2: ")
    assert words in said
    assert [result["status"] for result in results] == ["ok", "ok"]


def test_settings_can_be_given(tmp_path):
    _, results = run(tmp_path, [LINES[3]], "grading.feedback_style=leetcode")
    assert "\n\nExpected\n\n3" in results[0]["feedback"]


def test_a_missing_file_and_a_bad_setting_have_their_exit_codes(tmp_path, capsys):
    assert grade.main([str(tmp_path / "no.jsonl")]) == 3
    assert "no.jsonl" in capsys.readouterr().err
    (tmp_path / "x.jsonl").write_text("")
    assert grade.main([str(tmp_path / "x.jsonl"), "grading.backand=local"]) == 2


def test_a_grader_that_fails_gives_a_status_and_an_exit_code(tmp_path, monkeypatch, capsys):
    from sdpo.sandbox.outcome import SandboxFault

    class Broken:
        report = None

        def run_function(self, *args, **kwargs):
            raise SandboxFault("service is down")

        def close(self) -> None: ...

    monkeypatch.setattr("sdpo.grading.registry.build_runner", lambda grading: Broken())
    code, results = run(tmp_path, [LINES[2], LINES[0]])
    assert code == 6
    assert [result["status"] for result in results] == ["infra_error", "ok"]
    assert "service is down" in capsys.readouterr().err


def grade_bytes(tmp_path, content: bytes):
    source, target = tmp_path / "answers.jsonl", tmp_path / "grades.jsonl"
    source.write_bytes(content)
    code = grade.main([str(source), "--out", str(target)])
    return code, [json.loads(line) for line in target.read_text().splitlines()]


def test_windows_line_ends_a_byte_order_mark_and_blank_lines_are_fine(tmp_path):
    lines = [json.dumps(line).encode() for line in LINES[:2]]
    code, results = grade_bytes(tmp_path, b"\xef\xbb\xbf" + b"\r\n\r\n".join(lines))
    assert (code, [result["status"] for result in results]) == (0, ["ok", "ok"])


def test_an_empty_file_has_no_results(tmp_path):
    assert grade_bytes(tmp_path, b"") == (0, [])
    assert grade_bytes(tmp_path, b"\n\n") == (0, [])


def test_bytes_that_are_no_text_are_a_malformed_line(tmp_path, capsys):
    good = json.dumps(LINES[0]).encode()
    code, results = grade_bytes(tmp_path, good + b"\n\xff\xfe\n" + good + b"\n")
    assert (code, len(results)) == (2, 2)
    assert capsys.readouterr().err == "line 2: not UTF-8 (byte 1)\n"


def test_lone_surrogates_long_lines_and_equal_ids_are_graded(tmp_path):
    odd = {"type": "stdin", "cases": [{"input": "\ud800", "output": "\udfff"}]}
    lines = [
        {"id": 1, "kind": "code", "response": "```python\nprint('\ud800')\n```", "tests": odd},
        {"id": 1, "kind": "math", "response": "x" * 3_000_000 + r"\boxed{4}", "gold": "4"},
        {"id": [1, {"a": None}], "kind": "multiple_choice", "response": "`" * 1_000_000, "gold": "B"},
        {"id": None, "kind": "math", "response": r"\boxed{4}", "gold": json.loads("[" * 400 + "]" * 400)},
    ]
    code, results = run(tmp_path, lines)
    assert code == 0
    assert [result["id"] for result in results] == [1, 1, [1, {"a": None}], None]
    assert [result["status"] for result in results] == ["runtime_error", "ok", "format_error", "invalid_gold"]


@pytest.mark.parametrize("workers", ["1", "7"])
def test_any_number_of_workers_gives_the_same_results(tmp_path, workers):
    code, results = run(tmp_path, LINES * 3, "--workers", workers)
    assert (code, [result["status"] for result in results]) == (0, STATUSES * 3)


def test_options_that_cannot_be_are_refused(tmp_path, capsys):
    path = tmp_path / "answers.jsonl"
    path.write_text(json.dumps(LINES[0]) + "\n")
    for options in (["--workers", "0"], ["--out", str(path)]):
        with pytest.raises(SystemExit) as stopped:
            grade.main([str(path), *options])
        assert stopped.value.code == 2
    assert path.read_text()
    assert grade.main([str(path), "--out", str(tmp_path / "no" / "x.jsonl")]) == 2
    assert "no/x.jsonl: No such file" in capsys.readouterr().err
    assert grade.main([str(tmp_path)]) == 3
    assert "Is a directory" in capsys.readouterr().err


def test_an_interruption_keeps_what_was_graded_and_leaves_no_process(tmp_path):
    source, target = tmp_path / "answers.jsonl", tmp_path / "grades.jsonl"
    sleeper = "```python\nimport time\ntime.sleep(60)\n```"
    slow = {"id": 2, "kind": "code", "response": sleeper, "tests": ECHO, "limits": {"cpu_s": 60}}
    source.write_text("\n".join(json.dumps(line) for line in [LINES[1], *[slow] * 300]) + "\n")
    command = [sys.executable, "-m", "sdpo.cli.grade", str(source), "--out", str(target), "--workers", "2"]
    process = subprocess.Popen(command, stderr=subprocess.PIPE, text=True, start_new_session=True)
    while not (target.exists() and target.read_text()):
        assert process.poll() is None
        time.sleep(0.05)
    time.sleep(1.0)
    process.send_signal(signal.SIGINT)
    _, said = process.communicate(timeout=60)
    assert process.returncode == 130
    assert said.splitlines()[-1] == "interrupted; the results up to the first unfinished line are written"
    assert "Traceback" not in said
    assert [json.loads(line)["id"] for line in target.read_text().splitlines()][:1] == ["two"]
    with pytest.raises(ProcessLookupError):
        os.killpg(process.pid, 0)


def test_reasoning_that_the_header_opened_is_no_answer(tmp_path):
    line = {"id": 1, "kind": "math", "response": r"I guess \boxed{4}, but", "gold": "4", "truncated": True}
    closed = {**line, "response": r"no</think>\boxed{4}", "truncated": False}
    header = "<|im_start|>assistant\n<think>\n"
    _, results = run(tmp_path, [line, {**line, "header": header}, {**closed, "header": header}])
    assert [result["reward"] for result in results] == [1.0, 0.0, 1.0]


@pytest.mark.parametrize(
    "setting", ["grading.tool_parser=qwen4", "grading.reasoning_parser=qwen4", "grading.workers=0"]
)
def test_a_setting_that_cannot_be_is_one_line_with_what_can(tmp_path, capsys, setting):
    (tmp_path / "answers.jsonl").write_text(json.dumps(LINES[0]))
    assert grade.main([str(tmp_path / "answers.jsonl"), setting]) == 2
    [said] = capsys.readouterr().err.splitlines()
    assert setting.partition("=")[0] in said and "qwen3" in said or "number" in said


def test_rows_of_a_data_file_are_graded_as_they_are(tmp_path, capsys):
    """One of each source of the data page, and what is wrong with others by line and field."""
    tests = {"type": "stdin", "cases": [{"input": "1", "output": "1"}]}
    rows = [
        ("gsm8k", "4", "\\boxed{4}", 1.0),
        ("gsm8k", "4", "\\boxed{5}", 0.0),
        ("sciknoweval", "B", "<answer>B</answer>", 1.0),
        ("programs", None, "", None),
        ("livecodebench", json.dumps(tests), "```python\nprint(input())\n```", 1.0),
    ]
    embedded = to_row(problems("hard", "test")[0])
    lines = []
    for source, truth, response, _ in rows:
        row = {
            "data_source": source,
            "prompt": [{"role": "user", "content": "?"}],
            "reward_model": {"ground_truth": truth},
        }
        lines.append((embedded if source == "programs" else row) | {"response": response})
    lines[0]["id"] = "mine"
    bad = [
        ({**lines[1], "data_source": "nobodys"}, "data_source: got 'nobodys'"),
        ({**lines[1], "reward_model": {"ground_truth": "\\text{"}}, "reward_model.ground_truth: "),
        ({k: v for k, v in lines[1].items() if k != "prompt"}, "prompt: missing"),
        ({k: v for k, v in lines[1].items() if k != "response"}, "response: got NoneType"),
    ]
    file = tmp_path / "rows.jsonl"
    file.write_text("".join(json.dumps(line) + "\n" for line in [*lines, *(line for line, _ in bad)]))
    assert grade.main([str(file)]) == grade.MALFORMED
    told = capsys.readouterr()
    results = [json.loads(line) for line in told.out.splitlines()]
    assert [result["id"] for result in results] == ["mine", 2, 3, 4, 5]
    assert [r["reward"] for r, row in zip(results, rows, strict=True) if row[3] is not None] == [1.0, 0.0, 1.0, 1.0]
    errors = told.err.splitlines()
    assert len(errors) == len(bad)
    for number, (line, (_, why)) in enumerate(zip(errors, bad, strict=True), 1 + len(lines)):
        assert line.startswith(f"line {number}: {why}")
