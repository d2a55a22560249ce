"""The folder of one run: one process at a time, never two runs mixed in it, and what a resumed run may change.

Standard library and configuration only: a finished run is answered before torch is loaded.
"""

from __future__ import annotations

import fcntl
import os
import shutil
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from sdpo.config import fields
from sdpo.config.files import READ
from sdpo.config.schema import Config
from sdpo.errors import CheckpointError, ConfigError, problem
from sdpo.tracking.history import (
    BEST_FILE,
    CONFIG_FILE,
    DROPPED_FILE,
    METRICS_FILE,
    MODEL_BEST,
    REPORT_FILE,
    SAMPLES_FILE,
    STATE_FILE,
    TOKENS_FILE,
    read_json,
)
from sdpo.training import checkpoint

CHECKPOINTS, MODEL = "checkpoints", "model"
LOCK = ".lock"
# What a run leaves; anything else in the folder is the user's.
LEFT_BY_A_RUN = (
    METRICS_FILE, SAMPLES_FILE, TOKENS_FILE, DROPPED_FILE, CONFIG_FILE, STATE_FILE, REPORT_FILE, CHECKPOINTS, MODEL,
    MODEL_BEST, "tensorboard",
)  # fmt: skip
EARLIER = "earlier"  # earlier/1, earlier/2, ...: what was in the folder when a new run began in it
_ACTOR = "actor_rollout_ref.actor"
# A checkpoint's weights, moments and teacher mean something only with these.
FIXED = (
    "actor_rollout_ref.model.path",
    "actor_rollout_ref.model.override_config",
    "actor_rollout_ref.model.lora_rank",
    "actor_rollout_ref.model.lora_alpha",
    "actor_rollout_ref.model.lora_adapter_path",
    "actor_rollout_ref.model.target_modules",
    "actor_rollout_ref.model.use_rslora",
    "actor_rollout_ref.model.use_dora",
    f"{_ACTOR}.self_distillation.teacher_lora_rank",
    f"{_ACTOR}.policy_loss.loss_mode",
    f"{_ACTOR}.self_distillation.teacher_regularization",
)
# How long, how often and under what name: nobody needs to be told of these.
_UNREMARKABLE = ("trainer.", "vars", "cluster", "grading.workers", "grading.concurrency")


def checkpoints_of(config: Config) -> Path:
    return Path(config.trainer.default_local_dir) / CHECKPOINTS


@contextmanager
def locked(run_dir: Path) -> Iterator[None]:
    """Makes the folder and holds it until the block, or the process, ends. Raises ConfigError when it cannot be written
    or another run is using it."""
    field = "trainer.default_local_dir"
    try:
        run_dir.mkdir(parents=True, exist_ok=True)
        lock = (run_dir / LOCK).open("w")
    except OSError as error:
        raise ConfigError(problem(field, str(run_dir), "a folder that can be written", error.strerror)) from error
    with lock:
        try:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError as error:
            fix = "wait for it, or set trainer.experiment_name"
            raise ConfigError(problem(field, str(run_dir), "a folder that no other run is using", fix)) from error
        except OSError as error:  # two runs in one folder would not notice each other
            fix = f"flock: {error.strerror}; some network file systems are mounted without it"
            raise ConfigError(problem(field, str(run_dir), "a folder on a file system with file locks", fix)) from error
        yield


def find_resume(config: Config) -> Path | None:
    """The checkpoint to start from, or None for a fresh run. Raises CheckpointError when the named one is unusable."""
    trainer = config.trainer
    if trainer.resume_mode == "disable":
        return None
    if trainer.resume_mode == "resume_path":
        assert trainer.resume_from_path is not None  # `config.files` has looked
        folder = Path(trainer.resume_from_path)
        checkpoint.read_state(folder)
        return folder
    return checkpoint.latest(checkpoints_of(config))


def is_complete(config: Config, total_steps: int) -> bool:
    """Whether nothing is left to do; says so and how to go on. Raises CheckpointError when the settings do not fit the
    newest checkpoint."""
    resume = None if config.trainer.val_only else find_resume(config)
    if resume is None:
        return False
    state, run_dir = checkpoint.read_state(resume), Path(config.trainer.default_local_dir)
    step = state.step
    if step < total_steps or state.unvalidated or (config.trainer.export_hf and not (run_dir / MODEL).is_dir()):
        return False
    changes(config, resume)
    print(
        f"{run_dir} is complete: it is at step {step}, trainer.total_training_steps is {total_steps}. To go on, raise "
        "that; to start over, set trainer.resume_mode=disable or another trainer.experiment_name."
    )
    return True


