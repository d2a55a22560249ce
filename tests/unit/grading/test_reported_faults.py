"""What users of comparable graders have reported, graded as a file of answers: each entry is a claim, lines as
`python -m sdpo.cli.grade` reads them, and the status that each line has to get.

Faults that are not about one answer have tests of their own: secrets and private tests (test_sandbox_runs), an outage
that is no wrong answer (test_registry, test_outage), processes left behind (test_sandbox_service), threads and endless
expressions (test_math_grading).
"""

from __future__ import annotations

import json

import pytest

from sdpo.cli import grade

DOUBLE = {"type": "stdin", "cases": [{"input": "4\n", "output": "8\n"}]}
TWICE = {"type": "function", "name": "f", "cases": [{"args": [1], "expected": 2}, {"args": [2], "expected": 4}]}
ASSERTS = {"type": "assert", "code": "assert f(1) == 2\nassert f(2) == 4"}
ONE = {"type": "stdin", "cases": [{"input": "", "output": "1"}]}


def program(source: str, tests: object = DOUBLE, **more: object) -> dict:
    return response(f"```python\n{source}\n```", tests, **more)


def response(text: str, tests: object = ONE, **more: object) -> dict:
    return {"kind": "code", "response": text, "tests": tests, **more}


def output(text: str, expected: str) -> dict:
    return program(
        f"import sys; sys.stdout.write({text!r})", {"type": "stdin", "cases": [{"input": "", "output": expected}]}
    )


def mathematics(text: str, gold: object, **more: object) -> dict:
    return {"kind": "math", "response": text, "gold": gold, **more}


def choice(text: str, gold: object = "B", choices: object = 4, **more: object) -> dict:
    return {"kind": "multiple_choice", "response": text, "gold": gold, "choices": choices, **more}


CALLS = [("get-weather", {"city": "Oslo"}), ("add", {"a": 1, "b": 2})]


def calls(made: list[tuple[str, dict]], gold: list[tuple[str, dict]], **more: object) -> dict:
    def listed(pairs: list[tuple[str, dict]]) -> list[dict]:
        return [{"name": name, "arguments": arguments} for name, arguments in pairs]

    return {"kind": "tool_calls", "response": json.dumps(listed(made)), "gold": listed(gold), **more}


UNIT = {"name": "get-weather", "parameters": {"properties": {"city": {}, "unit": {"default": "C"}}}}
DRAFT = "```python\nprint('draft, much longer than the final one')\n```\nFinal:\n```python\nprint(1)\n```"
EQUAL = "class E:\n    def __eq__(self, o): return True\n    def __ne__(self, o): return False\ndef f(x): return E()"
PASSED = 'print(\'PASSED\'); print(\'{"score": 1.0, "status": "pass"}\'); raise SystemExit(0)'
PATCHED = "def f(x): return 0\nimport builtins\nbuiltins.len = lambda *_: 0\nbuiltins.all = lambda *_: True"
CHECKS = "def f(x): return 0\ndef check(*a): return True\nassert_equal = lambda *a: None"
SWALLOWS = "while True:\n    try:\n        while True: pass\n    except BaseException: pass"
FORKS = "import os, time\nif os.fork() == 0:\n    time.sleep(600)\nprint(int(input()) * 2)"
DEAF = "import signal\nsignal.signal(signal.SIGTERM, signal.SIG_IGN)\nwhile True: pass"
PROMPT = "Give it as \\boxed{42} or <answer>B</answer>."
OK, WRONG, ERROR, FORMAT = "ok", "wrong", "runtime_error", "format_error"

