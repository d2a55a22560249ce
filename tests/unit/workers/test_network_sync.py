"""Weights go to engines over the network when these have time for it, however long they draw."""

from __future__ import annotations

import threading
from concurrent.futures import Future, ThreadPoolExecutor

import torch

from sdpo.config.schema import Config
from sdpo.weights import gloo
from sdpo.workers import ray_group
from sdpo.workers.ray_group import RayWorkers

LIMIT = 2.0  # seconds that the transfer may stand still


class Group:
    """Stands in for a worker group of one process, whose calls run on threads."""

    name_prefix, world_size = "group_", 1

    def __init__(self, worker: object, threads: ThreadPoolExecutor) -> None:
        self._worker, self._threads = worker, threads
        self.workers = [self]
        for name in dir(worker):
            if not name.startswith("_"):
                setattr(self, name, Method(getattr(worker, name), threads))

    def execute_all_async(self, name: str, *arguments: object) -> list[Future]:
        return [self._threads.submit(getattr(self._worker, name), *arguments)]


class Method:
    def __init__(self, method, threads: ThreadPoolExecutor) -> None:
        self._method, self._threads = method, threads

    def remote(self, *arguments: object) -> Future:
        return self._threads.submit(self._method, *arguments)

    def __call__(self, *arguments: object) -> list[object]:
        return [self._method(*arguments)]


class Actor:
    def open_transfer(self, receivers: int) -> str:
        return gloo.new_base("127.0.0.1", receivers, LIMIT)

    def publish(self, base: str) -> str:
        return gloo.send([{"weight": torch.ones(3)}], base, 5)


class Engine:
    """Draws from the beginning, as one does whose next step is drawn while the last one trains."""

    def __init__(self, seconds: float) -> None:
        self._drawing, self._taken = threading.Lock(), []
        self._drawing.acquire()
        threading.Timer(seconds, self._drawing.release).start()

    def drawn(self) -> None:
        with self._drawing:
            pass

    def load_weights(self, place: str, version: int) -> None:
        with self._drawing:
            self._taken += [tensor for group in gloo.receive(place, version) for tensor in group.values()]


def test_an_engine_may_draw_for_longer_than_a_transfer_may_stand_still(monkeypatch) -> None:
    def get(asked):
        return [future.result() for future in asked] if isinstance(asked, list) else asked.result()

    monkeypatch.setattr(ray_group.ray, "get", get)
    engine = Engine(LIMIT + 1)
    with ThreadPoolExecutor(4) as threads:
        workers = object.__new__(RayWorkers)
        workers.config, workers.policy_version, workers._base, workers._groups = Config(), 5, "", {}
        workers._actors, workers._rollouts = Group(Actor(), threads), Group(engine, threads)
        monkeypatch.setattr(RayWorkers, "_call", lambda self, work: work())
        workers.sync_weights()
    assert [tensor.tolist() for tensor in engine._taken] == [[1, 1, 1]]
