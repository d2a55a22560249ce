"""What a service answers, and what a program does to the process around it, is no verdict and costs nobody else one."""

from __future__ import annotations

import zlib
from pathlib import Path

import httpx
import pytest
from hostile_service import hostile_service
from test_remote_back_ends import FUNCTION, LIMITS, PROGRAM, http_runner, modal_runner

from sdpo.errors import SandboxUnavailable
from sdpo.grading.backends.http import HttpRunner
from sdpo.grading.backends.modal import read_capped
from sdpo.grading.backends.reply import FRESH_CONNECTIONS, ReplyTooLarge, post, read_object
from sdpo.grading.backends.retry import Retry, TransportFault
from sdpo.grading.code import CodeGrader
from sdpo.grading.feedback import FeedbackOptions
from sdpo.grading.judge_model import read_verdict
from sdpo.grading.source_grader import Lazy, SourceGrader
from sdpo.records import GradeStatus, Prompt
from sdpo.sandbox.outcome import SandboxFault

REPLIES = Path(__file__).parents[2] / "fixtures" / "hostile_replies"
SEEK = """
import gc, os, sys
def f(xs):
    seen = [repr(vars(sys.modules['__main__'])), repr(sys.argv), repr(dict(os.environ))]
    for thing in gc.get_objects():
        seen += [text for text in gc.get_referents(thing) if type(text) is str]
    for name in ('self/cmdline', 'self/environ', '%d/cmdline' % os.getppid(), '%d/environ' % os.getppid()):
        seen.append(open('/proc/' + name, errors='replace').read())
    return any(MARKER in text and text is not MARKER for text in seen)
"""


@pytest.mark.parametrize("name", ["R03_dripping_body", "R04_dripping_headers", "R05_silence"])
def test_a_reply_has_a_deadline_as_a_whole(name):
    client = httpx.Client(limits=FRESH_CONNECTIONS)
    with (
        hostile_service(REPLIES / f"{name}.py") as url,
        pytest.raises(TransportFault, match="no whole reply in 0.5 s|ReadTimeout"),
    ):
        post(client, url, {}, seconds=0.5, cap=1000)


@pytest.mark.parametrize("wbits", [15, 31], ids=["deflate", "gzip"])
def test_what_a_reply_unpacks_to_is_counted_and_an_honest_one_is_read(wbits):
    def packed(data: bytes) -> httpx.Client:
        packer = zlib.compressobj(9, wbits=wbits)
        body = packer.compress(data) + packer.flush()
        headers = {"Content-Encoding": "gzip" if wbits == 31 else "deflate"}
        return httpx.Client(
            transport=httpx.MockTransport(lambda _: httpx.Response(200, headers=headers, content=iter([body])))
        )

    options = {"seconds": 10, "cap": 70_000}
    assert post(packed(b"[" + b"1," * 34_000 + b"1]"), "http://x", {}, **options)[1][-4:] == b"1,1]"
    with pytest.raises(ReplyTooLarge) as fault:
        post(packed(b'{"a": "' + b"x" * (1 << 26)), "http://x", {}, **options)
    assert fault.value.is_object


def test_a_flood_is_the_program_s_and_a_page_is_the_service_s():
    runner, _ = http_runner(httpx.Response(200, content=b'{"stdout": "' + b"x" * (9 << 20)))
    assert runner.run_program("print(1)", b"", LIMITS).status is GradeStatus.OUTPUT_LIMIT
    runner, _ = http_runner(*[httpx.Response(200, content=b"<html>" + b"x" * (9 << 20))] * 3)
    with pytest.raises(SandboxFault, match="larger than"):
        runner.run_program("print(1)", b"", LIMITS)


@pytest.mark.parametrize("text", ["[" * 10**5, '{"a":' * 10**5, "9" * 10**5, "", "[]", "\ud800", "null"])
def test_what_is_no_object_is_a_fault(text):
    with pytest.raises(TransportFault):
        read_object(text.encode("utf-8", "surrogatepass"))


@pytest.mark.parametrize("reward", ["1" + "0" * 400, "NaN", "Infinity", "true", '"1"', "[1]", "9" * 5000])
def test_a_judge_s_reward_is_a_number_from_0_to_1(reward):
    with pytest.raises((ValueError, OverflowError)):
        read_verdict(f'{{"reward": {reward}, "critique": ""}}')


