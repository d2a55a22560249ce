"""A judged test: the judge (test code) and the solver (the solution) run side by side and talk over a socket; the
judge's report comes back here."""

from __future__ import annotations

import socket
import time
from dataclasses import replace
from typing import Any

from sdpo.records import GradeStatus

from .assert_code import prepare
from .child_run import ChildRun
from .limits import Limits
from .outcome import AssertCase, AssertOutcome, Fault
from .poller import Poller
from .pool import ServerPool
from .server import Server

REPORT_CAP = 1 << 20


EDITED = "the tests read an argument again that the program changed"


def judged_tests(
    pool: ServerPool, flavor: str, source: bytes, code: str, entry_point: str | None, prompt: str, limits: Limits
) -> AssertOutcome:
    """Runs a test file against a solution. Where the program changed arguments that the tests still hold, a pass is
    made again with these changes withheld: one that then fails was decided by a yardstick that the program edited."""

    def once(withhold: bool) -> AssertOutcome:
        tests = prepare(code, entry_point, prompt, withhold)
        return pool.run(flavor, lambda server: judged_run(server, source, tests, limits))

    outcome = once(False)
    if outcome.passed and outcome.edited and not outcome.weak and not once(True).passed:
        return replace(outcome, weak=True, why=EDITED)
    return outcome


def judged_run(server: Server, source: bytes, tests: bytes, limits: Limits) -> AssertOutcome:
    """Raises SandboxFault."""
    poller: Poller[ChildRun] = Poller()
    cap = limits.output_kb << 10
    near, far = socket.socketpair()
    start = time.monotonic()
    try:
        solver = ChildRun(
            server,
            "remote",
            source,
            limits,
            stdout_cap=cap,
            drop_stdout=True,
            link=far,
            own_channel=False,
            poller=poller,
        )
        with solver:
            judge = ChildRun(server, "judge", tests, limits, stdout_cap=cap, drop_stdout=True, link=near, poller=poller)
            with judge:
                near.close()
                far.close()
                solver.wait_ready()
                judge.wait_ready()
                report = judge.receive(REPORT_CAP)
                outcome = _outcome(report, judge, solver)
                for run in (judge, solver):
                    run.end(GradeStatus.OK, "done")
                    run.reap()
    finally:
        near.close()
        far.close()
    return replace(outcome, seconds=time.monotonic() - start)


def _outcome(report: Any, judge: ChildRun, solver: ChildRun) -> AssertOutcome:
    """A limit that the solver broke explains everything else; then the judge's report; then how the judge ended."""
    if isinstance(report, dict) and report.get("gone"):
        solver.synchronize()
    broken = next((run.ending for run in (solver, judge) if run.ending and run.ending.status in LIMITS), None)
    if broken is not None:
        return AssertOutcome((AssertCase(broken.status, detail=broken.detail),))
    if not isinstance(report, dict):
        assert judge.ending is not None
        if judge.ending.exit_code == 0:  # os._exit() in the tests
            return AssertOutcome((AssertCase(GradeStatus.INVALID_GOLD, detail="they end their own process"),))
        return AssertOutcome(
            (AssertCase(GradeStatus.RUNTIME_ERROR, detail=f"the tests ended with {judge.ending.detail}"),)
        )
    if "load_error" in report:
        return AssertOutcome((_fault_case(report["load_error"], ""),))
    if report.get("unusable"):
        return AssertOutcome((AssertCase(GradeStatus.INVALID_GOLD, detail=str(report["unusable"])),))
    cases = [_case(case) for case in report["cases"]]
    if report.get("gone") or report.get("protocol"):
        cases.append(AssertCase(GradeStatus.RUNTIME_ERROR, detail=_gone(report, solver)))
    cases += [AssertCase(GradeStatus.OK)] * report["passed"]
    why = str(report["weak"][0]) if report["weak"] else ""
    return AssertOutcome(tuple(cases), bool(why), why=why, edited=bool(report["edited"]))


LIMITS = (GradeStatus.TIMEOUT, GradeStatus.OUTPUT_LIMIT, GradeStatus.MEMORY_LIMIT)


def _gone(report: dict[str, Any], solver: ChildRun) -> str:
    if report.get("protocol"):
        return f"the program sent an answer that cannot be read ({report['protocol']})"
    ending = solver.ending
    if ending is None or ending.detail.startswith("exit status"):
        return f"The process exited with status {ending.exit_code if ending else 0} before the result was returned"
    return ending.detail


def _case(data: dict[str, Any]) -> AssertCase:
    statement = str(data.get("statement", ""))
    if "missing" in data:
        return AssertCase(GradeStatus.RUNTIME_ERROR, detail=f"the solution defines no {data['missing']}")
    if "fault" in data:
        return _fault_case(data["fault"], statement)
    if "error" in data:
        return AssertCase(GradeStatus.RUNTIME_ERROR, statement, detail=f"error in the test: {data['error']}")
    detail = str(data.get("message", ""))
    return AssertCase(
        GradeStatus.WRONG, statement, str(data.get("left", "")), str(data.get("right", "")), detail=detail
    )


def _fault_case(data: Any, statement: str) -> AssertCase:
    fault = Fault.from_message(data)
    if fault.type == "SystemExit":
        code = fault.code if isinstance(fault.code, int) else 0 if fault.code is None else 1
        text = f"The process exited with status {code} before the result was returned"
        return AssertCase(GradeStatus.RUNTIME_ERROR, statement, detail=text)
    status = GradeStatus.MEMORY_LIMIT if fault.type == "MemoryError" else GradeStatus.RUNTIME_ERROR
    return AssertCase(status, statement, fault=fault)
