"""Which node of a cluster each process of a run goes to: numbers alone, no Ray."""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass
from typing import NamedTuple

from sdpo.config.schema import Config
from sdpo.teacher.remote import is_remote

Unit = dict[str, float]  # resources of one process


@dataclass(frozen=True, eq=False)
class Node:
    id: str
    address: str
    total: Unit
    free: Unit

    def __str__(self) -> str:
        kinds = [kind for kind in ("CPU", "GPU") if kind == "CPU" or self.total.get(kind)]
        return f"{self.address}: " + ", ".join(
            f"{self.free.get(kind, 0):g} of {self.total.get(kind, 0):g} {kind}s" for kind in kinds
        )


@dataclass(frozen=True)
class Wanted:
    """On GPUs an engine shares the device of the actor rank of its number: the actor's unit holds both."""

    nodes: int
    ranks: int  # of the actor on each
    teachers: int
    engines: int
    graders: int  # on each node with engines
    gpu: bool

    @classmethod
    def by(cls, config: Config, device: str) -> Wanted:
        trainer, settings = config.trainer, config.actor_rollout_ref
        teachers = (settings.ref.ranks or trainer.n_gpus_per_node) if is_remote(config) else 0
        sizes = trainer.nnodes, trainer.n_gpus_per_node, teachers, settings.rollout.replicas, config.grading.workers
        return cls(*sizes, device == "cuda")

    @property
    def actor(self) -> Unit:
        return {"CPU": 2, "GPU": 1} if self.gpu else {"CPU": 1}

    @property
    def teacher(self) -> Unit:
        return {"CPU": 1, "GPU": 1} if self.gpu else {"CPU": 1}

    def __str__(self) -> str:
        parts = [f"{self.ranks} x actor{_of(self.actor)} on each of {self.nodes} nodes"]
        parts += [f"{self.teachers} x teacher{_of(self.teacher)} on one node"] * bool(self.teachers)
        parts += [f"{self.engines} x engine (1 CPU)"] * (not self.gpu)
        return "; ".join([*parts, f"{self.graders} x grader (1 CPU) on each node with engines"])


def _of(unit: Unit) -> str:
    return f" ({' + '.join(f'{number:g} {kind}' for kind, number in unit.items())})"


class Layout(NamedTuple):
    """The node of every process, by its number."""

    driver: Node
    actors: list[Node]
    teachers: list[Node]
    engines: list[Node]
    graders: list[Node]

    def nodes(self) -> list[Node]:
        return [*self.actors, *self.teachers, *self.engines, *self.graders]

    def __str__(self) -> str:
        names = {"actors": "actor", "teachers": "teacher", "engines": "engine", "graders": "grader"}
        held: dict[str, list[str]] = {}
        for group, name in names.items():
            for number, node in enumerate(getattr(self, group)):
                held.setdefault(node.address, []).append(f"{name} {number}")
        return "; ".join(f"{address}: {', '.join(held[address])}" for address in sorted(held))


def layout_of(nodes: list[Node], wanted: Wanted) -> Layout | str:
    """Ranks of a node are neighbours; engines go where there are fewest processes, the first of `nodes` (the driver's)
    having one already. What has no room, in words, where something has none."""
    room = _Room(nodes)
    hosts = [node for node in nodes if room.holds(node, wanted.actor, wanted.ranks)][: wanted.nodes]
    if len(hosts) < wanted.nodes:
        return f"{wanted.ranks} actor ranks on each of {wanted.nodes} nodes"
    hosts.sort(key=lambda node: node.address)  # as verl numbers them
    actors = [host for host in hosts for _ in range(room.take(host, wanted.actor, wanted.ranks))]
    able = [node for node in nodes if room.holds(node, wanted.teacher, wanted.teachers)]
    if not able:
        return f"the teacher's {wanted.teachers} ranks on one node"
    beside = min(able, key=room.processes.__getitem__)
    teachers = [beside] * room.take(beside, wanted.teacher, wanted.teachers)
    engines = list(actors) if wanted.gpu else []
    while len(engines) < (len(actors) if wanted.gpu else wanted.engines):
        able = [node for node in nodes if room.holds(node, {"CPU": 1}, 1)]
        if not able:
            return f"engine {len(engines)}"
        node = min(able, key=room.processes.__getitem__)
        room.take(node, {"CPU": 1}, 1)
        engines.append(node)
    engines.sort(key=lambda node: node.address)
    graders = []
    for node in sorted(set(engines), key=nodes.index):
        if not room.holds(node, {"CPU": 1}, wanted.graders):
            return f"the graders of {node.address}"
        graders += [node] * room.take(node, {"CPU": 1}, wanted.graders)
    return Layout(nodes[0], actors, teachers, engines, graders)


class _Room:
    def __init__(self, nodes: list[Node]) -> None:
        self._free = {node: dict(node.free) for node in nodes}
        self.processes = Counter({node: int(node is nodes[0]) for node in nodes})

    def holds(self, node: Node, unit: Unit, count: int) -> bool:
        return all(self._free[node].get(kind, 0) >= number * count for kind, number in unit.items())

    def take(self, node: Node, unit: Unit, count: int) -> int:
        for kind, number in unit.items():
            self._free[node][kind] -= number * count
        self.processes[node] += count
        return count
