"""When SDPO is said to help, when not, and why."""

from __future__ import annotations

from dataclasses import replace

import pytest

from sdpo.config.schema import SelfDistillationConfig
from sdpo.screening.measure import Context, Rate, Screening
from sdpo.screening.verdict import expected_gain, judge

SETTINGS = SelfDistillationConfig()


def _context(name: str = "as configured", gap: float = 0.4, error: float = 0.03, coverage: float = 0.9) -> Context:
    return Context(name, coverage, Rate(0.2, error), Rate(0.2 + gap, error), Rate(gap, error), 80.0)


def _screening(*contexts: Context, **changes: float | Rate) -> Screening:
    found = Screening(64, 512, Rate(0.2, 0.02), 0.5, 0.4, 0.0, 0.0, 0.0, list(contexts or [_context()]))
    return replace(found, **changes)


def test_a_better_teacher_helps_and_the_gain_is_slope_times_gap():
    verdict = judge(_screening(), SETTINGS)
    assert verdict.helps is True
    assert verdict.gain == (pytest.approx(0.66 * 0.4), pytest.approx(1.49 * 0.4))


def test_the_gain_stays_between_accuracies_of_0_and_1():
    assert expected_gain(0.8, 0.3) == (pytest.approx(0.528), pytest.approx(0.7))
    assert expected_gain(-0.5, 0.1) == (pytest.approx(-0.1), pytest.approx(-0.1))


@pytest.mark.parametrize(
    ("screening", "helps", "why"),
    [
        (_screening(student=Rate(0.98, 0.01)), False, "no room"),
        (_screening(_context(coverage=0.01)), False, "only 1% of the answers have a context"),
        (_screening(_context(gap=-0.2)), False, "does not use what it is shown"),
        (_screening(_context(gap=0.05, error=0.04)), None, "too few problems"),
        (_screening(infra_error_frac=0.5, ungraded_frac=0.5), None, "grader failed on 50%"),
        (_screening(ungraded_frac=0.3), None, "could not be graded"),
        (_screening(student=None, ungraded_frac=1.0), None, "100% of the answers could not be graded"),
        (_screening(replace(_context(), gap=None, coverage=0.0)), None, "none of the answers that were to be compared"),
        (_screening(replace(_context(), gap=Rate(0.9, None))), None, "+0.90 above the student: too few problems"),
        (_screening(truncated_frac=0.8), None, "raise data.max_response_length"),
        (_screening(replace(_context(), truncated_frac=0.8)), None, "80% of the teacher's answers are cut"),
        (_screening(replace(_context(), ungraded_frac=0.3)), None, "30% of the teacher's answers could not be graded"),
    ],
)
def test_it_says_when_it_will_not_help_and_why(screening, helps, why):
    verdict = judge(screening, SETTINGS)
    assert verdict.helps is helps and any(why in reason for reason in verdict.reasons)


def test_without_a_sound_measurement_no_gain_is_predicted():
    assert judge(_screening(truncated_frac=0.8), SETTINGS).gain is None


def test_switched_off_feedback_is_named():
    settings = SelfDistillationConfig(include_environment_feedback=False)
    (reason, *_) = judge(_screening(_context(coverage=0.0)), settings).reasons
    assert "include_environment_feedback" in reason


def test_a_context_that_would_do_better_is_named_and_the_baseline_is_weighed():
    contexts = _context(gap=0.1), _context("both", gap=0.5)
    reasons = judge(_screening(*contexts, mixed_group_frac=0.01), SETTINGS).reasons
    assert any("showing both would do better" in reason for reason in reasons)
    assert any("GRPO" in reason and "next to nothing" in reason for reason in reasons)
    assert any("GRPO can learn here" in r for r in judge(_screening(_context(gap=-0.3)), SETTINGS).reasons)