def way_on(config: Config, done: int) -> str:
    """What becomes of a run that is stopped after `done` steps, when the same command is given again."""
    trainer = config.trainer
    if trainer.val_only:
        return "the same command validates again"
    newest = checkpoint.latest(checkpoints_of(config))
    kept = checkpoint.number(newest) if newest else 0
    lost = "" if kept >= done else f"step{'' if kept + 1 == done else f's {kept + 1} to'} {done} not kept"
    if lost and trainer.save_freq == 0:
        lost += " (trainer.save_freq=0)"
    if not kept:
        way = "the same command starts from the beginning"
    elif trainer.resume_mode == "auto":
        way = f"the same command goes on after step {kept}"
    else:
        way = f"with trainer.resume_mode=auto the same command goes on after step {kept}"
    return "; ".join(filter(None, [lost, way]))


def way_out(folder: Path) -> str:
    """What to do about a checkpoint that cannot be used."""
    older = [path for path in checkpoint.complete(folder.parent) if path != folder]
    if older:
        return f"delete {folder} to resume from {older[-1].name}, or start over with trainer.resume_mode=disable"
    return "start over with trainer.resume_mode=disable"


def check_contents(config: Config) -> None:
    """Raises ConfigError when the coming run would move things that are not a run's, or that it needs itself."""
    run_dir = Path(config.trainer.default_local_dir)
    found = [name for name in LEFT_BY_A_RUN if (run_dir / name).exists()]
    if found and not (run_dir / STATE_FILE).is_file() and not checkpoint.complete(run_dir / CHECKPOINTS):
        fix = f"{', '.join(found)} there are no run's: name another folder"
        raise ConfigError(problem("trainer.default_local_dir", str(run_dir), "a new folder, or a run's", fix))
    moved = [(run_dir / name).resolve() for name in found]
    for key in () if config.trainer.val_only else READ:
        path = fields.get(config, key)
        if path and Path(path).exists() and any(map(Path(path).resolve().is_relative_to, moved)):
            fix = "set another trainer.experiment_name"
            raise ConfigError(problem(key, path, "a place outside of the run's folder", fix))


def put_aside(run_dir: Path, resume: Path | None) -> Path | None:
    """Moves what does not belong to the coming run to `earlier/N`; returns that folder, or None when nothing had to go.

    A fresh run, or one that starts from another folder's checkpoint, keeps nothing. A run that goes back to an older
    checkpoint of its own moves the newer ones, which a later resume would take, and leaves a copy of the whole log.
    """
    copies: list[Path] = []
    if resume is not None and resume.resolve().parent == (run_dir / CHECKPOINTS).resolve():
        state, best = checkpoint.read_state(resume), run_dir / MODEL_BEST
        going = [p for p in checkpoint.complete(resume.parent) if checkpoint.number(p) > state.step]
        if going:
            copies = [p for name in LEFT_BY_A_RUN if (p := run_dir / name).is_file()]
            going += [p for p in (run_dir / MODEL,) if p.exists()]
            going += [best] if best.exists() and read_json(best / BEST_FILE) != state.best else []
    else:
        going = [p for name in LEFT_BY_A_RUN if (p := run_dir / name).exists()]
    if not going:
        return None
    try:
        target = numbered(run_dir / EARLIER)
        for path in copies:
            shutil.copy2(path, target / path.name)
        for path in going:
            new = target / (f"{CHECKPOINTS}/{path.name}" if path.parent.name == CHECKPOINTS else path.name)
            new.parent.mkdir(exist_ok=True)
            os.replace(path, new)
    except OSError as error:
        text = problem("trainer.default_local_dir", str(run_dir), "a folder that can be written", error.strerror)
        raise ConfigError(text) from error
    return target


def numbered(folder: Path) -> Path:
    """Makes `folder/1`, or the next number."""
    taken = [int(p.name) for p in folder.glob("*") if p.name.isdecimal()]
    target = folder / str(max(taken, default=0) + 1)
    target.mkdir(parents=True)
    return target


def changes(config: Config, resume: Path) -> list[str]:
    """`key: old -> new` of every setting that differs from those the checkpoint was written with and that matters to
    the training. Raises CheckpointError for one that its weights do not survive."""
    saved = resume / checkpoint.CONFIG
    if not saved.is_file() or not saved.stat().st_size:
        return []
    from sdpo.config.compose import from_yaml

    try:
        before = from_yaml(saved)
    except ConfigError as error:
        return [f"{saved} does not fit this version's settings ({error}); they were not compared"]
    found = []
    for key in fields.by_key():
        old, new = fields.get(before, key), fields.get(config, key)
        if old == new:
            continue
        if key in FIXED:
            fix = f"{key} was {_short(old)} in {resume}; start a new run with another trainer.experiment_name"
            raise CheckpointError(problem(key, new, f"{_short(old)}, to resume", fix))
        if not key.startswith(_UNREMARKABLE):
            found.append(f"{key}: {_short(old)} -> {_short(new)}")
    return found


def _short(value: Any) -> str:
    text = "null" if value is None else str(value)
    return text if len(text) <= 80 else f"{text[:77]}..."
