"""report.html of a run folder: one self-contained page, built from the run's files alone."""

from __future__ import annotations

import datetime
from html import escape
from pathlib import Path
from typing import Any

from sdpo.reporting.charts import Line, line_chart
from sdpo.reporting.page import page
from sdpo.reporting.report_charts import accuracy_charts, grid, learning_charts, time_charts
from sdpo.reporting.report_samples import before_after, pick_samples, training_samples
from sdpo.tracking.history import (
    CONFIG_FILE,
    MODEL_BEST,
    REPORT_FILE,
    SAMPLES_FILE,
    RunHistory,
    Summary,
    duration,
    setting,
    success_threshold,
)
from sdpo.tracking.jsonl import write_atomically

# What the configuration table shows: label, path.
_SETTINGS: tuple[tuple[str, str], ...] = (
    ("model", "actor_rollout_ref.model.path"),
    ("training data", "data.train_files"),
    ("held-out data", "data.val_files"),
    ("loss", "actor_rollout_ref.actor.policy_loss.loss_mode"),
    ("prompts per step", "data.train_batch_size"),
    ("responses per prompt", "actor_rollout_ref.rollout.n"),
    ("prompts per optimizer step", "actor_rollout_ref.actor.ppo_mini_batch_size"),
    ("learning rate", "actor_rollout_ref.actor.optim.lr"),
    ("alpha", "actor_rollout_ref.actor.self_distillation.alpha"),
    ("top-k", "actor_rollout_ref.actor.self_distillation.distillation_topk"),
    ("teacher", "actor_rollout_ref.actor.self_distillation.teacher_regularization"),
    ("teacher rate", "actor_rollout_ref.actor.self_distillation.teacher_update_rate"),
    ("response limit (tokens)", "data.max_response_length"),
    ("temperature", "actor_rollout_ref.rollout.temperature"),
    ("engine", "actor_rollout_ref.rollout.name"),
    ("cluster", "cluster"),
    ("seeds (data, torch)", "data.seed,trainer.seed"),
)


def write_report(run_dir: Path | str) -> Path:
    """Writes `run_dir`/report.html from the files of the run, finished or broken off. Returns its path.

    Raises DataError when the folder has no metrics file.
    """
    history = RunHistory.load(run_dir)
    summary = history.summary()
    picked = pick_samples(history.run_dir / SAMPLES_FILE, summary.steps)
    parts = [
        _header(history, summary),
        _section("Accuracy and reward", "", grid(accuracy_charts(history))),
        _section("Learning", "By step.", grid(learning_charts(history))),
        _section("Time", "Where the seconds of a step go.", time_charts(history, summary)),
        _section(
            "Before and after",
            "The same held-out problems, answered by the first and by the newest weights.",
            before_after(picked, success_threshold(history.config, held_out=True)),
        ),
        _section(
            "What the teacher saw",
            "Training responses: reward, the grader's words, and the prompt under which the teacher scored them.",
            training_samples(picked, success_threshold(history.config)),
        ),
        _section("Configuration", "", _configuration(history)),
        _section("Every metric", "", _every_metric(history)),
        _footer(history),
    ]
    path = history.run_dir / REPORT_FILE
    write_atomically(path, page(f"{summary.title} report", "\n".join(part for part in parts if part)))
    return path


def _header(history: RunHistory, summary: Summary) -> str:
    status = "running or broken off" if summary.status == "running" else summary.status
    about = " · ".join(part for part in (summary.algorithm, summary.model) if part)
    return (
        f'<header><p class="eyebrow">{escape(about)}</p><h1>{escape(summary.title)}'
        f'<span class="status {escape(summary.status)}">{escape(status)}</span></h1></header>'
        f'<div class="tiles">{"".join(tiles(summary))}</div>'
    )