def test_a_reply_of_any_shape_costs_only_its_own_row():
    """Through the grader of a run, where an unknown exception would end the other rows too."""
    with hostile_service(REPLIES / "R07_every_field_of_every_type.py") as url:
        runner = HttpRunner(url, Retry(0))
        code = CodeGrader(runner, LIMITS, FeedbackOptions())
        grader = SourceGrader(lambda _: "code", {"code": lambda: code}, Lazy(lambda: runner))
        answers = [f"```python\nprint({i})\n```" for i in range(128)]
        tests = (PROGRAM, FUNCTION)
        grades = [
            grader.grade_or_status(Prompt("p", (), "code", tests[i % 2]), a, False) for i, a in enumerate(answers)
        ]
    assert all(grade.reward in (0.0, None) for grade in grades)
    assert {grade.status for grade in grades} >= {GradeStatus.INFRA_ERROR, GradeStatus.WRONG}


def test_a_grader_that_breaks_costs_only_its_own_row():
    class Broken:
        def grade(self, prompt, answer, truncated):
            raise AttributeError("'list' object has no attribute 'get'")

    grade = SourceGrader(lambda _: "x", {"x": Broken}, Lazy(object)).grade_or_status(Prompt("p", (), "x"), "a", False)
    assert (grade.status, grade.reward) == (GradeStatus.INFRA_ERROR, None)
    assert "AttributeError" in grade.flags[0]


def test_a_program_that_no_encoding_takes_is_no_fault_of_the_service():
    answer = httpx.Response(
        200, json={"run_result": {"status": "Finished", "return_code": 1, "stdout": "", "stderr": ""}}
    )
    runner, service = http_runner(answer)
    assert runner.run_program("print('\ud800')", b"", LIMITS).status is GradeStatus.RUNTIME_ERROR
    assert service.requests[0]["code"] == "print('\ud800')"


def test_what_a_user_has_to_change_still_stops_everything():
    class Unavailable:
        def grade(self, prompt, answer, truncated):
            raise SandboxUnavailable("no isolation level works on this machine")

    with pytest.raises(SandboxUnavailable):
        SourceGrader(lambda _: "x", {"x": Unavailable}, Lazy(object)).grade(Prompt("p", (), "x"), "a", False)


@pytest.mark.parametrize("make", [http_runner, modal_runner], ids=["http", "modal"])
def test_a_program_finds_no_marker_and_its_output_goes_nowhere(make, monkeypatch):
    monkeypatch.setattr("sdpo.grading.backends.remote.secrets.token_hex", lambda n: "0123456789abcdef" * 2)
    runner, _ = make()
    source = f"MARKER = ''.join(['01234567', '89abcdef'] * 2)\n{SEEK}"
    (found,) = runner.run_function(source, "f", [[[]]], LIMITS)
    assert (found.status, found.value) == (GradeStatus.OK, False)
    forging = (
        "import json, os, sys\nline = '\\n' + '0123456789abcdef' * 2 + '=' + json.dumps({'value': 3}) + '\\n'\n"
        "def f(xs):\n    for fd in range(64):\n        try: os.write(fd, line.encode())\n        except OSError: pass\n"
        "    print(line, flush=True)\n    os._exit(0)"
    )
    assert [o.status for o in runner.run_function(forging, "f", [[[1]], [[2]]], LIMITS) if o.value == 3] == []


@pytest.mark.parametrize("make", [http_runner, modal_runner], ids=["http", "modal"])
def test_remote_answers_are_those_of_the_local_sandbox(make):
    runner, _ = make()
    source = "import os, sys\nclass Solution:\n    def f(self, x: List[int]) -> int:\n        print('noise' * 9)\n"
    source += "        if x == 5: os._exit(3)\n        return {'a': (x, 10**5000)} if x else 1 / x"
    one, none, two, gone, after = runner.run_function(source, "Solution.f", [[1], [0], [2], [5], [1]], LIMITS)
    assert (one.value, two.value) == ({"a": (1, 10**5000)}, {"a": (2, 10**5000)})
    assert none.fault.type == "ZeroDivisionError"
    assert gone.error == after.error == "The process exited with status 3 before the result was returned"
    (missing,) = runner.run_function("def g(): pass", "f", [[1]], LIMITS)
    assert missing.error == "the solution defines no f"
    ahead = "import json, os, struct\nb = json.dumps({'value': 7}).encode()\n"
    ahead += "def f(x):\n    os.write(3, (struct.pack('<I', len(b)) + b) * 9)\n    return 1"
    assert [o.status for o in runner.run_function(ahead, "f", [[1]] * 3, LIMITS)][1:] == [GradeStatus.RUNTIME_ERROR] * 2


def test_a_remote_flood_is_read_up_to_a_bound():
    assert read_capped(iter(["x" * 10, "y" * 10]), 15) == (b"x" * 10 + b"y" * 6, True)
    endless = iter(lambda: "x" * (1 << 20), "")
    assert read_capped(endless, 15) == (b"x" * 16, False)
