"""Grade a file of answers, one JSON object a line.

    python -m sdpo.cli.grade ANSWERS.jsonl [--out GRADES.jsonl] [--workers N] [KEY=VALUE ...]

Input fields: id, kind (code | math | multiple_choice | tool_calls), response; optional prompt, truncated, header (what
the chat template put between prompt and response, e.g. "<think>\\n": reasoning that it opens is no answer); for code
`tests` ({"type": "stdin", "cases": [{"input", "output"}]}, {"type": "function", "name", "cases": [{"args",
"expected"}]} or {"type": "assert", "code", "entry_point"}) and `limits` ({"cpu_s", "memory_mb"}); for the others
`gold` (a letter comes with `choices`, a list of {"name", "arguments"} may come with `tools`). Or a row of a data file
(docs/data.md: data_source, prompt, reward_model) with its response, where id is the line number unless given. One
result line per good input line, in the same order: id, status, reward, passed_fraction, feedback, seconds, and flags
where there are some.
KEY=VALUE are overrides such as grading.public_only=true.

Exit code 0: every line was graded, 2: some lines are malformed (named on standard error; the others are graded all
the same), 6: the grader itself failed on some, 130: interrupted; the results up
to the first unfinished line are written.
"""

from __future__ import annotations

import argparse
import codecs
import json
import sys
from collections import deque
from collections.abc import Iterable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TextIO

from sdpo.cli.output_file import writing
from sdpo.cli.program import program
from sdpo.cli.reward_trial import users_code
from sdpo.config.compose import compose
from sdpo.config.files import check_grading, check_reward_function
from sdpo.config.schema import Config
from sdpo.config.validate import check_single_values
from sdpo.data.columns import Columns, value_of
from sdpo.data.long_integers import read_json
from sdpo.data.rows import to_prompt
from sdpo.errors import DataError
from sdpo.grading.code_tests import read_limits, read_tests
from sdpo.grading.registry import build_source_grader
from sdpo.grading.source_grader import SourceGrader
from sdpo.records import Grade, GradeStatus, Prompt
from sdpo.sandbox.limits import Limits
from sdpo.tokens.think import left_open

KINDS = ("code", "math", "multiple_choice", "tool_calls")
MALFORMED, GRADER_FAILED, INTERRUPTED = 2, 6, 130
_VERL = Columns()
LISTED = 10  # lines named that failed for the same reason
AHEAD = 64  # lines read before the first of them is written, per worker


@dataclass(frozen=True)
class Answer:
    prompt: Prompt
    response: str
    truncated: bool
    is_row: bool  # of the data page; others are checked as they are read


class MalformedLine(Exception):
    """Message: the field and what is wrong with it."""


@program
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
    if (
        options.out is not None
        and options.out.exists()
        and options.file.exists()
        and options.out.samefile(options.file)
    ):
        parser.error("--out: the file that is read")
    config = compose(options.overrides)
    check_single_values(config)
    check_grading(config)
    check_reward_function(config)
    config.grading.concurrency = max(config.grading.concurrency, options.workers)
    try:
        return grade_file(options.file, options.out, options.workers, config)
    except KeyboardInterrupt:
        print("interrupted; the results up to the first unfinished line are written", file=sys.stderr)
        return INTERRUPTED


def grade_file(source: Path, target: Path | None, workers: int, config: Config) -> int:
    """Grades line by line with `workers` threads, writes in order, and returns the exit code."""
    code = 0
    failures: dict[str, list[int]] = {}  # reason -> lines
    with ExitStack() as stack:
        lines = stack.enter_context(_reading(source))
        threads = ThreadPoolExecutor(workers)
        stack.callback(threads.shutdown)
        out: TextIO = sys.stdout
        stack.enter_context(users_code(config.custom_reward_function.path))
        grader = build_source_grader(config, strict=True)
        # After what can fail: the file may hold the results of another time.
        if target is not None:
            stack.enter_context(writing(target, "--out"))
            out = stack.enter_context(open(target, "w", encoding="utf-8"))
        stack.callback(grader.close)  # ends what still runs, so that nothing is waited for after an interruption
        stack.callback(threads.shutdown, wait=False, cancel_futures=True)
        for number, identity, result in in_order(grader, lines, threads, workers * AHEAD, Columns.of(config.data)):
            if isinstance(result, MalformedLine):
                print(f"line {number}: {result}", file=sys.stderr)
                code = code or MALFORMED
                continue
            if result.status is GradeStatus.INFRA_ERROR:
                reason = "; ".join(result.flags)
                if reason not in failures:
                    print(f"line {number}: the grader failed: {reason}", file=sys.stderr)
                failures.setdefault(reason, []).append(number)
                code = GRADER_FAILED
            out.write(json.dumps(to_record(identity, result)) + "\n")
            out.flush()
    for reason, (first, *more) in failures.items():
        if more:
            named = f"{', '.join(map(str, more[:LISTED]))}{', ...' * (len(more) > LISTED)}"
            print(f"as line {first}: {len(more)} more ({named}): {reason}", file=sys.stderr)
    return code


