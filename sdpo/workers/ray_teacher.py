"""A teacher in Ray processes: its ranks, and the way from a rank of the actor to them. Tensors go through Ray's object
store, which is memory that the processes of a machine share."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import ray
import torch

from sdpo.weights import gloo
from sdpo.workers.cores import use_cores_in_ray
from sdpo.workers.ray_errors import Members, call_remote
from sdpo.workers.ray_rank import RayRank
from sdpo.workers.teacher_server import TeacherServer


class TeacherRayWorker(RayRank):
    """One rank of the teacher."""

    def start(self, address: str) -> None:
        self._meet(address)
        send_tensors_as_arrays()
        use_cores_in_ray(self._config, self._device, "teacher")
        self._server = TeacherServer(self._config, self.rank, self.world_size, self._device)

    def serve(self, method: str, *arguments: Any) -> Any:
        return getattr(self._server, method)(*arguments)


class RayServers:
    """`handles`: of the TeacherRayWorkers in their order; `base`: of shared memory, "" where weights go over the
    network, with its time limit; `rank`, `world_size`: of the actor. See `Servers`.

    Ranks of the actor share the servers evenly. Where there are more servers than ranks, several go through the forward
    passes of one rank, because these are collectives, and the first of them answers."""

    def __init__(
        self, handles: list[ray.actor.ActorHandle], base: str, rank: int, world_size: int, limit: float = 0
    ) -> None:
        send_tensors_as_arrays()
        self._base, self._limit, self._all = base, limit, handles
        self._mine = [handles[number] for number in serving(rank, world_size, len(handles))]

    def open_transfer(self) -> str:
        return self._base or gloo.new_base(ray.util.get_node_ip_address(), len(self._all), self._limit)

    def ask(self, method: str, *arguments: Any) -> Callable[[], Any]:
        wait = self._call(self._mine if method == "score" else self._mine[:1], method, *arguments)
        return lambda: wait()[0]

    def tell(self, method: str, *arguments: Any) -> Callable[[], None]:
        return self._call(self._all, method, *arguments)

    def _call(self, handles: list[ray.actor.ActorHandle], method: str, *arguments: Any) -> Callable[[], Any]:
        answers = [handle.serve.remote(method, *arguments) for handle in handles]
        return lambda: self._wait(answers)

    def _wait(self, answers: list[ray.ObjectRef]) -> Any:
        return call_remote(lambda: ray.get(answers), Members("teacher", self._all))


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
