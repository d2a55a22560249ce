"""Grade a file of answers, one JSON object a line.

    python -m sdpo.cli.grade ANSWERS.jsonl [--out GRADES.jsonl] [--workers N] [KEY=VALUE ...]

Input fields: id, kind (code | math | multiple_choice | tool_calls), response; optional prompt, truncated; for code
`tests` ({"type": "stdin", "cases": [{"input", "output"}]}, {"type": "function", "name", "cases": [{"args",
"expected"}]} or {"type": "assert", "code", "entry_point"}) and `limits` ({"cpu_s", "memory_mb"}); for the others
`gold` (a letter comes with
`choices`, a list of {"name", "arguments"} may come with `tools`). One result line per good input line, in the same
order: id, status, reward, passed_fraction, feedback, seconds. KEY=VALUE are overrides such as grading.public_only=true.

Exit code 0: every line was graded, 2: some lines are malformed (named on standard error; the others are graded all
the same), 6: the grader itself failed on some.
"""

from __future__ import annotations

import argparse
import json
import sys
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TextIO

from sdpo.config.compose import compose
from sdpo.config.schema import Config
from sdpo.errors import ConfigError, DataError, SandboxUnavailable
from sdpo.grading.code_tests import read_limits, read_tests
from sdpo.grading.registry import build_source_grader
from sdpo.grading.sandbox.limits import Limits
from sdpo.grading.source_grader import SourceGrader
from sdpo.records import Grade, GradeStatus, Prompt

KINDS = ("code", "math", "multiple_choice", "tool_calls")
MALFORMED, GRADER_FAILED = 2, 6
AHEAD = 64  # lines read before the first of them is written, per worker


@dataclass(frozen=True)
class Answer:
    prompt: Prompt
    response: str
    truncated: bool


class MalformedLine(Exception):
    """Message: the field and what is wrong with it."""


def main(argv: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(
        prog="python -m sdpo.cli.grade", description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("file", type=Path, help="JSON lines; - reads standard input")
    parser.add_argument("--out", type=Path, help="default: standard output")
    parser.add_argument("--workers", type=int, default=4, help="lines graded at once (default 4)")
    parser.add_argument(
        "overrides", nargs="*", metavar="KEY=VALUE", help="settings, e.g. grading.feedback_style=leetcode"
    )
    options = parser.parse_intermixed_args(argv)
    if options.workers < 1:
        parser.error("--workers: at least 1")
    try:
        config = compose(options.overrides)
        config.grading.concurrency = max(config.grading.concurrency, options.workers)
        return grade_file(options.file, options.out, options.workers, config)
    except (ConfigError, DataError, SandboxUnavailable) as error:
        print(error, file=sys.stderr)
        return error.exit_code
    except OSError as error:
        print(f"{options.file}: {error.strerror or error}", file=sys.stderr)
        return DataError.exit_code


def grade_file(source: Path, target: Path | None, workers: int, config: Config) -> int:
    """Grades line by line with `workers` threads, writes in order, and returns the exit code."""
    code = 0
    with ExitStack() as stack:
        lines: TextIO = sys.stdin if str(source) == "-" else stack.enter_context(open(source, encoding="utf-8"))
        out: TextIO = sys.stdout if target is None else stack.enter_context(open(target, "w", encoding="utf-8"))
        grader = build_source_grader(config)
        stack.callback(grader.close)
        threads = stack.enter_context(ThreadPoolExecutor(workers))
        for number, identity, result in in_order(grader, lines, threads, workers * AHEAD):
            if isinstance(result, MalformedLine):
                print(f"line {number}: {result}", file=sys.stderr)
                code = code or MALFORMED
                continue
            if result.status is GradeStatus.INFRA_ERROR:
                print(f"line {number}: the grader failed: {'; '.join(result.flags)}", file=sys.stderr)
                code = GRADER_FAILED
            out.write(json.dumps(to_record(identity, result)) + "\n")
    return code


def in_order(
    grader: SourceGrader, lines: TextIO, threads: ThreadPoolExecutor, ahead: int
) -> Iterator[tuple[int, Any, Grade | MalformedLine]]:
    """(line number, id, grade or what is wrong), in the order of the file; at most `ahead` lines are in flight."""
    pending: list[tuple[int, Any, Any]] = []
    for number, line in enumerate(lines, 1):
        if not line.strip():
            continue
        try:
            answer = read_line(line)
            future = threads.submit(grader.grade_or_status, answer.prompt, answer.response, answer.truncated)
            pending.append((number, json.loads(line)["id"], future))
        except MalformedLine as error:
            pending.append((number, None, error))
        if len(pending) >= ahead:
            yield settled(*pending.pop(0))
    for entry in pending:
        yield settled(*entry)


def settled(number: int, identity: Any, result: Any) -> tuple[int, Any, Grade | MalformedLine]:
    return number, identity, result if isinstance(result, MalformedLine) else result.result()


def read_line(line: str) -> Answer:
    """Raises MalformedLine naming the field."""
    try:
        data = json.loads(line)
    except (ValueError, RecursionError) as error:
        raise MalformedLine(f"not valid JSON ({error})") from None
    if not isinstance(data, dict):
        raise MalformedLine(f"got {type(data).__name__}; allowed: a JSON object")
    if "id" not in data:
        raise MalformedLine("id: missing")
    kind = data.get("kind")
    if kind not in KINDS:
        raise MalformedLine(f"kind: got {kind!r}; allowed: {', '.join(KINDS)}")
    if not isinstance(data.get("response"), str):
        raise MalformedLine(f"response: got {type(data.get('response')).__name__}; allowed: text")
    truncated = data.get("truncated", False)
    if not isinstance(truncated, bool):
        raise MalformedLine(f"truncated: got {truncated!r}; allowed: true, false")
    tools = data.get("tools")
    if tools is not None and not isinstance(tools, list):
        raise MalformedLine("tools: allowed: a list of tool schemas")
    messages = ({"role": "user", "content": data.get("prompt") or ""},)
    truth = ground_truth(kind, data)
    prompt = Prompt(str(data["id"]), messages, kind, truth, tools=tuple(tools) if tools else None)
    return Answer(prompt, data["response"], truncated)


def ground_truth(kind: str, data: dict[str, Any]) -> Any:
    if kind != "code":
        if "gold" not in data:
            raise MalformedLine("gold: missing")
        if kind == "multiple_choice":
            return {"answer": data["gold"], "choices": data.get("choices", 4)}
        return data["gold"]
    if "tests" not in data:
        raise MalformedLine("tests: missing")
    tests = data["tests"]
    if isinstance(tests, dict) and "limits" in data:
        tests = {**tests, "limits": data["limits"]}
    try:
        read_tests(tests)
        read_limits(tests, Limits())
    except DataError as error:
        raise MalformedLine(str(error)) from None
    return tests


def to_record(identity: Any, grade: Grade) -> dict[str, Any]:
    record = {
        "id": identity,
        "status": str(grade.status),
        "reward": grade.reward,
        "passed_fraction": grade.passed_fraction,
        "feedback": grade.feedback,
        "seconds": round(grade.seconds, 4),
    }
    return record | ({"flags": list(grade.flags)} if grade.flags else {})


if __name__ == "__main__":
    sys.exit(main())
