from __future__ import annotations

import pytest

from sdpo.tracking.timing import PhaseTimer, tokens_per_s


class Clock:
    now = 100.0

    def __call__(self) -> float:
        return self.now


def test_phases_add_up_and_a_step_holds_the_time_between_them():
    clock = Clock()
    timer = PhaseTimer(clock=clock)
    for seconds in (2.0, 3.0):
        with timer("rollout"):
            clock.now += seconds
        clock.now += 0.5
    assert timer.step_metrics() == pytest.approx({"timing/rollout_s": 5.0, "timing/step_s": 6.0})


def test_the_next_step_starts_at_zero():
    clock = Clock()
    timer = PhaseTimer(clock=clock)
    with timer("update"):
        clock.now += 2
    timer.step_metrics()
    clock.now += 1
    assert timer.step_metrics() == pytest.approx({"timing/step_s": 1.0})


def test_a_step_with_a_validation_is_as_fast_as_one_without():
    step = {"timing/rollout_s": 3.0, "timing/update_s": 1.5, "timing/sync_s": 0.5, "timing/step_s": 5.1}
    assert tokens_per_s(1000, step) == 200.0
    aside = {"timing/validate_s": 20.0, "timing/export_s": 5.0, "timing/checkpoint_s": 9.0, "timing/step_s": 39.1}
    assert tokens_per_s(1000, step | aside) == 200.0


def test_a_phase_that_fails_is_still_counted_and_shown():
    clock, shown = Clock(), []
    timer = PhaseTimer(show=shown.append, clock=clock)
    with pytest.raises(RuntimeError), timer("sync"):
        clock.now += 4
        raise RuntimeError
    assert shown == ["sync"]
    assert timer.step_metrics()["timing/sync_s"] == pytest.approx(4.0)
