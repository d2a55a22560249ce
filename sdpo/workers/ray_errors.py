"""What a call to other processes raises here: who, on which machine, why, and what to do."""

from __future__ import annotations

import contextlib
import re
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import ray
from torch.distributed import DistError

from sdpo.errors import ClusterError, SdpoError, TransferError, first_line

LOGS = "its output: trainer.worker_logs=true, or /tmp/ray/session_latest/logs there"


class Members(NamedTuple):
    """Processes of a kind, in the order of their numbers."""

    name: str
    handles: Sequence[Any]
    addresses: Sequence[str] = ()  # of their machines


def call_remote(work: Callable[[], Any], *groups: Members) -> Any:
    """Runs a remote call of the groups; an error of ours in a worker is raised here as itself, a dead worker as
    ClusterError.

    The others of a dead one see a broken connection, perhaps before anybody misses it: so they are all asked then."""
    try:
        return work()
    except ray.exceptions.RayTaskError as error:
        cause = error.cause
        if isinstance(cause, SdpoError | OSError) and not isinstance(cause, TransferError):
            raise cause from error
        asked = [handle.ready.remote() for group in groups for handle in group.handles]
        with contextlib.suppress(ray.exceptions.GetTimeoutError):
            call_remote(lambda: ray.get(asked, timeout=10), *groups)
        if isinstance(cause, TransferError):
            raise cause from error
        if isinstance(cause, DistError) or "gloo" in str(cause):
            fix = "a rank that waits longer than actor_rollout_ref.nccl_timeout for the others counts as hung"
            who = _who(getattr(error, "_actor_id", None), groups)
            raise ClusterError(f"{who}: a collective failed ({first_line(cause)}); {fix}; {LOGS}") from error
        raise
    except ray.exceptions.RayActorError as error:
        if isinstance(error.__cause__, SdpoError):
            raise error.__cause__ from error
        raise ClusterError(_death(error, groups)) from error


def _death(error: ray.exceptions.RayActorError, groups: Sequence[Members]) -> str:
    text, who = str(error), _who(error.actor_id, groups)
    if error.actor_init_failed:
        return f"{who} did not start: {_last_line(text)}; {LOGS}"
    if re.search("node (has )?died|node failure|node was terminated", text):
        fix = "is that machine up, and reachable from the head node?"
        return f"{who} is lost: its machine does not answer any more; {fix}"
    if isinstance(error, ray.exceptions.ActorUnavailableError):
        return f"{who} cannot be reached ({_last_line(text)}); is the network between the machines up?"
    detail = re.search(r"exit detail: (.+?)(\.\s|$)", text)
    return f"{who} died ({detail[1] if detail else _last_line(text)}); was it killed, or is memory short there? {LOGS}"


def _who(actor_id: str | None, groups: Sequence[Members]) -> str:
    for group in groups:
        for number, handle in enumerate(group.handles):
            if handle._actor_id.hex() == actor_id:
                where = f" on {group.addresses[number]}" if group.addresses else ""
                return f"the {group.name} process {number}{where}"
    return f"a process ({' or '.join(group.name for group in groups)})"


def _last_line(text: str) -> str:
    """Of a traceback: what was raised."""
    return ([line.strip() for line in text.splitlines() if line.strip()] or ["no reason is known"])[-1]
