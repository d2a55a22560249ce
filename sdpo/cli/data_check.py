"""What a data file holds and what is wrong with it, in one pass and without keeping the rows."""

from __future__ import annotations

import hashlib
import json
from array import array
from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from itertools import islice
from typing import Any

from sdpo.cli.gold_answers import responses
from sdpo.cli.reward_trial import Trial, users_code
from sdpo.config.schema import Config
from sdpo.data.columns import Columns
from sdpo.data.load import BUILTIN, load_prompts, open_rows
from sdpo.data.rows import question_key, to_prompt, to_row
from sdpo.errors import DataError
from sdpo.grading.registry import CUSTOM, build_source_grader, grader_kind
from sdpo.grading.source_grader import SourceGrader
from sdpo.records import Prompt

GRADED_AT_ONCE = 4
FUNCTION = "reward function"  # field of a finding about one of the user's


@dataclass(frozen=True)
class Finding:
    row: int  # from 1
    field: str
    why: str


@dataclass
class Column:
    filled: int = 0  # rows in which it is not null
    types: dict[str, int] = field(default_factory=dict)  # name -> rows


@dataclass
class GoldGrades:
    """How the graders judged a right and a wrong response written from each ground truth."""

    right: int = 0  # right responses with reward 1
    wrong: int = 0  # wrong responses with reward 0
    without_answer: int = 0  # rows that hold no answer to write down, such as tests without a solution
    trial: Trial | None = None  # of a reward function of the user's
    exceptions: list[Finding] = field(default_factory=list)


@dataclass
class Inspection:
    rows: int = 0
    usable: int = 0
    columns: dict[str, Column] = field(default_factory=dict)
    sources: dict[str, int] = field(default_factory=dict)  # data_source -> rows
    lengths: array[int] = field(default_factory=lambda: array("q"))  # of usable prompts, in `unit`
    unit: str = "characters"
    too_long: int = 0  # over data.max_prompt_length; only when counted in tokens
    unusable: list[Finding] = field(default_factory=list)
    ungradable: list[Finding] = field(default_factory=list)
    repeated: list[Finding] = field(default_factory=list)  # the question was there before
    contradicted: int = 0  # of those, with another ground truth
    overlapping: list[Finding] | None = None  # the question is in the other file; None: not asked
    gold: GoldGrades | None = None  # None: not asked

    @property
    def faulty(self) -> bool:
        """Whether training on the file needs a decision first. Repeated questions do not."""
        gold = self.gold.exceptions if self.gold else []
        return bool(self.unusable or self.ungradable or self.overlapping or gold)


def inspect(
    name: str,
    config: Config,
    count_tokens: Callable[[Prompt], int] | None = None,
    against: str | None = None,
    grade: bool = False,
) -> Inspection:
    """Reads the file, folder or hub data set `name` row by row.

    Args:
        count_tokens: length of a prompt under a model's template; None: characters.
        against: another file; its questions must not be in this one.
        grade: also grade a right and a wrong response for every row.

    Raises DataError for a file that cannot be read at all.
    """
    found = Inspection(unit="tokens" if count_tokens else "characters")
    other = None if against is None else {question_key(prompt) for _, prompt in _usable(against, config, Inspection())}
    found.overlapping = None if other is None else []
    with users_code(config.custom_reward_function.path) as overheard:
        _inspect(name, config, found, count_tokens, other, grade)
    if found.gold and found.gold.trial:
        found.gold.trial.printed = dict(overheard.places)
    return found


def _inspect(
    name: str,
    config: Config,
    found: Inspection,
    count_tokens: Callable[[Prompt], int] | None,
    other: set[bytes] | None,
    grade: bool,
) -> None:
    seen: dict[bytes, tuple[int, bytes]] = {}
    grader = build_source_grader(config, strict=grade)
    try:
        prompts = _observed(_usable(name, config, found), found, config, grader, count_tokens, seen, other)
        if grade:
            found.gold = GoldGrades()
            _grade_all(prompts, grader, found.gold, config)
        else:
            for _ in prompts:
                pass
    finally:
        grader.close()


def _usable(name: str, config: Config, found: Inspection) -> Iterator[tuple[int, Prompt]]:
    """(row number, prompt) of the rows that fit the schema; the others are noted."""
    if name.startswith(BUILTIN):
        rows: Iterable[dict[str, Any]] = map(to_row, load_prompts([name], config.data))
        table = False
    else:
        rows, table = open_rows(name, "file")
    columns = Columns.of(config.data)
    for number, row in enumerate(rows, 1):
        found.rows = number
        for column, value in _fields(row):
            entry = found.columns.setdefault(column, Column())
            if value is not None:
                entry.filled += 1
                _count(entry.types, _type_name(value))
        try:
            yield number, to_prompt(row, str(number), "row", columns, from_table=table)
        except DataError as error:
            place, _, why = str(error).removeprefix("row: ").partition(": ")
            found.unusable.append(Finding(number, place, why))


