"""A run read back from Weights & Biases instead of from its folder."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from sdpo.errors import DataError, problem
from sdpo.tracking.history import RunHistory
from sdpo.tracking.trackers import STEP_AXIS


def load_history(path: str) -> RunHistory:
    """`path` is ENTITY/PROJECT/RUN_ID, as in the run's address. Reads every logged point (not W&B's sampled history).

    Raises DataError when the run cannot be read: not logged in, no such run, no network.
    """
    import requests
    import wandb

    try:
        run = wandb.Api().run(path)
        rows = list(run.scan_history())
        config, state, name = dict(run.config), run.state, run.name
    except (wandb.Error, requests.RequestException, ValueError) as error:
        allowed = "ENTITY/PROJECT/RUN_ID of a run you may read"
        raise DataError(problem("wandb run", path, allowed, " ".join(str(error).split()))) from error
    return history_of(path, rows, config, {"status": state, "name": name})


def history_of(path: str, rows: list[Mapping[str, Any]], config: dict[str, Any], state: dict[str, Any]) -> RunHistory:
    """W&B's rows by our own step axis; a step that was logged twice (after a resume) keeps the newer values."""
    by_step: dict[int, dict[str, Any]] = {}
    for row in rows:
        step = row.get(STEP_AXIS)
        if isinstance(step, int | float):
            known = {k: v for k, v in row.items() if v is not None and not k.startswith("_") and k != STEP_AXIS}
            by_step.setdefault(int(step), {"step": int(step), "time": row.get("_timestamp")}).update(known)
    return RunHistory(Path(path.rpartition("/")[2]), [by_step[step] for step in sorted(by_step)], state, config)