CLAIMS: dict[str, list[tuple[dict, str]]] = {
    "exit after the right answer is right, a non-zero status is an error": [
        (program("print(int(input())*2)\nimport sys; sys.exit(0)"), OK),
        (program("print(int(input())*2)\nexit()"), OK),
        (program("import os\nprint(int(input())*2, flush=True)\nos._exit(0)"), OK),
        (program("import sys\nprint(int(input())*2)\nsys.exit(1)"), ERROR),
    ],
    "only decimals have a tolerance, integers are exact": [
        (output("0.3333333333333333", "0.333333333"), OK),
        (output("2.0", "2"), WRONG),
        (output("2", "2.0"), OK),
        (output("50000000000000001", "50000000000000000"), WRONG),
        (output("1000009", "1000000"), WRONG),
        (output("nan", "1.5"), WRONG),
    ],
    "the last complete block is the program, in every spelling of a fence": [
        (response("```python \nprint(1)\n```"), OK),
        (response("```python\r\nprint(1)\r\n```"), OK),
        (response("```python\nprint(1)", truncated=True), "truncated"),
        (response("```python\nprint(1)"), OK),
        (response(DRAFT), OK),
        (response("```python\ns = '''\n```not a fence'''\nprint(1)\n```"), OK),
        (response("```py\nprint(1)\n```"), OK),
        (response("~~~python\nprint(1)\n~~~"), OK),
        (response("```print(1)``` is the idea:\n```python\nprint(1)\n```"), OK),
    ],
    "an empty or missing test list is no pass": [
        (program("print('anything')", []), "no_tests"),
        (program("print('anything')", None), "no_tests"),
        (program("print('anything')", {"type": "stdin", "cases": []}), "no_tests"),
        (program("x = 1", {"type": "assert", "code": "# nothing"}), "no_tests"),
    ],
    "undecodable output is a wrong answer": [
        (program("import sys\nsys.stdout.buffer.write(b'\\xff\\xfe')"), WRONG),
    ],
    "a program does not decide its own verdict": [
        *[(program(source, TWICE), WRONG) for source in (EQUAL, PATCHED, CHECKS)],
        *[(program(source, ASSERTS), WRONG) for source in (EQUAL, PATCHED, CHECKS)],
        (program(PASSED, TWICE), ERROR),
        (program(PASSED), WRONG),
    ],
    "no environment variable and no file of the grader is visible": [
        (output("None None", "None None"), OK),
        (
            program(
                "import os\nprint(os.environ.get('WANDB_API_KEY'), os.environ.get('HF_TOKEN'))",
                {"type": "stdin", "cases": [{"input": "", "output": "None None"}]},
            ),
            OK,
        ),
    ],
    "no time limit can be swallowed": [
        (program(SWALLOWS, limits={"cpu_s": 0.3}), "timeout"),
        (program(FORKS, limits={"cpu_s": 0.3}), ERROR),
        (program(DEAF, limits={"cpu_s": 0.3}), "timeout"),
    ],
    "blanks at line ends do not count, lines do": [
        (output("1 2 \n3\n", "1 2\n3"), OK),
        (output("1 2\r\n3", "1 2\n3"), OK),
        (output("1\n2\n3", "1 2 3"), WRONG),
        (output("", "-"), WRONG),
        (output("-", "-"), OK),
        (output("", ""), OK),
        (output("a", "A"), WRONG),
    ],
    "only the last box counts": [
        (mathematics(r"Maybe \boxed{3}? No, I forgot a factor. \boxed{4}", "4"), OK),
        (mathematics(r"Maybe \boxed{4}? No. \boxed{3}", "4"), WRONG),
        (mathematics("the value 4 shows up here, but I give no box", "4"), FORMAT),
    ],
    "equal expressions are equal": [
        (mathematics(r"\boxed{0.5}", r"\frac{1}{2}"), OK),
        (mathematics(r"\boxed{7}", "7"), OK),
    ],
    "a box is found wherever it stands and however it is written": [
        (mathematics(r"\boxed{" + "1+" * 60 + "1}", "61"), OK),
        (mathematics(r"\boxed{4} " + "This also fits the bound. " * 10, "4"), OK),
        (mathematics(r"\boxed {4}", "4"), OK),
        (mathematics(r"\fbox{4}", "4"), OK),
        (mathematics(r"\boxed{\text{(B)}}", "B"), OK),
        (mathematics(r"\boxed{1{,}000}", "1000"), OK),
        (mathematics(r"\boxed{\boxed{4}}", "4"), OK),
        (mathematics("4", "4"), FORMAT),
    ],
    "a gold answer that cannot be read rewards nobody": [
        (mathematics(r"\boxed{\frac{9}{7}}", r"\dfrac{9}{7}"), OK),
        (mathematics(r"\boxed{4}", "see the figure"), "invalid_gold"),
        (mathematics("", ""), "invalid_gold"),
    ],
    "a box that is cut off takes no credit from an earlier one": [
        (
            mathematics(r"First part: \boxed{4}. So the final answer is \boxed{1", "4", truncated=True),
            "truncated",
        ),
        (mathematics(r"First part: \boxed{4}. So the final answer is \boxed{1", "4"), FORMAT),
    ],
    "one letter in the tags is the choice": [
        (choice("<answer>b</answer>"), OK),
        (choice("<answer>B. mitochondria</answer>"), OK),
        (choice("<answer>(B)</answer>"), OK),
        (choice("<answer></answer>"), FORMAT),
        (choice("<answer>ABCD</answer>"), FORMAT),
        (choice("<answer>B, C</answer>"), FORMAT),
        (choice("<answer>B</answer>", 1, ["w", "x", "y", "z"]), OK),
        (choice("<answer>E</answer>", "E", 5), OK),
    ],
    "calls are compared one by one, with all their arguments": [
        (calls(CALLS, CALLS), OK),
        (calls([("get-weather", {"a": 1, "b": 2}), ("add", {"city": "Oslo"})], CALLS), WRONG),
        (calls([("get-weather", {"city": "Rome"}), CALLS[0]], [CALLS[0], CALLS[0]]), WRONG),
        (calls([("get-weather", {"city": "Oslo", "unit": "C"}), CALLS[1]], CALLS), WRONG),
        (calls([("get-weather", {"city": "Oslo", "unit": "C"}), CALLS[1]], CALLS, tools=[UNIT]), OK),
        (calls([("find", {"filter": {"a": 1}, "q": "x"})], [("find", {"q": "x", "filter": {"a": 1}})]), OK),
        (calls([("add", {"a": "1", "b": 2})], [CALLS[1]]), WRONG),
    ],
    "neither the prompt nor the thinking is the answer": [
        (mathematics("I do not know.", "42", prompt=PROMPT), FORMAT),
        (choice("I do not know.", prompt=PROMPT), FORMAT),
        (mathematics(r"<think>maybe \boxed{42}</think> I give up.", "42", prompt=PROMPT), FORMAT),
        (choice("<think>maybe <answer>B</answer></think> I give up.", prompt=PROMPT), FORMAT),
    ],
}