def tiles(summary: Summary) -> list[str]:
    name = (summary.validation_name or "val/accuracy").removeprefix("val/")
    after = [] if summary.after_step is None else [f"step {summary.after_step}"]
    best = (
        [] if summary.best_step is None else [f"step {summary.best_step}" if summary.best_step else "before training"]
    )
    tiles = [
        _tile(f"held-out {name} before", _score(summary.before), *_reward(summary.reward_before), "initial weights"),
        _tile("after", _score(summary.after), *_reward(summary.reward_after), *after),
        _tile("best", _score(summary.best), *_reward(summary.reward_best), *best),
        *_training(summary),
        _tile("steps", f"{summary.steps:,}", f"of {summary.total_steps:,}" if summary.total_steps else ""),
    ]
    if summary.idle_steps:
        tiles.append(_tile("learned nothing", f"{summary.idle_steps:,}", f"of {summary.trained_steps:,} steps"))
    if summary.graded is not None and summary.held_out and summary.graded < summary.held_out:
        tiles.append(_tile("held-out graded", f"{summary.graded:,.0f}", f"of {summary.held_out:,.0f} responses"))
    if summary.kept:
        metric = summary.kept["metric"].removeprefix("val/")
        tiles.append(_tile(MODEL_BEST, f"{summary.kept['value']:.3f}", f"{metric}, step {summary.kept['step']}"))
    if summary.samples is not None:
        tiles.append(_tile("samples", f"{summary.samples:,.0f}", "training responses"))
    if summary.elapsed_s is not None:
        tiles.append(_tile("wall clock", duration(summary.elapsed_s), "training loop"))
    warnings = (f'<div class="tile warning"><span>warning</span>{escape(text)}</div>' for text in summary.warnings)
    return [*tiles, *warnings]


def _training(summary: Summary) -> list[str]:
    if "accuracy" not in summary.training:
        return []
    reward = [f"reward {' → '.join(map(_score, summary.training['reward']))}"] if "reward" in summary.training else []
    return [_tile("training accuracy", _score(summary.training["accuracy"][1]), *reward)]


def _reward(value: float | None) -> list[str]:
    return [] if value is None else [f"reward {value:.3f}"]


def _tile(name: str, value: str, *notes: str) -> str:
    note = escape(", ".join(notes)) or "&nbsp;"
    return f'<div class="tile"><span>{escape(name)}</span><b>{escape(value)}</b><small>{note}</small></div>'


def _score(value: float | None) -> str:
    return "–" if value is None else f"{value:.3f}"


def _section(title: str, note: str, body: str) -> str:
    if not body:
        return ""
    return (
        f"<section><h2>{escape(title)}</h2>" + (f"<p>{escape(note)}</p>" if note else "<p></p>") + f"{body}</section>"
    )


def _configuration(history: RunHistory) -> str:
    if not history.config:
        return ""
    rows = []
    for label, paths in _SETTINGS:
        values = [setting(history.config, path) for path in paths.split(",")]
        text = ", ".join(_plain(value) for value in values)
        rows.append(f"<tr><th>{escape(label)}</th><td>{escape(text)}</td></tr>")
    half = (len(rows) + 1) // 2
    tables = "".join(f'<div class="card"><table>{"".join(part)}</table></div>' for part in (rows[:half], rows[half:]))
    text = (history.run_dir / CONFIG_FILE).read_text(encoding="utf-8")
    body = f'<div class="body"><pre>{escape(text)}</pre></div>'
    whole = f'<details class="card"><summary>{CONFIG_FILE}</summary>{body}</details>'
    return f'<div class="split">{tables}</div><p></p>{whole}'


def _every_metric(history: RunHistory) -> str:
    figures = [line_chart(name, [Line(name, history.series(name), 0)]) for name in history.names()]
    if not figures:
        return ""
    return (
        f'<details class="card"><summary>{len(figures)} curves</summary>'
        f'<div class="body"><div class="wide"><div class="charts">{"".join(figures)}</div></div></div></details>'
    )


def _footer(history: RunHistory) -> str:
    versions = ", ".join(f"{name} {version}" for name, version in history.state.get("versions", {}).items())
    started = history.state.get("started")
    when = ""
    if isinstance(started, int | float):
        when = datetime.datetime.fromtimestamp(started).strftime("started %Y-%m-%d %H:%M")
    return f"<footer>{escape(' · '.join(part for part in (when, versions, str(history.run_dir)) if part))}</footer>"


def _plain(value: Any) -> str:
    if isinstance(value, list):
        return ", ".join(str(item) for item in value)
    return "none" if value is None else str(value)
