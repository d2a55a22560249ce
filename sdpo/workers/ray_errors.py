"""What a call to another process raises here."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Sequence
from typing import Any

import ray

from sdpo.errors import ClusterError, SdpoError


def call_remote(worker: str, work: Callable[[], Any], ranks: Sequence[Any] = ()) -> Any:
    """Runs a remote call; an error of ours in a worker is raised here as itself, a dead worker as ClusterError.

    ranks: the actors that meet in collectives. The others of a dead one see a broken connection, perhaps before anybody
    misses it."""
    try:
        return work()
    except ray.exceptions.RayTaskError as error:
        if isinstance(error.cause, SdpoError | OSError):
            raise error.cause from error
        with contextlib.suppress(ray.exceptions.GetTimeoutError):
            call_remote(worker, lambda: ray.get([rank.ready.remote() for rank in ranks], timeout=10))
        raise
    except ray.exceptions.RayActorError as error:
        if isinstance(error.__cause__, SdpoError):
            raise error.__cause__ from error
        raise ClusterError(
            f"the {worker} process died ({_last_words(error)}); is there enough memory? Its output: "
            "trainer.worker_logs=true, or /tmp/ray/session_latest/logs"
        ) from error


def _last_words(error: ray.exceptions.RayActorError) -> str:
    """Ray's account of a death, without its table of ids."""
    lines = [line.strip() for line in str(error).splitlines() if line.strip()]
    telling = [line for line in lines if "exit" in line.lower() or "killed" in line.lower()]
    return (telling or lines or [type(error).__name__])[0].split(". ")[0]
