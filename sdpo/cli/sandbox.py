"""Is model-written code safe to run here?

    python -m sdpo.cli.sandbox check [--level L3|L3-|L2|L1] [--json]   the isolation of this machine, and its self-test
    python -m sdpo.cli.sandbox smoke [--level ...]                     six small programs through the real path

Exit code 0: all is well, 6: no level can be used or a check failed.
"""

from __future__ import annotations

import argparse
import json
import sys
import time
from collections.abc import Sequence

from sdpo.cli.program import program
from sdpo.errors import SandboxUnavailable
from sdpo.records import GradeStatus
from sdpo.sandbox.inside.plan import LEVELS
from sdpo.sandbox.limits import Limits
from sdpo.sandbox.outcome import SandboxFault
from sdpo.sandbox.sandbox import Sandbox, SandboxOptions

# name, program, standard input, expected status, words of the output or of the error
SMOKE = (
    ("passing code", "print(int(input()) + 1)", b"41\n", GradeStatus.OK, "42"),
    ("failing code", "print(1 / 0)", b"", GradeStatus.RUNTIME_ERROR, "ZeroDivisionError"),
    ("time limit", "while True: pass", b"", GradeStatus.TIMEOUT, ""),
    ("memory limit", "x = [bytearray(1 << 26) for _ in range(100)]", b"", GradeStatus.MEMORY_LIMIT, "MemoryError"),
    (
        "blocked network",
        "import socket\nsocket.create_connection(('127.0.0.1', 22), timeout=1)",
        b"",
        GradeStatus.RUNTIME_ERROR,
        "PermissionError",
    ),
    ("blocked files", "print(open('/etc/passwd').read())", b"", GradeStatus.RUNTIME_ERROR, "Error"),
)


@program
def main(argv: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(
        prog="python -m sdpo.cli.sandbox", description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("command", choices=("check", "smoke"))
    parser.add_argument("--level", choices=LEVELS[:-1], default=LEVELS[0], help="strongest level to try")
    parser.add_argument("--json", action="store_true", help="print the report as JSON (check)")
    options = parser.parse_args(argv)
    try:
        with Sandbox(SandboxOptions(ceiling=options.level)) as sandbox:
            return check(sandbox, options.json) if options.command == "check" else smoke(sandbox)
    except SandboxFault as error:
        raise SandboxUnavailable(str(error)) from error


def check(sandbox: Sandbox, as_json: bool) -> int:
    report = sandbox.report
    if as_json:
        print(json.dumps(report.to_dict(), indent=2))
        return 0
    print(report.line())
    for name, text in report.features.refused.items():
        print(f"  refused: {name}: {text}")
    for probe in report.checks:
        print(f"  {'ok ' if probe.stopped else 'BAD'} {probe.name}: {probe.detail}")
    return 0


def smoke(sandbox: Sandbox) -> int:
    failures = 0
    print(sandbox.report.line())
    for name, source, stdin, expected, words in SMOKE:
        start = time.monotonic()
        outcome = sandbox.run_program(source, stdin, Limits(cpu_s=1.0, memory_mb=256))
        said = outcome.stdout.decode(errors="replace") + (
            f"{outcome.fault.type}: {outcome.fault.message}" if outcome.fault else ""
        )
        good = outcome.status is expected and words in said
        failures += not good
        print(f"{'ok  ' if good else 'FAIL'} {name}: {outcome.status} ({time.monotonic() - start:.2f} s)")
    return SandboxUnavailable.exit_code if failures else 0


if __name__ == "__main__":
    sys.exit(main())
