"""From the measured gap to an expected gain, and to a plain word on whether to train with SDPO.

The relation is that of He, Sieber and Saponati, "A Predictive Law for On-Policy Self-Distillation From World Feedback"
(arXiv 2605.30070): over context types, final improvement = slope * (teacher - student) before training, with an
intercept near 0. Reported slopes: 1.49 (Qwen3-8B), 0.66 (Olmo-3-7B), 1.51 (Qwen3 from 0.6B to 8B), on LiveCodeBench.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

from sdpo.config.schema import SelfDistillationConfig
from sdpo.screening.measure import Context, Rate, Screening

SLOPES = (0.66, 1.49)  # lowest and highest of two model families
SURE = 2.0  # standard errors
NO_ROOM = 0.97  # student's accuracy from which there is nothing left to gain
RARE = 0.05  # coverage, or mixed groups, below which hardly anything is learnt
CUT = 0.5  # share of truncated answers from which accuracies say little
LOST = 0.2  # likewise, of answers that could not be graded


@dataclass(frozen=True)
class Verdict:
    """`gain`: expected change of accuracy, from and to; None when the measurement does not allow one. `helps`: True,
    False, or None where the answers are too few to tell."""

    helps: bool | None
    gain: tuple[float, float] | None
    reasons: list[str]


def judge(screening: Screening, settings: SelfDistillationConfig) -> Verdict:
    context = next(c for c in screening.contexts if c.name == "as configured")
    broken, gap, student = _broken(screening, context), context.gap, screening.student
    if broken or gap is None or student is None:
        return Verdict(None, None, broken)
    gain = expected_gain(gap.value, student.value)
    low, high = (gap.value + sign * SURE * gap.spread for sign in (-1, 1))
    if student.value >= NO_ROOM:
        text = f"the student already solves {student.value:.0%}: there is no room; take harder problems"
        return Verdict(False, gain, [text])
    if context.coverage < RARE:
        return Verdict(False, gain, [_no_signal(context, screening, settings), *_advice(screening, gap)])
    if high <= 0 or low <= 0 < high:
        sure = high <= 0
        return Verdict(False if sure else None, gain, [_no_better(gap, sure), *_advice(screening, gap)])
    text = (
        f"the teacher, shown its context, is {_signed(gap)} above the student "
        f"({context.coverage:.0%} of the answers have a context)"
    )
    return Verdict(True, gain, [text, *_advice(screening, gap)])


def expected_gain(gap: float, student: float) -> tuple[float, float]:
    """Slopes times gap; never beyond accuracies of 0 and 1."""
    bounds = sorted(slope * gap for slope in SLOPES)
    low, high = (min(1.0 - student, max(-student, value)) for value in bounds)
    return low, high


def _broken(screening: Screening, context: Context) -> list[str]:
    """Why the accuracies say nothing."""
    reasons = []
    if screening.infra_error_frac > LOST:
        reasons.append(f"the grader failed on {screening.infra_error_frac:.0%} of the answers: repair it first")
    elif screening.ungraded_frac > LOST:
        reasons.append(
            f"{screening.ungraded_frac:.0%} of the answers could not be graded (no tests, or a useless gold answer)"
        )
    if screening.truncated_frac > CUT:
        reasons.append(
            f"{screening.truncated_frac:.0%} of the answers are cut at the length limit: raise data.max_response_length"
        )
    if context.ungraded_frac > LOST:
        reasons.append(f"{context.ungraded_frac:.0%} of the teacher's answers could not be graded")
    if not reasons and (context.gap is None or screening.student is None):
        reasons.append("none of the answers that were to be compared could be graded")
    if context.truncated_frac > CUT:
        cut = f"{context.truncated_frac:.0%} of the teacher's answers are cut at the length limit"
        reasons.append(f"{cut}: raise data.max_response_length")
    return reasons


def _signed(gap: Rate) -> str:
    return f"{gap.value:+.2f}" if gap.error is None else f"{gap.value:+.2f} ± {gap.error:.2f}"


def _no_signal(context: Context, screening: Screening, settings: SelfDistillationConfig) -> str:
    text = f"only {context.coverage:.0%} of the answers have a context to learn from: "
    solved = f"{screening.solved_group_frac:.0%} of the groups hold a success to show"
    if not settings.include_environment_feedback:
        return text + f"{solved}, and feedback is switched off (self_distillation.include_environment_feedback)"
    return text + f"{solved}, and the grader says nothing about failures; take easier problems or raise rollout.n"


def _no_better(gap: Rate, sure: bool) -> str:
    text = f"the teacher is {_signed(gap)} above the student: "
    if sure:
        return (
            text + "this model does not use what it is shown, and SDPO would pull it toward a teacher that is no better"
        )
    return text + "too few problems to tell; measure more (--problems)"


def _advice(screening: Screening, gap: Rate) -> list[str]:
    """What the other measurements say."""
    advice = []
    name, best = max(((c.name, c.gap) for c in screening.contexts if c.gap), key=lambda named: named[1].value)
    margin = SURE * math.hypot(best.spread, gap.spread)
    if best.value - gap.value > margin:
        advice.append(f"showing {name} would do better than the present settings: gap {best}")
    if screening.mixed_group_frac < RARE:
        mixed = f"{screening.mixed_group_frac:.0%} of the groups are mixed"
        advice.append(f"{mixed}: a reward alone (GRPO) has next to nothing to go by")
    elif gap.value <= 0:
        advice.append(f"{screening.mixed_group_frac:.0%} of the groups are mixed: GRPO can learn here")
    return advice
