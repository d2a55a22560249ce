"""What a person sees while a run goes on: a bar with the few numbers worth watching, or one line per step where the
output is no terminal; at the end one table."""

from __future__ import annotations

import time
from collections import deque
from dataclasses import dataclass
from typing import Any, TextIO

from rich.box import ROUNDED
from rich.console import Console, Group
from rich.live import Live
from rich.progress_bar import ProgressBar
from rich.spinner import Spinner
from rich.table import Table
from rich.text import Text

from sdpo.tracking.history import MODEL_BEST, Summary, duration
from sdpo.tracking.timing import PHASES


class RunConsole:
    """Prints one run. `stream` None is stdout."""

    def __init__(self, stream: TextIO | None = None) -> None:
        self.console = Console(file=stream, highlight=False)
        self.live = _LiveView() if self.console.is_terminal else None
        self._display: Live | None = None
        self._total: int | None = None
        self._held_out: _HeldOut | None = None

    def begin(self, first_step: int, total_steps: int | None) -> None:
        """Shows the bar; steps up to `first_step` are already done."""
        self._total = total_steps
        if self.live:
            self.live.step, self.live.total = first_step, total_steps
            self._display = Live(self.live, console=self.console, refresh_per_second=4, transient=True)
            self._display.start()

    def phase(self, name: str) -> None:
        if self.live:
            self.live.enter(name)

    def note(self, text: str) -> None:
        """A line that stays, above the bar."""
        self.console.print(self._drawable(text), markup=False, soft_wrap=True)

    def step(self, step: int, metrics: dict[str, Any], validation_name: str | None) -> None:
        """One finished step, or the validation before the first."""
        value = metrics.get(validation_name) if validation_name else None
        if value is not None:
            self._held_out = _HeldOut(step, value, metrics.get("val/reward"))
        figures = _figures(step, metrics, self._held_out)
        if self.live:
            self.live.update(step, figures, metrics.get("timing/step_s"))
            if value is not None:
                self.note(self._line(step, _figures(step, metrics, self._held_out, timing=False)))
        else:
            self.note(self._line(step, figures))

    def stop(self) -> None:
        if self._display:
            self._display.stop()
            self._display = None

    def finish(self, summary: Summary, places: dict[str, str], trackers: list[str]) -> None:
        """The final table. Paths are printed below it so that they are never cut."""
        self.stop()
        self.console.print()
        self.console.print(self._table(summary))
        for text in summary.warnings:
            self.note(f"warning: {text}")
        for name, path in places.items():
            self.note(f"{name:<12} {path}")
        for line in trackers:
            self.note(line)

    def _line(self, step: int, figures: list[str]) -> str:
        of = f"/{self._total}" if self._total else ""
        width = len(str(self._total or step))
        return "  ".join([f"step {step:>{width}}{of}", *figures])

    def _table(self, summary: Summary) -> Table:
        title = " ".join(part for part in (summary.algorithm, summary.title) if part)
        table = Table(
            title=title, box=ROUNDED, show_header=False, title_style="bold", title_justify="left", min_width=48
        )
        table.add_column(style="cyan", no_wrap=True)
        table.add_column()
        for name, value in summary_rows(summary):
            table.add_row(name, self._drawable(value))
        spent = sum(summary.phase_seconds.values())
        if spent > 0:
            table.add_section()
        for name, seconds in summary.phase_seconds.items():
            share = seconds / spent if spent > 0 else 0.0
            bar = "█" * max(1, round(24 * share))
            table.add_row(name, self._drawable(f"{duration(seconds):>12}  {share:>4.0%}  {bar}"))
        return table

    def _drawable(self, text: str) -> str:
        """Plain signs where the output's encoding has no others."""
        if not self.console.options.ascii_only:
            return text
        for sign, plain in (("→", "->"), ("·", ","), ("█", "#"), ("–", "-")):
            text = text.replace(sign, plain)
        return text.encode("ascii", "replace").decode()


@dataclass(frozen=True)
class _HeldOut:
    """The newest validation."""

    step: int
    accuracy: float
    reward: float | None

    def figure(self, now: int) -> str:
        """An old value says how old it is."""
        when = "" if self.step == now else f" (step {self.step})" if self.step else " (before training)"
        return f"held-out {_scores(self.accuracy, self.reward)}{when}"


