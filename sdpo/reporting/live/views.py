"""The page's answers as plain data. Every text is made visible here and put into the page as text by its script."""

from __future__ import annotations

from typing import Any

from sdpo.reporting.charts import Line, line_chart
from sdpo.reporting.live.run import Entry, Filter, LiveRun, Record, Thresholds, outcome
from sdpo.reporting.page import visible
from sdpo.reporting.report import tiles
from sdpo.reporting.report_charts import accuracy_charts, grid, learning_charts, time_charts
from sdpo.reporting.report_samples import prompt_text, question
from sdpo.tracking.history import SAMPLES_FILE

PAGE_SIZE = 40
MAX_CURVES = 60  # of "every metric" at once
MAX_TEXT = 200_000  # characters of one text


def state(run: LiveRun) -> dict[str, Any]:
    """What the page asks for every two seconds."""
    summary = run.history().summary()
    return {
        "title": visible(summary.title),
        "about": visible(" · ".join(part for part in (summary.algorithm, summary.model) if part)),
        "status": visible(summary.status),
        "age": run.age(),
        "tiles": visible("".join(tiles(summary))),
        "metrics_version": run.metrics_version,
        "samples": len(run.entries),
        "token_lines": run.token_lines,
        "generation": run.generation,
        "indexed": run.indexed,
        "statuses": [visible(status) for status in run.statuses()],
    }


def charts(run: LiveRun) -> dict[str, str]:
    """HTML, made by the report's own functions."""
    history = run.history()
    parts = {
        "Accuracy and reward": grid(accuracy_charts(history)),
        "Learning": grid(learning_charts(history)),
        "Time": time_charts(history, history.summary()),
    }
    return {title: visible(html) for title, html in parts.items() if html}


def every_metric(run: LiveRun, text: str) -> dict[str, Any]:
    """Charts of the metrics whose name holds `text`."""
    history = run.history()
    names = [name for name in history.names() if text.casefold() in name.casefold()]
    shown = [line_chart(name, [Line(name, history.series(name), 0)]) for name in names[:MAX_CURVES]]
    return {"html": visible(grid(shown)), "count": len(names), "shown": len(shown)}


def samples(run: LiveRun, wanted: Filter, before: int | None) -> dict[str, Any]:
    found, following = run.search(wanted, before, PAGE_SIZE)
    thresholds = run.thresholds()
    return {
        "generation": run.generation,
        "items": [item for number, entry in found if (item := _item(run, number, entry, thresholds))],
        "following": following,
    }


def sample(run: LiveRun, number: int, generation: int) -> dict[str, Any] | None:
    """Everything about one sample; None when it is gone."""
    with run.lock:
        if generation != run.generation or not 0 <= number < len(run.entries):
            return None
        entry = run.entries[number]
        siblings = [
            {"number": n, "index": other.index, "outcome": outcome(other, run.thresholds())}
            for n in range(max(0, number - 512), min(len(run.entries), number + 512))
            if ((other := run.entries[n]).step, other.phase, other.uid) == (entry.step, entry.phase, entry.uid)
        ]
    record = run.record(entry)
    if record is None:
        return None
    shown: dict[str, Any] = {
        "number": number,
        "generation": generation,
        "outcome": outcome(entry, run.thresholds()),
        "problem": prompt_text(record),
        "siblings": siblings,
        "tokens": _tokens(run.tokens(entry)),
    }
    return _visible(record | shown)


def _tokens(record: Record | None) -> list[list[Any]] | None:
    """[text, student's log-prob, teacher's log-prob] of each token."""
    if record is None:
        return None
    columns = [record.get(name) for name in ("tokens", "student", "teacher")]
    if not all(isinstance(column, list) for column in columns):
        return None
    return [[text, student, teacher] for text, student, teacher in zip(*columns, strict=False)]


def _item(run: LiveRun, number: int, entry: Entry, thresholds: Thresholds) -> dict[str, Any] | None:
    record = run.record(entry)
    if record is None:
        return None
    return _visible(
        {
            "number": number,
            "step": entry.step,
            "phase": entry.phase,
            "uid": entry.uid,
            "index": entry.index,
            "reward": entry.reward,
            "status": entry.status,
            "outcome": outcome(entry, thresholds),
            "taught": entry.taught,
            "tokens": run.has_tokens(entry),
            "question": question(record),
        }
    )


def _visible(value: Any) -> Any:
    if isinstance(value, str):
        cut = f"\n… {len(value) - MAX_TEXT:,} more characters in {SAMPLES_FILE}" if len(value) > MAX_TEXT else ""
        return visible(value[:MAX_TEXT]) + cut
    if isinstance(value, list):
        return [_visible(item) for item in value]
    if isinstance(value, dict):
        return {visible(str(key)): _visible(item) for key, item in value.items()}
    return value
