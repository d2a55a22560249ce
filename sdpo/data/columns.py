"""Which column of a row is what: by verl's names, or by those that the settings give."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from sdpo.config.schema import DataConfig
from sdpo.errors import DataError

# Where people keep these, the likeliest first; named in errors, never read unasked.
PROMPTS = ("prompt", "question", "problem", "messages", "conversations", "instruction", "query", "input", "text")
ANSWERS = (
    "answer", "ground_truth", "final_answer", "expected_answer", "target", "label", "gold", "solution", "completion",
    "response", "output",
)  # fmt: skip
SOURCES = ("source", "dataset", "task")
_READ = {"reward_model", "extra_info", "tools", "chat_template_kwargs"}
_NUMBER = re.compile(r"[-+$]?\s*[\d.,/]+%?")


@dataclass(frozen=True)
class Columns:
    """Names of columns; a dot leads into an object: extra_info.solution."""

    prompt: str = "prompt"
    source: str = "data_source"
    answer: str | None = None  # None: reward_model.ground_truth
    solution: str | None = None
    feedback: str = "privileged_context"
    default_source: str | None = None  # of rows without one

    @classmethod
    def of(cls, data: DataConfig) -> Columns:
        return cls(
            data.prompt_key, data.reward_fn_key, data.answer_key, data.solution_key, data.feedback_key, data.data_source
        )

    def source_of(self, row: Mapping[str, Any], where: str) -> str:
        """The row's data source. Raises DataError for a row without a column that is needed: what it has, and which
        names would fit."""
        source = value_of(row, self.source)
        if source is None:
            source = self.default_source
        missing = {
            self.source: source is None,
            self.prompt: value_of(row, self.prompt) is None,
            self.answer or "": self.answer is not None and value_of(row, self.answer) is None,
            self.solution or "": self.solution is not None and value_of(row, self.solution) is None,
        }
        fields = [name for name, gone in missing.items() if gone]
        if fields:
            has = ", ".join(f"{name} ({_kind(value)})" for name, value in row.items()) or "no columns"
            raise DataError(
                f"{where}: {' and '.join(fields)}: missing; the row has {has}; {self._fitting(row, source)}"
            )
        if not isinstance(source, str) or not source.strip():
            raise DataError(f"{where}: {self.source}: got {source!r}; it must be text that names the grader")
        return source

    def _fitting(self, row: Mapping[str, Any], source: str | None) -> str:
        prompt = self.prompt if value_of(row, self.prompt) is not None else _first(PROMPTS, row) or "COLUMN"
        answer = self.answer if self.answer and value_of(row, self.answer) is not None else None
        if answer is None and value_of(row, "reward_model.ground_truth") is None:
            answer = _first([name for name in ANSWERS if name != prompt], row)
            if answer is None and _ends_with_answer(value_of(row, prompt)):
                answer = prompt
        settings = [f"data.prompt_key={prompt}"] if prompt != "prompt" else []
        settings += [f"data.answer_key={answer}"] if answer else []
        if source is None:
            column = _first(SOURCES, row)
            settings.append(f"data.data_source={_grader(row, prompt, answer)}")
            settings[-1] += f" (or data.reward_fn_key={column})" if column else ""
        return f"try {' '.join(settings)}" if settings else "name the column that holds it"

    def others(self, row: Mapping[str, Any]) -> dict[str, Any]:
        """The columns with no meaning of their own, for reward functions."""
        own = {self.prompt, self.source, *_READ}
        return {name: value for name, value in row.items() if name not in own and not isinstance(value, bytes)}


def value_of(row: Mapping[str, Any], name: str | None) -> Any:
    """The value of a column, or of a field inside one; None where there is none."""
    if name is None:
        return None
    if name in row:
        return row[name]
    column, _, rest = name.partition(".")
    inside = row.get(column) if rest else None
    return value_of(inside, rest) if isinstance(inside, Mapping) else None


def answer_column(columns: Mapping[str, Any]) -> str | None:
    """The column that looks like the answer of a row without ground truth."""
    return _first(ANSWERS, columns)


def _first(names: tuple[str, ...] | list[str], row: Mapping[str, Any]) -> str | None:
    return next((name for name in names if row.get(name) is not None), None)


def _ends_with_answer(value: Any) -> bool:
    last = value[-1] if isinstance(value, list) and value else None
    return isinstance(last, Mapping) and "assistant" in (last.get("role"), last.get("from"))


def _grader(row: Mapping[str, Any], prompt: str, answer: str | None) -> str:
    """A data source that grades such answers; NAME where nothing is known of them."""
    value = value_of(row, answer or "reward_model.ground_truth")
    if answer == prompt or isinstance(value, list | dict) or value is None:
        return "NAME, which picks the grader"
    text = str(value).strip()
    if "####" in text:
        return "gsm8k"
    if "\\" in text or _NUMBER.fullmatch(text):
        return "math"
    return "multiple_choice" if re.fullmatch(r"\(?[A-J]\)?", text) else "exact"


def _kind(value: Any) -> str:
    if isinstance(value, str):
        return f"text {value[:20]!r}{'...' * (len(value) > 20)}" if len(value) < 40 else f"text of {len(value)} signs"
    names = {dict: "object", list: "list", type(None): "null"}
    return names.get(type(value), type(value).__name__)
