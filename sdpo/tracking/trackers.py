"""Experiment trackers (W&B, Trackio, TensorBoard, MLflow, SwanLab, ...) through verl's `Tracking`.

A tracker is a guest: it may fail or hang, and neither stops the training. All calls run in one thread of their own,
each tracker apart from the others. Points carry their own axis, `train/step`: W&B's internal step only ever grows, so
after a resume from an older step it would throw away every point below the last one it saw.
"""

from __future__ import annotations

import contextlib
import io
import logging
import math
import os
import queue
import threading
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

log = logging.getLogger("sdpo.tracking")

STEP_AXIS = "train/step"
START_TIMEOUT_S = 120.0
FINISH_TIMEOUT_S = 60.0
# W&B writes about every 15 s; a process killed in between takes the points since then with it.
LOST_IN_A_CRASH_S = 60.0
_OWN_STEPS = frozenset({"wandb", "vemlp_wandb"})  # count their own steps; see above
# Always on in this package; verl's versions would print twice, or lose the file on resume.
BUILT_IN = frozenset({"console", "file"})


@dataclass(frozen=True)
class RunIdentity:
    """Which run the points belong to. `run_id` stays the same when a run is resumed."""

    run_dir: Path
    project: str
    name: str
    group: str | None
    run_id: str
    resume_step: int | None  # None: a new run


@dataclass(frozen=True)
class _Job:
    step: int
    metrics: dict[str, Any]
    again: bool


class Trackers:
    """Sends metrics to the trackers in `backends`; names in BUILT_IN are ignored.

    Made once, by the controller. The constructor waits until the trackers have started, at most `START_TIMEOUT_S`.
    """

    def __init__(self, identity: RunIdentity, backends: list[str], config: dict[str, Any]) -> None:
        self._identity = identity
        self._config = config
        self._backends = [name for name in dict.fromkeys(backends) if name not in BUILT_IN]
        self._warned: set[str] = set()
        self._running: dict[str, Any] = {}
        self._jobs: queue.SimpleQueue[_Job | int] = queue.SimpleQueue()
        self._thread: threading.Thread | None = None
        if not self._backends:
            return
        # Imported here and not in the thread: two threads that import torch at once can meet half-made modules.
        from verl.utils.tracking import Tracking

        self._tracking_class = Tracking
        started = threading.Event()
        self._thread = threading.Thread(target=self._run, args=(started,), name="trackers", daemon=True)
        with _quiet():
            self._thread.start()
            in_time = started.wait(START_TIMEOUT_S)
        if not in_time:
            log.warning("trackers %s have not started after %.0f s; training goes on", self._backends, START_TIMEOUT_S)

    def log(self, step: int, metrics: Mapping[str, float | int | None], again: bool = False) -> None:
        """Queues one step. Values that are not finite are left out: a tracker draws a gap.

        `again`: the step may have been sent before a crash; only trackers that could have lost it get it.
        """
        if self._thread is None:
            return
        finite = {name: value for name, value in metrics.items() if value is not None and math.isfinite(value)}
        self._jobs.put(_Job(step, {**finite, STEP_AXIS: step}, again))

    def where(self) -> list[str]:
        """One line per running tracker: where a person finds the run."""
        return [line for name in list(self._running) if (line := _location(name, self._identity))]

    def close(self, exit_code: int = 0) -> None:
        """Sends what is queued and ends the trackers' runs; gives up after `FINISH_TIMEOUT_S`. Safe to call twice."""
        if self._thread is None:
            return
        self._jobs.put(exit_code)
        with _quiet():
            self._thread.join(FINISH_TIMEOUT_S)
        if self._thread.is_alive():
            log.warning("trackers did not finish within %.0f s; the run folder is complete", FINISH_TIMEOUT_S)
        self._thread = None

    def _run(self, started: threading.Event) -> None:
        for name in self._backends:
            with self._guest(name):
                self._running[name] = _start(self._tracking_class, name, self._identity, self._config)
        started.set()
        while not isinstance(job := self._jobs.get(), int):
            for name, tracking in self._running.items():
                if job.again and name not in _OWN_STEPS:
                    continue
                with self._guest(name):
                    tracking.log(job.metrics, step=None if name in _OWN_STEPS else job.step)
                    if name == "tensorboard":
                        tracking.logger[name].writer.flush()  # by itself it waits two minutes
        for name, tracking in self._running.items():
            with self._guest(name):
                tracking.finish(exit_code=job)

    @contextlib.contextmanager
    def _guest(self, name: str) -> Iterator[None]:
        try:
            yield
        except Exception as error:  # whatever a third party's client raises: it must not end the training
            if name not in self._warned:
                self._warned.add(name)
                log.warning(
                    "tracker %s failed (%s: %s); training goes on, metrics.jsonl has every step, later failures of it "
                    "are not shown", name, type(error).__name__, error,
                )  # fmt: skip


