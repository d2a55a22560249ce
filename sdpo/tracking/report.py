"""report.html of a run folder: one self-contained page, built from the run's files alone."""

from __future__ import annotations

import datetime
from html import escape
from pathlib import Path
from typing import Any

from sdpo.tracking.charts import Line, clock, line_chart, stacked_bars
from sdpo.tracking.history import CONFIG_FILE, REPORT_FILE, SAMPLES_FILE, RunHistory, Summary, duration
from sdpo.tracking.jsonl import write_atomically
from sdpo.tracking.page import page
from sdpo.tracking.report_samples import before_after, pick_samples, training_samples

TRAIN, HELD_OUT = 0, 1  # colours: the same in every chart

# title, note, ((label, metric, colour), ...), bounds of the y axis
_CHARTS: tuple[tuple[str, str, tuple[tuple[str, str, int], ...], tuple[float, float] | None], ...] = (
    ("Divergence", "student to teacher, nats per distilled token", (("divergence", "sdpo/divergence", 0),), None),
    (
        "Entropy",
        "nats per response token",
        (("student", "actor/entropy", 0), ("teacher", "sdpo/teacher_entropy", 2)),
        None,
    ),
    ("Gradient norm", "before clipping", (("gradient norm", "actor/grad_norm", 0),), None),
    (
        "Response length",
        "tokens",
        (("training", "train/response_length", TRAIN), ("held-out", "val/response_length", HELD_OUT)),
        None,
    ),
    (
        "Signal",
        "share of responses (of groups, where named so)",
        (
            ("any signal", "sdpo/signal_frac", 0),
            ("demonstration", "sdpo/demonstration_frac", 2),
            ("feedback", "sdpo/feedback_frac", 3),
            ("mixed groups", "train/mixed_group_frac", 4),
            ("groups without advantage", "grpo/zero_advantage_group_frac", 5),
        ),
        (0.0, 1.0),
    ),
    (
        "Trouble",
        "share of responses cut at the limit, or lost by the grader",
        (("truncated", "train/truncated_frac", 4), ("grader failed", "train/infra_error_frac", 5)),
        None,
    ),
    ("Loss", "of the optimizer step", (("loss", "actor/loss", 0),), None),
    ("Learning rate", "", (("learning rate", "actor/lr", 0),), None),
    (
        "Sampler against trainer",
        "largest difference of log-probs",
        (("difference", "rollout/log_prob_diff_max", 3),),
        None,
    ),
)
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
    threshold = _setting(history.config, "actor_rollout_ref.actor.self_distillation.success_reward_threshold") or 1.0
    picked = pick_samples(history.run_dir / SAMPLES_FILE, summary.steps)
    parts = [
        _header(history, summary),
        _section("Accuracy", "", _charts(_accuracy_charts(history))),
        _section("Learning", "By step.", _charts(_curated(history))),
        _section("Time", "Where the seconds of a step go.", _time(history, summary)),
        _section(
            "Before and after",
            "The same held-out problems, answered by the first and by the newest weights.",
            before_after(picked, threshold),
        ),
        _section(
            "What the teacher saw",
            "Training responses: reward, the grader's words, and the prompt under which the teacher scored them.",
            training_samples(picked, threshold),
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
        f'<div class="tiles">{"".join(_tiles(summary))}</div>'
    )


def _tiles(summary: Summary) -> list[str]:
    name = (summary.validation_name or "val/accuracy").removeprefix("val/")
    tiles = [
        _tile(f"held-out {name} before", _score(summary.before), "initial weights"),
        _tile("after", _score(summary.after), "" if summary.after_step is None else f"step {summary.after_step}"),
        _tile("best", _score(summary.best), "" if summary.best_step is None else f"step {summary.best_step}"),
        _tile("steps", f"{summary.steps:,}", f"of {summary.total_steps:,}" if summary.total_steps else ""),
    ]
    if summary.samples is not None:
        tiles.append(_tile("samples", f"{summary.samples:,.0f}", "training responses"))
    if summary.elapsed_s is not None:
        tiles.append(_tile("wall clock", duration(summary.elapsed_s), "training loop"))
    return tiles


def _tile(name: str, value: str, note: str) -> str:
    note = escape(note) or "&nbsp;"
    return f'<div class="tile"><span>{escape(name)}</span><b>{escape(value)}</b><small>{note}</small></div>'


def _score(value: float | None) -> str:
    return "–" if value is None else f"{value:.3f}"


def _section(title: str, note: str, body: str) -> str:
    if not body:
        return ""
    return (
        f"<section><h2>{escape(title)}</h2>" + (f"<p>{escape(note)}</p>" if note else "<p></p>") + f"{body}</section>"
    )


def _charts(figures: list[str]) -> str:
    figures = [figure for figure in figures if figure]
    return f'<div class="charts">{"".join(figures)}</div>' if figures else ""


def _accuracy_charts(history: RunHistory) -> list[str]:
    name = history.validation_name
    train = history.series("train/accuracy")
    held_out = history.series(name) if name else []
    label = f"held-out {name.removeprefix('val/')}" if name else "held-out"

    def by_clock(points: list[tuple[int, float]]) -> list[tuple[float, float]]:
        return [(history.elapsed[step], value) for step, value in points if step in history.elapsed]

    def lines(convert: Any) -> list[Line]:
        return [Line("training", convert(train), TRAIN), Line(label, convert(held_out), HELD_OUT, markers=True)]

    figures = [line_chart("Accuracy by step", lines(list), bounds=(0.0, 1.0))]
    clock_chart = line_chart("Accuracy by wall clock", lines(by_clock), bounds=(0.0, 1.0), x_name="clock", x_text=clock)
    passes = [f for f in history.names() if f.startswith("val/pass@")]
    passes.sort(key=lambda f: int(f.rpartition("@")[2]))
    pass_chart = line_chart(
        "Held-out pass@k",
        [Line(f.removeprefix("val/"), history.series(f), (i + 1) % 6, markers=True) for i, f in enumerate(passes)],
        bounds=(0.0, 1.0),
    )
    return [*figures, clock_chart, pass_chart]


def _curated(history: RunHistory) -> list[str]:
    return [
        line_chart(title, [Line(label, history.series(name), colour) for label, name, colour in metrics], note, bounds)
        for title, note, metrics, bounds in _CHARTS
    ]


def _time(history: RunHistory, summary: Summary) -> str:
    phases = list(summary.phase_seconds)
    chart = stacked_bars(
        "Seconds per step",
        [Line(name, history.series(f"timing/{name}_s"), i % 6) for i, name in enumerate(phases)],
        "phases of each step, stacked",
    )
    speed = line_chart("Tokens per second", [Line("response tokens", history.series("perf/tokens_per_s"), 2)])
    spent = sum(summary.phase_seconds.values())
    rows = "".join(
        f"<tr><th>{escape(name)}</th><td>{duration(seconds)}</td><td>{seconds / spent:.0%}</td></tr>"
        for name, seconds in summary.phase_seconds.items()
        if spent > 0
    )
    table = f'<div class="card"><h3 class="head">Share of each phase</h3><table>{rows}</table></div>' if rows else ""
    return f'<div class="charts">{chart}{speed}{table}</div>' if chart or speed or table else ""


def _configuration(history: RunHistory) -> str:
    if not history.config:
        return ""
    rows = []
    for label, paths in _SETTINGS:
        values = [_setting(history.config, path) for path in paths.split(",")]
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


def _setting(config: dict[str, Any], path: str) -> Any:
    value: Any = config
    for name in path.split("."):
        value = value.get(name) if isinstance(value, dict) else None
    return value


def _plain(value: Any) -> str:
    if isinstance(value, list):
        return ", ".join(str(item) for item in value)
    return "none" if value is None else str(value)
