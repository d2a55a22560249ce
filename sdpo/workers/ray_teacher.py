"""A teacher in Ray processes: its ranks, and the way from a rank of the actor to them. Tensors go through Ray's object
store, which is memory that the processes of a machine share."""

from __future__ import annotations

import os
from collections.abc import Callable
from typing import Any

import numpy as np
import ray
import torch
import torch.distributed as dist
from verl.single_controller.base import Worker
from verl.single_controller.base.decorator import Dispatch, register

import sdpo.workers.cpu_platform  # noqa: F401  (before verl's single controller)
from sdpo.config.schema import Config
from sdpo.models.shard import BACKENDS
from sdpo.workers.cores import use_cores_in_ray
from sdpo.workers.ray_errors import call_remote
from sdpo.workers.teacher_server import TeacherServer


class TeacherRayWorker(Worker):
    """One rank of the teacher."""

    def __init__(self, config: Config, device: str) -> None:
        super().__init__()
        send_tensors_as_arrays()
        use_cores_in_ray(config, device, "teacher")
        if device == "cuda":
            torch.cuda.set_device(int(os.environ.get("LOCAL_RANK", "0")))
        if self.world_size > 1:
            dist.init_process_group(BACKENDS[device], rank=self.rank, world_size=self.world_size)
        self._server = TeacherServer(config, self.rank, self.world_size, device)

    @register(dispatch_mode=Dispatch.ONE_TO_ALL)
    def ready(self) -> bool:
        return True

    def serve(self, method: str, *arguments: Any) -> Any:
        return getattr(self._server, method)(*arguments)


class RayServers:
    """`handles`: of the TeacherRayWorkers in their order; `rank`, `world_size`: of the actor. See `Servers`.

    Ranks of the actor share the servers evenly. Where there are more servers than ranks, several go through the forward
    passes of one rank, because these are collectives, and the first of them answers."""

    def __init__(self, handles: list[ray.actor.ActorHandle], base: str, rank: int, world_size: int) -> None:
        send_tensors_as_arrays()
        self.base, self._all = base, handles
        self._mine = [handles[number] for number in serving(rank, world_size, len(handles))]

    def ask(self, method: str, *arguments: Any) -> Callable[[], Any]:
        wait = self._call(self._mine if method == "score" else self._mine[:1], method, *arguments)
        return lambda: wait()[0]

    def tell(self, method: str, *arguments: Any) -> Callable[[], None]:
        return self._call(self._all, method, *arguments)

    def _call(self, handles: list[ray.actor.ActorHandle], method: str, *arguments: Any) -> Callable[[], Any]:
        answers = [handle.serve.remote(method, *arguments) for handle in handles]
        return lambda: self._wait(answers)

    def _wait(self, answers: list[ray.ObjectRef]) -> Any:
        return call_remote("teacher", lambda: ray.get(answers), self._all)


def serving(rank: int, world_size: int, servers: int) -> list[int]:
    """The servers of one rank of the actor. One of the two numbers must divide the other."""
    return [number % servers for number in range(rank, max(servers, world_size), world_size)]


def send_tensors_as_arrays() -> None:
    """From this process. An array lies in the object store as it is; torch would pickle its tensors into a string."""
    ray.util.register_serializer(torch.Tensor, serializer=_array, deserializer=_tensor)


def _array(tensor: torch.Tensor) -> tuple[np.ndarray, torch.dtype, torch.Size]:
    """A copy: FSDP2 resizes the memory of gathered weights, which torch forbids once NumPy has seen it."""
    plain = torch.empty(tensor.shape, dtype=tensor.dtype).copy_(tensor)
    return plain.view(-1).view(torch.uint8).numpy(), plain.dtype, plain.shape


def _tensor(sent: tuple[np.ndarray, torch.dtype, torch.Size]) -> torch.Tensor:
    """A copy, so that the store has its memory back at once."""
    array, dtype, shape = sent
    tensor = torch.empty(shape, dtype=dtype)
    tensor.view(-1).view(torch.uint8).numpy()[:] = array
    return tensor