def _fields(row: dict[str, Any]) -> Iterator[tuple[str, Any]]:
    """The columns, behind `reward_model` what is in it: the ground truth is a field of the schema like any other."""
    for column, value in row.items():
        yield column, value
        if column == "reward_model" and isinstance(value, dict):
            yield from ((f"{column}.{name}", inside) for name, inside in value.items())


def _observed(
    prompts: Iterator[tuple[int, Prompt]],
    found: Inspection,
    config: Config,
    grader: SourceGrader,
    count_tokens: Callable[[Prompt], int] | None,
    seen: dict[bytes, tuple[int, bytes]],
    other: set[bytes] | None,
) -> Iterator[tuple[int, Prompt]]:
    """Passes on what can be graded, after counting everything."""
    for number, prompt in prompts:
        try:
            length = count_tokens(prompt) if count_tokens else sum(len(m["content"]) for m in prompt.messages)
        except DataError as error:  # the model's template refuses it
            found.unusable.append(Finding(number, config.data.prompt_key, str(error)))
            continue
        found.usable += 1
        _count(found.sources, prompt.data_source)
        found.lengths.append(length)
        found.too_long += bool(count_tokens) and length > config.data.max_prompt_length
        key, truth = question_key(prompt), _digest(json.dumps(prompt.ground_truth, default=repr))
        first, first_truth = seen.setdefault(key, (number, truth))
        if first != number:
            contradicts = truth != first_truth
            found.contradicted += contradicts
            found.repeated.append(Finding(number, "prompt", f"as row {first}{', other answer' if contradicts else ''}"))
        if other is not None and found.overlapping is not None and key in other:
            found.overlapping.append(Finding(number, "prompt", "the question is in the other file"))
        reason = _cannot_grade(prompt, grader)
        if reason:
            found.ungradable.append(Finding(number, "reward_model.ground_truth", reason))
        else:
            yield number, prompt


def _cannot_grade(prompt: Prompt, grader: SourceGrader) -> str | None:
    try:
        return grader.check(prompt)
    except DataError as error:  # a source that nobody grades
        return str(error)


def _grade_all(prompts: Iterator[tuple[int, Prompt]], grader: SourceGrader, gold: GoldGrades, config: Config) -> None:
    def of_this_kind(pair: tuple[int, Prompt]) -> tuple[list[Finding], bool | None]:
        number, prompt = pair
        if grader.kind_of(prompt.data_source) != CUSTOM:
            return _grade_one(number, prompt, grader)
        gold.trial = gold.trial or Trial()
        return [Finding(number, FUNCTION, why) for why in gold.trial.ask(prompt, grader)], None

    # A function of the user's gets one answer after the other: how long it takes is told.
    with ThreadPoolExecutor(GRADED_AT_ONCE if not config.custom_reward_function.path else 1) as pool:
        while batch := list(islice(prompts, 16 * GRADED_AT_ONCE)):
            for findings, answered in pool.map(of_this_kind, batch):
                gold.exceptions += findings
                gold.without_answer += answered is False
                gold.right += bool(answered) and not any(f.field == "right answer" for f in findings)
                gold.wrong += bool(answered) and not any(f.field == "wrong answer" for f in findings)
    if gold.trial and (slow := gold.trial.too_slow(config)):
        gold.exceptions.append(Finding(1, FUNCTION, f"{grader_name('', config)} {slow}"))


def _grade_one(number: int, prompt: Prompt, grader: SourceGrader) -> tuple[list[Finding], bool]:
    pair = responses(prompt)
    if pair is None:
        return [], False
    findings = []
    for name, response, reward in (("right answer", pair.right, 1.0), ("wrong answer", pair.wrong, 0.0)):
        grade = grader.grade_or_status(prompt, response, False)
        if grade.reward != reward:
            why = grade.feedback.split("\n")[0] or "; ".join(grade.flags)
            findings.append(Finding(number, name, f"{grade.status}, reward {grade.reward}: {why}"))
    return findings, True


def grader_name(data_source: str, config: Config) -> str:
    function = config.custom_reward_function
    try:
        kind = grader_kind(function, data_source)
        return kind if kind != CUSTOM else f"{', '.join(function.weights) or function.name} of {function.path}"
    except DataError:
        return "nobody grades it"


def _digest(text: str) -> bytes:
    return hashlib.blake2b(text.encode("utf-8", "surrogatepass"), digest_size=16).digest()


def _count(counts: dict[str, int], name: str) -> None:
    counts[name] = counts.get(name, 0) + 1


def _type_name(value: Any) -> str:
    if isinstance(value, list) and value:
        return f"list of {_type_name(value[0])}"
    names = {str: "text", dict: "object", list: "empty list", bool: "true/false", int: "number", float: "number"}
    return names.get(type(value), type(value).__name__)