@pytest.fixture(scope="module")
def statuses(tmp_path_factory) -> dict[str, list[str]]:
    """All lines, graded in one go."""
    folder = tmp_path_factory.mktemp("faults")
    lines = [line | {"id": claim} for claim, entries in CLAIMS.items() for line, _ in entries]
    (folder / "in.jsonl").write_text("\n".join(map(json.dumps, lines)))
    assert grade.main([str(folder / "in.jsonl"), "--out", str(folder / "out.jsonl")]) == 0
    found: dict[str, list[str]] = {}
    for line in (folder / "out.jsonl").read_text().splitlines():
        result = json.loads(line)
        found.setdefault(result["id"], []).append(result["status"])
        assert result["reward"] == {"ok": 1.0, "no_tests": None, "invalid_gold": None}.get(result["status"], 0.0)
    return found


@pytest.mark.parametrize("claim", CLAIMS)
def test_that(claim, statuses):
    assert statuses[claim] == [status for _, status in CLAIMS[claim]]


def test_tags_may_be_required(tmp_path):
    (tmp_path / "in.jsonl").write_text(json.dumps(choice("B") | {"id": 1}))
    out = tmp_path / "out.jsonl"
    assert grade.main([str(tmp_path / "in.jsonl"), "--out", str(out), "grading.answer_tags_required=true"]) == 0
    assert json.loads(out.read_text())["status"] == FORMAT
    assert grade.main([str(tmp_path / "in.jsonl"), "--out", str(out)]) == 0
    assert json.loads(out.read_text())["status"] == OK
