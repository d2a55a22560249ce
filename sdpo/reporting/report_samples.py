"""The samples in the report: the same held-out problems before and after, training samples with what the teacher saw.

All text comes from models, data and graders; it is escaped here and shown as it is.
"""

from __future__ import annotations

import json
from collections import Counter, defaultdict
from collections.abc import Callable
from dataclasses import dataclass, field
from html import escape
from pathlib import Path
from typing import Any

from sdpo.reporting.page import visible
from sdpo.tracking.history import is_solved
from sdpo.tracking.jsonl import read_lines

MAX_TEXT = 6000  # characters shown of one text
MAX_PER_CLASS = 4  # before/after pairs shown of each kind of change
MAX_TRAIN = 8  # samples shown of one training step
MAX_KEPT = 2000  # records kept in memory per step

Record = dict[str, Any]


@dataclass
class PickedSamples:
    """What the report shows of a samples file of any length."""

    before: list[Record] = field(default_factory=list)
    after: list[Record] = field(default_factory=list)
    train: dict[int, list[Record]] = field(default_factory=dict)  # first, middle and last logged step


def pick_samples(path: Path, last_step: int) -> PickedSamples:
    """Reads the file once, line by line, and keeps the validations at both ends and three training steps."""
    picked = PickedSamples()
    middle: int | None = None
    for record in read_lines(path):
        step, phase = record.get("step", 0), record.get("phase")
        if phase == "val_before":
            _keep(picked.before, record)
        elif phase in ("val", "val_after"):
            if picked.after and picked.after[-1]["step"] != step:
                picked.after.clear()
            _keep(picked.after, record)
        elif phase == "train":
            if middle is None and step >= last_step / 2 and picked.train and step not in picked.train:
                middle = step
            if step not in picked.train:
                first = min(picked.train, default=step)
                picked.train = {s: picked.train[s] for s in picked.train if s in (first, middle)}
            _keep(picked.train.setdefault(step, []), record)
    return picked


def pairs(picked: PickedSamples) -> list[tuple[Record, Record]]:
    """(before, after) of the same problem and the same response number."""
    after = {(r.get("uid"), r.get("index")): r for r in picked.after}
    return [(r, after[key]) for r in picked.before if (key := (r.get("uid"), r.get("index"))) in after]


def before_after(picked: PickedSamples, threshold: float) -> str:
    """Cards of the same problem at both ends of the run, and how often each kind of change happened."""
    kinds: dict[tuple[bool, bool], list[tuple[Record, Record]]] = defaultdict(list)
    for first, last in pairs(picked):
        kinds[is_solved(first.get("reward"), threshold), is_solved(last.get("reward"), threshold)].append((first, last))
    if not kinds:
        return '<p class="card empty">No held-out problem was logged at both ends of the run.</p>'
    total = sum(len(found) for found in kinds.values())
    names = {(False, True): "learned", (True, False): "forgotten", (True, True): "kept", (False, False): "still wrong"}
    counts = ", ".join(f"{len(kinds[kind])} {name}" for kind, name in names.items() if kinds.get(kind))
    parts = [f'<p class="label">{total} logged responses: {counts}. Up to {MAX_PER_CLASS} of each kind are shown.</p>']
    for kind, name in names.items():
        for first, last in _spread(kinds.get(kind, []), lambda pair: pair[0].get("uid"))[:MAX_PER_CLASS]:
            parts.append(_pair_card(first, last, name, kind, opened=len(parts) == 1))
    return f'<div class="stack">{"".join(parts)}</div>'


def training_samples(picked: PickedSamples, threshold: float) -> str:
    """Cards of training samples by step; those that a teacher saw come first."""
    if not picked.train:
        return '<p class="card empty">No training sample was logged.</p>'
    parts: list[str] = []
    for step, records in sorted(picked.train.items()):
        records = sorted(records, key=lambda r: r.get("teacher_prompt") is None)
        chosen = _spread(records, lambda r: r.get("uid"))[:MAX_TRAIN]
        cards = "".join(_sample_card(r, threshold, opened=not parts and i == 0) for i, r in enumerate(chosen))
        parts.append(f'<h4>Step {step}: {len(chosen)} of {len(records)} logged</h4><div class="stack">{cards}</div>')
    return "".join(parts)


