"""The charts of a run: drawn by the report once, by the live page again and again."""

from __future__ import annotations

from html import escape
from typing import Any

from sdpo.reporting.charts import Line, clock, line_chart, stacked_bars
from sdpo.tracking.history import RunHistory, Summary, duration

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
        (
            ("truncated", "train/truncated_frac", 4),
            ("grader failed", "train/infra_error_frac", 5),
            ("held-out, grader failed", "val/infra_error_frac", HELD_OUT),
        ),
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


def grid(figures: list[str]) -> str:
    figures = [figure for figure in figures if figure]
    return f'<div class="charts">{"".join(figures)}</div>' if figures else ""


def accuracy_charts(history: RunHistory) -> list[str]:
    name = history.validation_name
    train = history.series("train/accuracy")
    held_out = history.series(name) if name else []
    label = f"held-out {name.removeprefix('val/')}" if name else "held-out"

    def by_clock(points: list[tuple[int, float]]) -> list[tuple[float, float]]:
        return [(history.elapsed[step], value) for step, value in points if step in history.elapsed]

    def lines(convert: Any) -> list[Line]:
        return [Line("training", convert(train), TRAIN), Line(label, convert(held_out), HELD_OUT, markers=True)]

    # Of rewards between 0 and 1 the accuracy may show nothing for long.
    rewards = (("training", "train/reward", TRAIN, False), ("held-out", "val/reward", HELD_OUT, True))
    figures = [
        line_chart("Accuracy by step", lines(list), bounds=(0.0, 1.0)),
        line_chart(
            "Mean reward by step", [Line(n, history.series(m), colour, marked) for n, m, colour, marked in rewards]
        ),
    ]
    clock_chart = line_chart("Accuracy by wall clock", lines(by_clock), bounds=(0.0, 1.0), x_name="clock", x_text=clock)
    passes = [f for f in history.names() if f.startswith("val/pass@")]
    passes.sort(key=lambda f: int(f.rpartition("@")[2]))
    pass_chart = line_chart(
        "Held-out pass@k",
        [Line(f.removeprefix("val/"), history.series(f), (i + 1) % 6, markers=True) for i, f in enumerate(passes)],
        bounds=(0.0, 1.0),
    )
    return [*figures, clock_chart, pass_chart]


def learning_charts(history: RunHistory) -> list[str]:
    return [
        line_chart(title, [Line(label, history.series(name), colour) for label, name, colour in metrics], note, bounds)
        for title, note, metrics, bounds in _CHARTS
    ]


def time_charts(history: RunHistory, summary: Summary) -> str:
    phases = list(summary.phase_seconds)
    chart = stacked_bars(
        "Seconds per step",
        [Line(name, history.series(f"timing/{name}_s"), i % 6) for i, name in enumerate(phases)],
        "phases of each step, stacked",
    )
    speed = line_chart(
        "Tokens per second", [Line("response tokens", history.series("perf/tokens_per_s"), 2)], "without validation"
    )
    spent = sum(summary.phase_seconds.values())
    rows = "".join(
        f"<tr><th>{escape(name)}</th><td>{duration(seconds)}</td><td>{seconds / spent:.0%}</td></tr>"
        for name, seconds in summary.phase_seconds.items()
        if spent > 0
    )
    table = f'<div class="card"><h3 class="head">Share of each phase</h3><table>{rows}</table></div>' if rows else ""
    return f'<div class="charts">{chart}{speed}{table}</div>' if chart or speed or table else ""
