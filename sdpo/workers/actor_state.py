"""The actor's part of a checkpoint: student, teacher, optimizer, place in the schedule, RNG, policy version, by
`torch.distributed.checkpoint` (sharded; loads into another number of ranks)."""

from __future__ import annotations

import os
import warnings
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any, Protocol

import torch
import torch.distributed.checkpoint as dcp
from torch.distributed.checkpoint.state_dict import (
    StateDictOptions,
    get_model_state_dict,
    get_optimizer_state_dict,
    set_model_state_dict,
    set_optimizer_state_dict,
)
from torch.optim import Optimizer

from sdpo.config.schema import Config
from sdpo.errors import CheckpointError, first_line
from sdpo.models.adapters import STUDENT, adapted, of_adapter
from sdpo.models.forward import PolicyModule
from sdpo.workers.checkpoint_reader import CheckpointReader, EntryPlanner
from sdpo.workers.schedule import Schedule

TEACHER = "teacher"  # its entries; and the folder of those of a teacher in processes of its own


class Saved(Protocol):
    """What a checkpoint holds of an actor rank."""

    config: Config
    student: PolicyModule
    teacher: Any  # or None
    optimizer: Optimizer
    schedule: Schedule
    policy_version: int
    rank: int
    world_size: int
    device: str


def save(actor: Saved, folder: str) -> None:
    """Writes every rank's shards to `folder`. Called on all ranks. Raises CheckpointError when one cannot."""
    write_state(_state(actor), folder, actor.world_size == 1)
    if actor.teacher is not None:
        actor.teacher.save(folder)


def write_state(state: dict[str, Any], folder: str, alone: bool) -> None:
    """alone: one process writes all of it."""
    try:
        with _quiet():
            dcp.save(state, checkpoint_id=folder, no_dist=alone)
    except (OSError, RuntimeError, dcp.api.CheckpointException) as error:
        raise CheckpointError(_reason(error)) from error


def read_state(state: dict[str, Any], folder: str, alone: bool) -> None:
    """Fills the tensors and replaces the other entries. Raises CheckpointError for a folder that cannot be read or
    belongs to another model."""
    try:
        with _quiet():
            reader, planner = CheckpointReader(folder), EntryPlanner()
            dcp.load(state, storage_reader=reader, planner=planner, no_dist=alone)
    except (OSError, KeyError, RuntimeError, ValueError, EOFError, dcp.api.CheckpointException) as error:
        raise CheckpointError(f"checkpoint {folder}: cannot be read into this run's model: {_reason(error)}") from error


def read_student(student: PolicyModule, folder: str) -> None:
    """The weights alone, or the adapter alone, into a module that is whole in this process."""
    state = {"student": _trained(student)}
    read_state(state, folder, alone=True)
    _set_trained(student, state["student"])


def teacher_in(folder: str) -> str:
    """Where the teacher's entries are: written by its own processes, or beside the actor's.

    Raises CheckpointError when there are none."""
    own = os.path.join(folder, TEACHER)
    found = own if os.path.isdir(own) else folder
    if not any(name.startswith(f"{TEACHER}.") for name in _names(found)):
        raise CheckpointError(
            f"checkpoint {folder}: holds no teacher; it was written by another algorithm or teacher kind"
        )
    return found


def load(actor: Saved, folder: str) -> None:
    """Restores what `save` wrote. Called on all ranks.

    Raises CheckpointError when the folder cannot be read or belongs to another model or algorithm.
    """
    present = _names(folder)
    state = _state(actor)
    rng_key = f"rng_{actor.rank}"
    if f"{rng_key}.cpu" not in present:  # resumed on another number of ranks: keep the fresh generator
        del state[rng_key]
    if "batches" not in present:
        raise CheckpointError(f"checkpoint {folder}: an earlier version wrote it, without the number of batches")
    alone, teacher = actor.world_size == 1, {}
    if TEACHER in state:
        teacher[TEACHER] = state.pop(TEACHER)
        read_state(teacher, teacher_in(folder), alone)
    read_state(state, folder, alone)
    if actor.teacher is not None:
        actor.teacher.load(folder)
    _set_trained(actor.student, state["student"])
    if teacher:
        actor.teacher.load_state(teacher[TEACHER])
    set_optimizer_state_dict(actor.student, actor.optimizer, state["optimizer"])
    _follow_settings(actor, state["batches"])
    actor.policy_version = state["policy_version"]
    if rng_key in state:
        torch.set_rng_state(state[rng_key]["cpu"])
        if "cuda" in state[rng_key]:
            torch.cuda.set_rng_state(state[rng_key]["cuda"])


def _follow_settings(actor: Saved, batches: int) -> None:
    """The moments and the place in the schedule are the checkpoint's; rates are what this run's settings say."""
    optim = actor.config.actor_rollout_ref.actor.optim
    for group in actor.optimizer.param_groups:
        group |= {"betas": tuple(optim.betas), "eps": optim.eps, "weight_decay": optim.weight_decay}
    actor.schedule.move_to(batches)


def _names(folder: str) -> set[str]:
    """What a checkpoint holds. Raises CheckpointError when its index is damaged."""
    try:
        return set(CheckpointReader(folder).read_metadata().state_dict_metadata)
    except Exception as error:  # the index is a pickle: damaged, it raises whatever its bytes happen to say
        raise CheckpointError(f"checkpoint {folder}: its index cannot be read ({first_line(error)})") from error


def _reason(error: BaseException) -> str:
    """The first rank's reason in one line: torch's own message names the ranks only. Raises what is no failure of the
    checkpoint: torch wraps Ctrl-C too."""
    if isinstance(error, dcp.api.CheckpointException) and error.failures:
        rank, (cause, _) = min(error.failures.items())
        if isinstance(cause, KeyboardInterrupt):
            raise cause
        return f"rank {rank}: {first_line(cause)}"
    return first_line(error)


@contextmanager
def _quiet() -> Iterator[None]:
    """One rank has no process group; torch says so every time."""
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", message="torch.distributed is disabled", category=UserWarning)
        yield


def _trained(student: PolicyModule) -> dict[str, Any]:
    """Of a student with an adapter that alone: the rest is the model that it started from."""
    state = get_model_state_dict(student)
    return {name: value for name, value in state.items() if of_adapter(name, STUDENT)} if adapted(student) else state


def _set_trained(student: PolicyModule, state: dict[str, Any]) -> None:
    set_model_state_dict(student, state, options=StateDictOptions(strict=not adapted(student)))


def _state(actor: Saved) -> dict[str, Any]:
    rng = {"cpu": torch.get_rng_state()}
    if actor.device == "cuda":
        rng["cuda"] = torch.cuda.get_rng_state()
    state = {
        "student": _trained(actor.student),
        "optimizer": get_optimizer_state_dict(actor.student, actor.optimizer),
        "batches": actor.schedule.batches,
        "policy_version": actor.policy_version,
        f"rng_{actor.rank}": rng,
    }
    if actor.teacher is not None and actor.teacher.module is not None:
        state[TEACHER] = actor.teacher.state()
    return state
