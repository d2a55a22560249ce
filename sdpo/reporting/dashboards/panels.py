"""What a dashboard shows, whatever draws it. Metrics are those of the metrics page."""

from __future__ import annotations

from dataclasses import asdict, dataclass
from typing import Any

from sdpo.records import GradeStatus
from sdpo.tracking.timing import PHASES
from sdpo.tracking.trackers import STEP_AXIS

CLOCK, SAMPLES = "timing/elapsed_s", "train/samples"


@dataclass(frozen=True)
class Panel:
    """One chart: metrics over `x`. `share`: between 0 and 1. `stacked`: the metrics add up."""

    title: str
    metrics: tuple[str, ...]
    x: str = STEP_AXIS
    x_title: str = "step"
    y_title: str = ""
    share: bool = False
    stacked: bool = False


@dataclass(frozen=True)
class Section:
    title: str
    panels: tuple[Panel, ...]


def sections(n: int = 4) -> list[Section]:
    """`n`: responses per held-out prompt (`rollout.val_kwargs.n`), which is part of the metric's name."""
    held_out = (f"val/avg@{n}",)
    statuses = tuple(f"grade/{status}_frac" for status in GradeStatus)
    return [
        Section(
            "Accuracy",
            (
                Panel("Held-out accuracy by wall clock", held_out, CLOCK, "seconds of training loop", share=True),
                Panel("Held-out accuracy by samples", held_out, SAMPLES, "responses sampled", share=True),
                Panel("Held-out pass@k", tuple(f"val/pass@{k}" for k in _ks(n)), share=True),
                Panel("Training accuracy", ("train/accuracy",), share=True),
                Panel("Mean reward", ("train/reward", "val/reward")),
            ),
        ),
        Section(
            "Teacher and student",
            (
                Panel("Divergence of student and teacher", ("sdpo/divergence",), y_title="nats per token"),
                Panel("Entropy", ("actor/entropy", "sdpo/teacher_entropy"), y_title="nats per token"),
                Panel("Probability inside the top-k", ("sdpo/student_mass", "sdpo/teacher_mass"), share=True),
            ),
        ),
        Section(
            "Signal",
            (
                Panel(
                    "Responses with a teacher",
                    ("sdpo/signal_frac", "sdpo/demonstration_frac", "sdpo/feedback_frac", "sdpo/both_frac"),
                    share=True,
                ),
                Panel(
                    "Groups",
                    ("train/mixed_group_frac", "train/solved_group_frac", "grpo/zero_advantage_group_frac"),
                    share=True,
                ),
                Panel("Trimmed or left out", ("sdpo/trimmed_frac", "sdpo/masked_overlong_frac"), share=True),
            ),
        ),
        Section(
            "Responses",
            (
                Panel("Length", ("train/response_length", "val/response_length"), y_title="tokens"),
                Panel("Cut at the limit", ("train/truncated_frac", "val/truncated_frac"), share=True),
            ),
        ),
        Section(
            "Grader",
            (
                Panel("Status of the responses", statuses, share=True, stacked=True),
                Panel("Lost", ("train/infra_error_frac", "train/ungraded_frac", "val/ungraded_frac"), share=True),
            ),
        ),
        Section(
            "Update",
            (
                Panel("Loss", ("actor/loss",)),
                Panel("Gradient norm", ("actor/grad_norm",)),
                Panel("Skipped and empty steps", ("actor/skipped_steps", "actor/empty_mini_batches")),
                Panel("Engine against trainer", ("rollout/log_prob_diff_max",), y_title="nats"),
            ),
        ),
        Section(
            "Time",
            (
                Panel(
                    "Seconds of a step",
                    tuple(f"timing/{phase}_s" for phase in PHASES),
                    y_title="s",
                    stacked=True,
                ),
                Panel("Throughput", ("perf/tokens_per_s",), y_title="response tokens per second"),
            ),
        ),
    ]


def as_json(n: int = 4) -> list[dict[str, Any]]:
    return [asdict(section) for section in sections(n)]


def _ks(n: int) -> list[int]:
    return sorted({2**power for power in range(1, n.bit_length()) if 2**power <= n} | {n})