class _LiveView:
    """Two lines, drawn anew a few times a second so that the seconds of a phase are seen to pass."""

    def __init__(self) -> None:
        self.step = 0
        self.total: int | None = None
        self.figures: list[str] = []
        self._phase = "starting"
        self._phase_began = self._began = time.monotonic()
        self._recent: deque[float] = deque(maxlen=20)
        self._spinner = Spinner("dots", style="cyan")

    def enter(self, phase: str) -> None:
        self._phase, self._phase_began = phase, time.monotonic()

    def update(self, step: int, figures: list[str], step_s: float | None) -> None:
        self.step, self.figures = step, figures
        if step_s is not None:
            self._recent.append(step_s)

    def __rich__(self) -> Group:
        now = time.monotonic()
        first = Table.grid(padding=(0, 1))
        bar = ProgressBar(total=self.total or 1, completed=self.step if self.total else 0, width=28)
        of = f"{self.step}/{self.total}" if self.total else f"{self.step}"
        timing = duration(now - self._began)
        if self.total and self._recent:
            left = (self.total - self.step) * sum(self._recent) / len(self._recent)
            timing += f", {duration(max(0.0, left))} left"
        phase = Text(f"{self._phase} {now - self._phase_began:.0f} s", style="dim")
        first.add_row(bar, Text(of, style="bold"), Text(timing, style="dim"), self._spinner, phase)
        second = Text("  ".join(self.figures), no_wrap=True, overflow="ellipsis")
        return Group(first, second)


def summary_rows(summary: Summary) -> list[tuple[str, str]]:
    """(name, text) rows of a run in words, for the final table."""
    rows = []
    name = (summary.validation_name or "val/accuracy").removeprefix("val/")
    if summary.validation_name or summary.held_out:
        rows.append((f"held-out {name}", _from_to(summary.before, summary.after)))
        rows.append(("held-out reward", _from_to(summary.reward_before, summary.reward_after)))
        if summary.graded is not None and summary.held_out and summary.graded < summary.held_out:
            rows.append(("graded", f"{summary.graded:,.0f} of {summary.held_out:,.0f} held-out responses"))
    if summary.best is not None:
        when = f"at step {summary.best_step}" if summary.best_step else "before training"
        rows.append(("best", f"{summary.best:.3f} {when}"))
    if summary.kept:
        metric = summary.kept["metric"].removeprefix("val/")
        rows.append((MODEL_BEST, f"step {summary.kept['step']}, {metric} {summary.kept['value']:.3f}"))
    rows += [(f"train {name}", _from_to(*values)) for name, values in summary.training.items()]
    of = f" of {summary.total_steps}" if summary.total_steps not in (None, summary.steps) else ""
    work = f"{summary.steps}{of} step{'' if summary.steps == 1 and not of else 's'}"
    if summary.samples is not None:
        work += f" · {summary.samples:,.0f} samples"
    rows.append(("training", work))
    if summary.idle_steps:
        all_of = "all" if summary.idle_steps == summary.trained_steps else f"{summary.idle_steps} of"
        rows.append(("learned nothing", f"{all_of} {summary.trained_steps} steps"))
    if summary.elapsed_s is not None:
        rows.append(("wall clock", duration(summary.elapsed_s)))
    return rows


def _from_to(before: float | None, after: float | None) -> str:
    """Of a run that only validated before training, say so: a lone number would be taken for the result."""
    first, last = ("–" if value is None else f"{value:.3f}" for value in (before, after))
    return f"{first} before training" if after is None and before is not None else f"{first} → {last}"


def _scores(accuracy: float, reward: float | None) -> str:
    return f"{accuracy:.3f}" if reward is None else f"{accuracy:.3f} reward {reward:.3f}"


def _figures(step: int, metrics: dict[str, Any], held_out: _HeldOut | None, timing: bool = True) -> list[str]:
    figures = []
    if (accuracy := metrics.get("train/accuracy")) is not None:
        figures.append(f"train {_scores(accuracy, metrics.get('train/reward'))}")
    if held_out:
        figures.append(held_out.figure(step))
    if (signal := _signal(metrics)) is not None:
        figures.append(f"signal {signal:.0%}")
    if (length := metrics.get("train/response_length")) is not None:
        figures.append(f"length {length:.0f}")
    if timing and (step_s := metrics.get("timing/step_s")) is not None:
        parts = [f"{name} {seconds:.1f}" for name in PHASES if (seconds := metrics.get(f"timing/{name}_s"))]
        split = f" ({', '.join(parts)})" if parts else ""
        figures.append(f"{step_s:.1f} s{split}")
    return figures


def _signal(metrics: dict[str, Any]) -> float | None:
    """Share of what was sampled that the update can learn from."""
    if (signal := metrics.get("sdpo/signal_frac")) is not None:
        return signal
    idle = metrics.get("grpo/zero_advantage_group_frac")
    return None if idle is None else 1.0 - idle