def shown(text: Any) -> str:
    """Any text as safe HTML: escaped, control signs visible, cut at MAX_TEXT with a note of what is missing."""
    text = text if isinstance(text, str) else json.dumps(text, ensure_ascii=False, indent=1)
    cut = f"\n… {len(text) - MAX_TEXT:,} more characters in samples.jsonl" if len(text) > MAX_TEXT else ""
    return escape(visible(text[:MAX_TEXT])) + cut


def _keep(records: list[Record], record: Record) -> None:
    if len(records) < MAX_KEPT:
        records.append(record)


def _spread(items: list[Any], key: Callable[[Any], Any]) -> list[Any]:
    """The same items, one of every key first, then the second of every key, and so on."""
    seen: Counter[Any] = Counter()
    ranked = []
    for item in items:
        ranked.append((seen[key(item)], item))
        seen[key(item)] += 1
    return [item for _, item in sorted(ranked, key=lambda pair: pair[0])]


def _pair_card(first: Record, last: Record, name: str, kind: tuple[bool, bool], opened: bool) -> str:
    sides = []
    for when, record, solved in (("before", first, kind[0]), ("after", last, kind[1])):
        label = f"{when} (step {record['step']})"
        response = _block(label, record.get("response", ""), _chips(record, solved))
        sides.append(f"<div>{response}{_feedback(record)}</div>")
    chip = f'<span class="chip {"good" if kind[1] else "bad"}">{name}</span>'
    problem = f'<div class="wide">{_block("problem", prompt_text(first))}</div>'
    return _card(first, chip, problem + "".join(sides), opened)


def _sample_card(record: Record, threshold: float, opened: bool) -> str:
    if record.get("teacher_prompt") is None:
        teacher = _block("teacher", "No demonstration and no feedback: this response carries no distillation signal.")
    else:
        sources = ["feedback"] if record.get("used_feedback") else []
        if record.get("demonstration_index") is not None:
            sources.insert(0, f"demonstration: response {record['demonstration_index']}")
        if record.get("stored_solution"):
            sources.insert(0, "demonstration: the row's solution")
        chips = "".join(f'<span class="chip">{escape(source)}</span>' for source in sources)
        teacher = _block("teacher's prompt", record["teacher_prompt"], chips)
    student = _block("problem", prompt_text(record)) + _block("response", record.get("response", ""))
    body = f"<div>{student}{_feedback(record)}</div><div>{teacher}</div>"
    return _card(record, _chips(record, is_solved(record.get("reward"), threshold)), body, opened)


def _card(record: Record, chips: str, body: str, opened: bool) -> str:
    head = f'<span class="what">{shown(question(record))}</span>{chips}{_id(record)}'
    state = " open" if opened else ""
    return f'<details class="card"{state}><summary>{head}</summary><div class="body">{body}</div></details>'


def _chips(record: Record, solved: bool) -> str:
    reward, status = record.get("reward"), record.get("status")
    style = "warn" if reward is None else "good" if solved else "bad"
    text = "not graded" if reward is None else f"reward {reward:.3g}"
    chips = [f'<span class="chip {style}">{text}</span>']
    if status and status != "ok":
        chips.append(f'<span class="chip">{escape(str(status).replace("_", " "))}</span>')
    if record.get("finish_reason") == "length":
        chips.append('<span class="chip warn">cut at the length limit</span>')
    if (tokens := record.get("response_tokens")) is not None:
        chips.append(f'<span class="chip">{tokens} tokens</span>')
    return "".join(chips)


def _id(record: Record) -> str:
    return f'<span class="id">{escape(str(record.get("uid")))} · {escape(str(record.get("index")))}</span>'


def _feedback(record: Record) -> str:
    return _block("feedback", record["feedback"]) if record.get("feedback") else ""


def _block(label: str, text: Any, chips: str = "") -> str:
    return f'<div><p class="label">{escape(label)}{chips}</p><pre>{shown(text) or "<i>(empty)</i>"}</pre></div>'


def prompt_text(record: Record) -> str:
    """The student's messages as one text."""
    messages = record.get("prompt") or []
    if len(messages) == 1:
        return _content(messages[0])
    return "\n\n".join(f"[{message.get('role')}]\n{_content(message)}" for message in messages)


def question(record: Record) -> str:
    """The beginning of the last message, in one line."""
    messages = record.get("prompt") or [{}]
    return " ".join(_content(messages[-1]).split())[:200]


def _content(message: Any) -> str:
    content = message.get("content", "") if isinstance(message, dict) else message
    return content if isinstance(content, str) else json.dumps(content, ensure_ascii=False)