@contextmanager
def _reading(source: Path) -> Iterator[Iterator[bytes]]:
    """The lines of the file. DataError where it cannot be read."""

    def lines() -> Iterator[bytes]:
        try:
            yield from file
        except OSError as error:
            raise DataError(f"{source}: {error.strerror or error}") from error

    try:
        file = sys.stdin.buffer if str(source) == "-" else open(source, "rb")  # noqa: SIM115 (closed below)
    except OSError as error:
        raise DataError(f"{source}: {error.strerror or error}") from error
    with file:
        yield lines()


def in_order(
    grader: SourceGrader, lines: Iterable[bytes], threads: ThreadPoolExecutor, ahead: int, columns: Columns
) -> Iterator[tuple[int, Any, Grade | MalformedLine]]:
    """(line number, id, grade or what is wrong), in the order of the file; at most `ahead` lines are in flight."""
    pending: deque[tuple[int, Any, Any]] = deque()
    for number, line in enumerate(lines, 1):
        if not line.strip():
            continue
        try:
            line = line.removeprefix(codecs.BOM_UTF8) if number == 1 else line
            identity, answer = read_line(line, number, columns)
            if answer.is_row:
                _check_row(grader, answer.prompt)
            future = threads.submit(grader.grade_or_status, answer.prompt, answer.response, answer.truncated)
            pending.append((number, identity, future))
        except MalformedLine as error:
            pending.append((number, None, error))
        if len(pending) >= ahead:
            yield settled(*pending.popleft())
    while pending:
        yield settled(*pending.popleft())


def settled(number: int, identity: Any, result: Any) -> tuple[int, Any, Grade | MalformedLine]:
    try:
        return number, identity, result if isinstance(result, MalformedLine) else result.result()
    except RecursionError:
        return number, identity, MalformedLine("nested too deeply")


def _check_row(grader: SourceGrader, prompt: Prompt) -> None:
    try:
        reason = grader.check(prompt)
    except DataError as error:  # a source that nobody grades
        raise MalformedLine(str(error)) from None
    if reason:
        raise MalformedLine(f"reward_model.ground_truth: {reason}")


def read_line(line: bytes, number: int, columns: Columns = _VERL) -> tuple[Any, Answer]:
    """(id, answer). Raises MalformedLine naming the field."""
    try:
        data = read_json(line.decode())
    except UnicodeDecodeError as error:
        raise MalformedLine(f"not UTF-8 (byte {error.start + 1})") from None
    except (ValueError, RecursionError) as error:
        raise MalformedLine(f"not valid JSON ({error})") from None
    if not isinstance(data, dict):
        raise MalformedLine(f"got {type(data).__name__}; allowed: a JSON object")
    if not isinstance(data.get("response"), str):
        raise MalformedLine(f"response: got {type(data.get('response')).__name__}; allowed: text")
    truncated = data.get("truncated", False)
    if not isinstance(truncated, bool):
        raise MalformedLine(f"truncated: got {truncated!r}; allowed: true, false")
    header = data.get("header", "")
    if not isinstance(header, str):
        raise MalformedLine(f"header: got {type(header).__name__}; allowed: text")
    if "kind" not in data and (columns.default_source or value_of(data, columns.source) is not None):
        identity, prompt = data.get("id", number), _prompt_of_row(data, number, columns)
    else:
        identity, prompt = data.get("id"), _prompt_of_line(data)
    return identity, Answer(prompt, left_open(header) + data["response"], truncated, "kind" not in data)


def _prompt_of_row(data: dict[str, Any], number: int, columns: Columns) -> Prompt:
    try:
        return to_prompt(data, str(number), "row", columns, from_table=False)
    except DataError as error:
        raise MalformedLine(str(error).removeprefix("row: ")) from None


def _prompt_of_line(data: dict[str, Any]) -> Prompt:
    if "id" not in data:
        raise MalformedLine("id: missing")
    kind = data.get("kind")
    if kind not in KINDS:
        allowed = f"{', '.join(KINDS)}; or give a row as in docs/data.md, with data_source"
        raise MalformedLine(f"kind: got {kind!r}; allowed: {allowed}")
    tools = data.get("tools")
    if tools is not None and not isinstance(tools, list):
        raise MalformedLine("tools: allowed: a list of tool schemas")
    messages = ({"role": "user", "content": data.get("prompt") or ""},)
    truth = ground_truth(kind, data)
    return Prompt(str(data["id"]), messages, kind, truth, tools=tuple(tools) if tools else None)


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
    some = {"flags": list(grade.flags), "extra": grade.extra}
    return record | {name: value for name, value in some.items() if value}


if __name__ == "__main__":
    sys.exit(main())
