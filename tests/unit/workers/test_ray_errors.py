"""What is said when another process fails: which one, on which machine, why, and what to do."""

from __future__ import annotations

import pytest
import ray
from torch.distributed import DistNetworkError

from sdpo.errors import CheckpointError, ClusterError, TransferError
from sdpo.workers.ray_errors import Members, call_remote


class Id(str):
    def hex(self) -> str:
        return str(self)


class Handle:
    """Stands in for an actor."""

    def __init__(self, name: str) -> None:
        self._actor_id, self.ready = Id(name), self

    def remote(self) -> str:
        return str(self._actor_id)


ACTORS = Members("actor", [Handle("a0"), Handle("a1")], ["10.0.0.1", "10.0.0.2"])
ENGINES = Members("rollout", [Handle("e0")], ["10.0.0.3"])
TABLE = "The actor died unexpectedly before finishing this task.\n\tclass_name: X\n\tactor_id: a1\n\tip: 192.0.2.2\n"
KILLED = (
    f"{TABLE}The actor is dead because its worker process has died. Worker exit type: SYSTEM_ERROR Worker exit detail: "
)
LOST = f"{TABLE}The actor died because its node has died. Node Id: 12ab the actor's node was terminated unexpectedly"


def died(text: str, who: str = "a1", started: bool = True) -> ray.exceptions.RayActorError:
    error = ray.exceptions.ActorDiedError()
    error.actor_id, error.error_msg, error._actor_init_failed = who, text, not started
    return error


def raised(error: Exception, kind: type[Exception] = ClusterError) -> str:
    def work() -> None:
        raise error

    with pytest.raises(kind) as found:
        call_remote(work, ACTORS, ENGINES)
    assert "\n" not in str(found.value)
    return str(found.value)


@pytest.mark.parametrize(
    ("error", "said"),
    [
        (
            died(KILLED + "Worker exits with an exit code 137. There are"),
            "died (Worker exits with an exit code 137); was",
        ),
        (died(LOST), "is lost: its machine does not answer any more; is that machine up, and reachable"),
        (died("created:\n  Traceback\nRuntimeError: no route", started=False), "did not start: RuntimeError: no route"),
        (
            ray.exceptions.ActorUnavailableError("RpcError: connection reset", None),
            "cannot be reached (The actor None is unavailable: RpcError: connection reset. The task",
        ),
    ],
)
def test_a_death_names_process_and_machine_its_cause_and_what_to_do(error, said):
    error.actor_id = "a1"
    assert f"the actor process 1 on 10.0.0.2 {said}" in raised(error)
    error.actor_id = "nobody"
    assert f"a process (actor or rollout) {said}" in raised(error)


def task_error(cause: Exception) -> ray.exceptions.RayTaskError:
    return ray.exceptions.RayTaskError("update", "", cause)


@pytest.mark.parametrize(
    "cause", [RuntimeError("[gloo/pair.cc] closed"), DistNetworkError("timed out"), TransferError("weights stopped")]
)
def test_a_partner_of_a_dead_one_is_not_taken_for_the_cause(monkeypatch, cause):
    def get(asked, timeout):
        assert asked == ["a0", "a1", "e0"]
        raise died(KILLED, "e0")

    monkeypatch.setattr(ray, "get", get)
    assert raised(task_error(cause)).startswith("the rollout process 0 on 10.0.0.3 died")


def test_a_broken_collective_of_living_ranks_is_one_line_and_what_we_raise_ourselves_is_itself(monkeypatch):
    monkeypatch.setattr(ray, "get", lambda asked, timeout: None)
    said = raised(task_error(DistNetworkError("timed out")))
    assert "a collective failed (timed out)" in said and "nccl_timeout" in said
    assert raised(task_error(TransferError("weights stopped")), TransferError) == "weights stopped"
    assert raised(task_error(CheckpointError("no space")), CheckpointError) == "no space"
