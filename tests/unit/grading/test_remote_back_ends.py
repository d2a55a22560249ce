"""The remote runners against local stand-ins that speak the services' protocols."""

from __future__ import annotations

import json
import subprocess
import sys
import types

import httpx
import pytest

from sdpo.errors import ConfigError
from sdpo.grading.backends.http import HttpRunner
from sdpo.grading.backends.modal import ModalRunner
from sdpo.grading.backends.retry import Retry, Tally, TransportFault, summary_line
from sdpo.grading.code import CodeGrader
from sdpo.grading.code_tests import read_tests
from sdpo.grading.feedback import FeedbackOptions
from sdpo.records import GradeStatus
from sdpo.sandbox.limits import Limits
from sdpo.sandbox.outcome import SandboxFault

LIMITS = Limits(cpu_s=1.0, memory_mb=256)
PROGRAM = {"type": "stdin", "cases": [{"input": "4\n", "output": "8\n"}]}
FUNCTION = {
    "type": "function",
    "name": "f",
    "cases": [{"args": [[1, 2]], "expected": 3}, {"args": [[5]], "expected": 5}],
}
ASSERTS = {"type": "assert", "code": "assert f([1, 2]) == 3"}


def run_python(code: str, stdin: str, seconds: float) -> dict:
    try:
        done = subprocess.run(
            [sys.executable, "-c", code], input=stdin, capture_output=True, text=True, timeout=seconds
        )
    except subprocess.TimeoutExpired:
        return {"status": "TimeLimitExceeded", "return_code": None, "stdout": "", "stderr": ""}
    return {"status": "Finished", "return_code": done.returncode, "stdout": done.stdout, "stderr": done.stderr}


class Service:
    """SandboxFusion's /run_code. `answers`: what to do first, before it behaves."""

    def __init__(self, *answers) -> None:
        self.answers = list(answers)
        self.requests: list[dict] = []

    def __call__(self, request: httpx.Request) -> httpx.Response:
        assert request.url.path == "/run_code"
        body = json.loads(request.content)
        self.requests.append(body)
        if self.answers:
            answer = self.answers.pop(0)
            if isinstance(answer, Exception):
                raise answer
            return answer
        result = run_python(body["code"], body["stdin"], body["run_timeout"])
        status = "Success" if result["return_code"] == 0 else "Failed"
        return httpx.Response(200, json={"status": status, "message": "", "compile_result": None, "run_result": result})


def http_runner(*answers, retries=2):
    service = Service(*answers)
    client = httpx.Client(transport=httpx.MockTransport(service))
    return HttpRunner("http://sandbox:8080/", Retry(retries, sleep=lambda _: None), client), service


class FakeModal(types.ModuleType):
    """The calls of Modal's client that the runner makes, on local processes."""

    def __init__(self) -> None:
        super().__init__("modal")
        fake = self
        self.created: list[dict] = []
        self.terminated = 0
        self.failures = 0
        self.exception = types.SimpleNamespace(Error=type("Error", (Exception,), {}))
        self.App = types.SimpleNamespace(lookup=lambda name, create_if_missing: name)
        self.Image = types.SimpleNamespace(debian_slim=lambda python_version: python_version)

        class Process:
            def __init__(self, command, seconds):
                self.process = subprocess.Popen(
                    [sys.executable, *command[1:]], stdin=-1, stdout=-1, stderr=-1, text=True
                )
                self.stdin = types.SimpleNamespace(
                    write=self.process.stdin.write, write_eof=self.process.stdin.close, drain=lambda: None
                )
                self.stdout, self.stderr = self.process.stdout, self.process.stderr

            def wait(self):
                return self.process.wait()

        class Sandbox:
            @staticmethod
            def create(**options):
                if fake.failures:
                    fake.failures -= 1
                    raise fake.exception.Error("no capacity")
                fake.created.append(options)
                return Sandbox()

            def exec(self, *command, timeout):
                return Process(command, timeout)

            def terminate(self):
                fake.terminated += 1

        self.Sandbox = Sandbox


def modal_runner(**options):
    fake = FakeModal()
    return ModalRunner(Retry(2, sleep=lambda _: None), modal=fake), fake


@pytest.fixture(params=["http", "modal"])
def grader(request):
    runner, _ = http_runner() if request.param == "http" else modal_runner()
    return CodeGrader(runner, LIMITS, FeedbackOptions())


def grade(grader, source, tests):
    return grader.grade_source(source, read_tests(tests), LIMITS)


@pytest.mark.parametrize(
    ("tests", "right", "wrong"),
    [
        (PROGRAM, "print(int(input()) * 2)", "print(int(input()))"),
        (FUNCTION, "def f(xs):\n    print('noise')\n    return sum(xs)", "def f(xs): return len(xs)"),
        (FUNCTION, "class Solution:\n    def f(self, xs): return sum(xs)", "def f(xs): return {1, 2}"),
        (ASSERTS, "def f(xs): return sum(xs)", "def f(xs): return 0"),
    ],
)
def test_right_and_wrong_programs_are_told_apart(grader, tests, right, wrong):
    assert grade(grader, right, tests).status is GradeStatus.OK
    assert grade(grader, wrong, tests).status is GradeStatus.WRONG


