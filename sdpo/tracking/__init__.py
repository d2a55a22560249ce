"""Run folders, consoles, trackers and reports.

with RunLog(run_dir, config, resume_step) as run_log:
    timer = PhaseTimer(show=run_log.phase)
    run_log.begin(total_steps)
    for step in ...:
        with timer("rollout"):
            ...
        run_log.samples(step, groups, batch.reprompts)
        run_log.metrics(step, {...} | timer.step_metrics())  # once per step, before its checkpoint is saved
"""

from sdpo.tracking.run_log import RunLog
from sdpo.tracking.timing import PhaseTimer

__all__ = ["PhaseTimer", "RunLog"]
