"""What the processes of a worker group have in common: a number, and a process group where they compute together."""

from __future__ import annotations

import os
from datetime import timedelta

import psutil
import ray
import torch
import torch.distributed as dist
from verl.single_controller.base import Worker
from verl.single_controller.base.decorator import Dispatch, register

import sdpo.workers.cpu_platform  # noqa: F401  (before verl's single controller)
from sdpo.config.schema import Config
from sdpo.models.shard import BACKENDS


class RayRank(Worker):
    """Made light, so that all processes of a run come up at the same time; `start` builds what it is for."""

    def __init__(self, config: Config, device: str) -> None:
        super().__init__()
        self._config, self._device = config, device
        self._limit = timedelta(seconds=config.actor_rollout_ref.nccl_timeout)
        self._store: dist.TCPStore | None = None
        use_interface_of(ray.util.get_node_ip_address())

    def listen(self) -> str:
        """Where the others find this one, rank 0. The port is taken as it is found: no other process can have it."""
        host = ray.util.get_node_ip_address()
        self._store = dist.TCPStore(host, 0, is_master=True, wait_for_workers=False, timeout=self._limit)
        return f"{host}|{self._store.port}"

    @register(dispatch_mode=Dispatch.ONE_TO_ALL)
    def ready(self) -> bool:
        return True

    def _meet(self, address: str) -> None:
        """The process group of all ranks; "" where there is one alone."""
        if self._device == "cuda":
            torch.cuda.set_device(int(os.environ.get("LOCAL_RANK", "0")))
        if not address:
            return
        host, port = address.split("|")
        store = self._store or dist.TCPStore(host, int(port), is_master=False, timeout=self._limit)
        backend = BACKENDS[self._device]
        dist.init_process_group(backend, store=store, rank=self.rank, world_size=self.world_size, timeout=self._limit)


def use_interface_of(address: str) -> None:
    """The network interface that reaches the other nodes, for gloo and NCCL: by themselves they take what the host's
    name resolves to, often the loopback. What the user has set stays."""
    for name, addresses in psutil.net_if_addrs().items():
        if any(found.address == address for found in addresses):
            os.environ.setdefault("GLOO_SOCKET_IFNAME", name)
            os.environ.setdefault("NCCL_SOCKET_IFNAME", name)