def test_errors_carry_the_program_s_own_message(grader):
    result = grade(grader, "def f(xs):\n    return 1 / 0", FUNCTION)
    assert result.status is GradeStatus.RUNTIME_ERROR
    assert "ZeroDivisionError: division by zero\nline 2, in f: return 1 / 0" in result.feedback
    assert grade(grader, "def f(: pass", FUNCTION).status is GradeStatus.RUNTIME_ERROR
    assert "ZeroDivisionError" in grade(grader, "1 / 0", PROGRAM).feedback


def test_a_program_cannot_forge_an_answer(grader):
    for source in (
        "class E:\n    def __eq__(s, o): return True\ndef f(xs): return E()",
        "import os\ndef f(xs): os._exit(0)",
        "raise SystemExit(0)",
    ):
        assert grade(grader, source, FUNCTION).reward == 0.0
        assert grade(grader, source, ASSERTS).reward == 0.0 or grade(grader, source, ASSERTS).flags


def test_assert_files_share_a_process_there_and_are_marked_weak(grader):
    assert grade(grader, "def f(xs): return sum(xs)", ASSERTS).flags == ("integrity: weak",)


@pytest.mark.parametrize(
    "fault",
    [
        httpx.ConnectError("refused"),
        httpx.ReadTimeout("slow"),
        httpx.Response(503),
        httpx.Response(429),
        httpx.Response(200, text="not json"),
        httpx.Response(200, json={"status": "SandboxError", "message": "out of pods", "run_result": None}),
        httpx.Response(200, json={"status": "Failed", "run_result": {"status": "Finished", "return_code": -1}}),
    ],
    ids=repr,
)
def test_a_fault_of_the_service_is_retried_and_counted(fault):
    runner, service = http_runner(fault)
    assert runner.run_program("print(1)", b"", LIMITS).stdout == b"1\n"
    assert len(service.requests) == 2
    assert runner.summary() == "http sandbox: 2 attempts, 1 retries, 1 recovered, 0 failed"


def test_a_service_that_stays_broken_is_a_fault_and_no_verdict():
    runner, service = http_runner(*[httpx.Response(500)] * 9)
    with pytest.raises(SandboxFault, match="status 500"):
        runner.run_program("print(1)", b"", LIMITS)
    assert len(service.requests) == 3


def test_a_refused_request_is_not_repeated():
    runner, service = http_runner(httpx.Response(422, text="bad field"))
    with pytest.raises(SandboxFault, match="422: bad field"):
        runner.run_program("print(1)", b"", LIMITS)
    assert len(service.requests) == 1


def test_a_failing_program_is_not_repeated():
    runner, service = http_runner()
    assert runner.run_program("raise SystemExit(3)", b"", LIMITS).status is GradeStatus.RUNTIME_ERROR
    assert len(service.requests) == 1


def test_limits_travel_with_the_request_and_come_back_as_status():
    runner, service = http_runner()
    short = Limits(cpu_s=0.1, memory_mb=123)
    assert runner.run_program("import time\ntime.sleep(60)", b"", short).status is GradeStatus.TIMEOUT
    assert service.requests[0]["memory_limit_MB"] == 123
    assert service.requests[0]["run_timeout"] == short.wall_s
    assert runner.run_program("print('x' * 100_000)", b"", short).status is GradeStatus.OUTPUT_LIMIT
    assert runner.run_program("raise MemoryError", b"", short).status is GradeStatus.MEMORY_LIMIT


def test_every_program_gets_a_container_of_its_own_without_network_and_it_is_ended():
    runner, fake = modal_runner()
    for _ in range(2):
        runner.run_program("print(1)", b"", LIMITS)
    assert [options["block_network"] for options in fake.created] == [True, True]
    assert fake.terminated == 2


def test_a_container_that_cannot_start_is_retried_then_a_fault():
    runner, fake = modal_runner()
    fake.failures = 1
    assert runner.run_program("print(1)", b"", LIMITS).stdout == b"1\n"
    fake.failures = 9
    with pytest.raises(SandboxFault, match="no capacity"):
        runner.run_program("print(1)", b"", LIMITS)
    assert "1 recovered, 1 failed" in runner.summary()


def test_modal_without_its_client_is_a_configuration_error(monkeypatch):
    monkeypatch.setitem(sys.modules, "modal", None)
    with pytest.raises(ConfigError, match="pip install modal"):
        ModalRunner(Retry(0))


def test_pauses_double_have_jitter_and_are_bounded():
    pauses: list[float] = []
    retry = Retry(6, first_pause=1.0, longest_pause=8.0, sleep=pauses.append)

    def fail():
        raise TransportFault("down")

    with pytest.raises(TransportFault):
        retry.call(fail, Tally())
    for pause, base in zip(pauses, [1, 2, 4, 8, 8, 8], strict=True):
        assert base * 0.5 <= pause <= base * 1.5
    assert len({round(pause / base, 6) for pause, base in zip(pauses, [1, 2, 4, 8, 8, 8])}) > 1


def test_a_summary_starts_the_counts_anew():
    tally = Tally()
    Retry(0).call(lambda: 1, tally)
    assert summary_line("x", tally) == "x: 1 attempts, 0 retries, 0 recovered, 0 failed"
    assert summary_line("x", tally) == "x: 0 attempts, 0 retries, 0 recovered, 0 failed"
