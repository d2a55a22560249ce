"""From test outcomes to a grade."""

from __future__ import annotations

from collections.abc import Sequence

from sdpo.records import UNGRADED, Grade, GradeStatus, TestOutcome

from .feedback import FeedbackOptions, describe_tests

# When tests failed for several reasons, the one the feedback speaks of.
SEVERITY = (
    GradeStatus.RUNTIME_ERROR,
    GradeStatus.TIMEOUT,
    GradeStatus.MEMORY_LIMIT,
    GradeStatus.OUTPUT_LIMIT,
    GradeStatus.WRONG,
)


def from_tests(outcomes: Sequence[TestOutcome], options: FeedbackOptions, flags: tuple[str, ...] = ()) -> Grade:
    """Reward 1 only if every test passes. No tests at all is a fault of the row, not a pass."""
    if not outcomes:
        return ungraded(GradeStatus.NO_TESTS)
    passed = sum(outcome.status is GradeStatus.OK for outcome in outcomes)
    statuses = {outcome.status for outcome in outcomes}
    status = next((kind for kind in SEVERITY if kind in statuses), GradeStatus.OK)
    return Grade(
        status,
        reward=1.0 if status is GradeStatus.OK else 0.0,
        passed_fraction=passed / len(outcomes),
        feedback=describe_tests(outcomes, options),
        tests=tuple(outcomes),
        flags=flags,
    )


def passed(flags: tuple[str, ...] = ()) -> Grade:
    return Grade(GradeStatus.OK, 1.0, 1.0, flags=flags)


def failed(status: GradeStatus, feedback: str = "", flags: tuple[str, ...] = ()) -> Grade:
    """A graded answer without credit."""
    return Grade(status, 0.0, 0.0, feedback, flags=flags)


def ungraded(status: GradeStatus, reason: str = "") -> Grade:
    """The row or the grader failed: no reward, and no feedback for the teacher. The reason travels as a flag."""
    assert status in UNGRADED
    return Grade(status, None, flags=(reason,) if reason else ())