def _start(tracking_class: Any, name: str, identity: RunIdentity, config: dict[str, Any]) -> Any:
    with _environment(_settings(name, identity)):
        if name == "wandb" and not _wandb_can_upload():
            os.environ["WANDB_MODE"] = "offline"
            log.warning(
                "wandb is not logged in: recording offline, `wandb sync` uploads it later (or run `wandb login`)"
            )
        if name == "trackio":
            import trackio

            # verl joins a run that is already open, and by itself could not resume one.
            trackio.init(
                project=identity.project,
                name=f"{identity.name}-{identity.run_id}",
                group=identity.group,
                config=config,
                resume="never" if identity.resume_step is None else "allow",
                embed=False,
            )
        tracking = tracking_class(identity.project, identity.name, [name], config)
    if name == "wandb":
        import wandb

        wandb.define_metric(STEP_AXIS)
        wandb.define_metric("*", step_metric=STEP_AXIS)
    if name == "tensorboard" and identity.resume_step is not None:
        _purge_tensorboard(tracking.logger[name].writer, identity.resume_step + 1)
    return tracking


def _wandb_can_upload() -> bool:
    """False where wandb would stop and ask for a key, which nobody may be there to answer."""
    if os.environ.get("WANDB_MODE", "online") != "online":
        return True
    import wandb

    if wandb.login(prompt=False):
        return True
    wandb.teardown()  # it has read WANDB_MODE by now, and would not look again
    return False


def _purge_tensorboard(writer: Any, first_step: int) -> None:
    """Tells TensorBoard to forget points of the broken-off run from `first_step` on."""
    from tensorboard.compat.proto.event_pb2 import Event, SessionLog

    writer.file_writer.add_event(Event(session_log=SessionLog(status=SessionLog.START)), step=first_step)
    writer.flush()


def _settings(name: str, identity: RunIdentity) -> dict[str, str]:
    """What a tracker reads from the environment; a person's own setting wins except for the run's identity."""
    if name == "wandb":
        settings = {
            "WANDB_DIR": os.environ.get("WANDB_DIR", str(identity.run_dir)),
            "WANDB_CONSOLE": os.environ.get("WANDB_CONSOLE", "off"),  # it would record the progress bar
            "WANDB_SILENT": os.environ.get("WANDB_SILENT", "true"),
            "WANDB_MODE": os.environ.get("WANDB_MODE", "online"),
            "WANDB_RUN_ID": identity.run_id,
            "WANDB_RESUME": "allow",
        }
        return settings | ({"WANDB_RUN_GROUP": identity.group} if identity.group else {})
    if name == "tensorboard":
        return {"TENSORBOARD_DIR": os.environ.get("TENSORBOARD_DIR", str(identity.run_dir / "tensorboard"))}
    return {}


def _location(name: str, identity: RunIdentity) -> str:
    if name == "wandb":
        import wandb

        run = wandb.run
        if run is None:
            return ""
        return f"wandb        {run.url or f'wandb sync {Path(run.dir).parent}'}"
    if name == "tensorboard":
        return f"tensorboard  tensorboard --logdir {_settings(name, identity)['TENSORBOARD_DIR']}"
    if name == "trackio":
        return f'trackio      trackio show --project "{identity.project}"'
    return ""


@contextlib.contextmanager
def _environment(settings: dict[str, str]) -> Iterator[None]:
    before = {name: os.environ.get(name) for name in settings}
    os.environ.update(settings)
    try:
        yield
    finally:
        for name, value in before.items():
            if value is None:
                os.environ.pop(name, None)
            else:
                os.environ[name] = value


@contextlib.contextmanager
def _quiet() -> Iterator[None]:
    """Clients greet and take leave in many lines; `Trackers.where` says what matters in one. Used by the waiting
    thread, so that a tracker that hangs cannot keep the output; warnings go to stderr and stay."""
    with contextlib.redirect_stdout(io.StringIO()):
        yield
