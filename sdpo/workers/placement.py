"""Where the processes go: nodes are chosen before a process is started, so that what has no room is refused with the
numbers instead of waiting for ever."""

from __future__ import annotations

import os
import time
import warnings
from itertools import groupby

import ray
from ray._private.state import available_resources_per_node
from ray.util.placement_group import PlacementGroup, placement_group, remove_placement_group
from ray.util.scheduling_strategies import PlacementGroupSchedulingStrategy
from verl.single_controller.ray import RayResourcePool

import sdpo.workers.cpu_platform  # noqa: F401  (before verl's single controller)
from sdpo.config.environment import ENVIRONMENT
from sdpo.config.schema import Config
from sdpo.errors import ClusterError, problem
from sdpo.interrupt import raise_on_signals
from sdpo.workers.layout import Layout, Node, Unit, Wanted, layout_of

PASSED_ON = ("OMP_NUM_THREADS", "HF_HUB_OFFLINE", "HF_HOME", "HF_TOKEN", "GLOO_", "NCCL_", "FI_")  # names, beginnings
ROOM_S = 60.0  # for resources that others may give back
MORE_ROOM = (
    "Start Ray with more (ray start --num-cpus), or lower trainer.nnodes, trainer.n_gpus_per_node, "
    "actor_rollout_ref.rollout.replicas or grading.workers"
)


TO_JOIN = (  # Ray says the same of a cluster that is not there and of one that refuses the token
    "is it up, and does this process have its token: RAY_AUTH_MODE=token and one RAY_AUTH_TOKEN_PATH for all machines, "
    "or RAY_AUTH_MODE=disabled on all?"
)


def worker_env() -> dict[str, str]:
    """Environment of every Ray worker, on whichever machine: the user's values where there are some."""
    common = {key: os.environ.get(key, value) for key, value in ENVIRONMENT.items()}
    return common | {key: value for key, value in os.environ.items() if key.startswith(PASSED_ON)}


def start_ray(config: Config) -> None:
    """Joins the cluster that RAY_ADDRESS names, or starts one on this machine with as many slots as the run needs.

    Raises ClusterError when Ray does not come up.
    """
    options: dict = {"log_to_driver": config.trainer.worker_logs, "logging_level": "ERROR", "include_dashboard": False}
    if "RAY_ADDRESS" not in os.environ:
        settings = config.actor_rollout_ref
        ranks = config.trainer.n_gpus_per_node
        slots = 2 * ranks + settings.rollout.replicas + config.grading.workers + (settings.ref.ranks or ranks) + 4
        options |= {
            "address": "local",  # never another job's cluster that happens to run here
            "num_cpus": max(slots, os.cpu_count() or 1),
            "_node_ip_address": "127.0.0.1",
            # Idle workers that Ray makes in advance cost seconds of both cores at every start; none is ever used.
            "_system_config": {"prestart_worker_first_driver": False},
        }
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", FutureWarning)
            ray.init(**options)
    except Exception as error:  # Ray raises bare Exception for a node that does not start
        where = os.environ.get("RAY_ADDRESS", "on this machine")
        reason = " ".join(str(error).split())
        fix = TO_JOIN if "RAY_ADDRESS" in os.environ else "or run in one process: cluster=inline"
        raise ClusterError(f"Ray ({where}) did not start: {reason}; {fix}") from error
    raise_on_signals()  # Ray has put its own handler there


def find_places(config: Config, device: str) -> Layout:
    """A node for every process, the driver's first. Raises ClusterError when the cluster is too small for them, or has
    no room for a minute."""
    wanted, end = Wanted.by(config, device), time.monotonic() + ROOM_S
    while True:
        nodes = _nodes()
        if device == "cpu" and config.trainer.device == "auto" and any(node.total.get("GPU") for node in nodes):
            fix = "this machine has no GPU, the cluster has"
            raise ClusterError(problem("trainer.device", "auto", "cuda or cpu in such a cluster", fix))
        found = layout_of(nodes, wanted)
        if isinstance(found, Layout):
            return found
        empty = [Node(node.id, node.address, node.total, node.total) for node in nodes]
        too_small = isinstance(layout_of(empty, wanted), str)
        joining = len(nodes) < wanted.nodes
        if time.monotonic() > end or too_small and not joining:
            why = "the cluster is too small" if too_small else f"others have kept it for {ROOM_S:g} s"
            table = "; ".join(map(str, nodes))
            raise ClusterError(f"no room for {found}: {why}. Wanted: {wanted}. Free: {table}. {MORE_ROOM}")
        time.sleep(1.0)


def _nodes() -> list[Node]:
    free, here = available_resources_per_node(), ray.get_runtime_context().get_node_id()
    alive = [node for node in ray.nodes() if node["Alive"]]
    alive.sort(key=lambda node: (node["NodeID"] != here, node["NodeManagerAddress"]))
    return [Node(n["NodeID"], n["NodeManagerAddress"], n["Resources"], free.get(n["NodeID"], {})) for n in alive]


def reserve(nodes: list[Node], unit: Unit) -> list[PlacementGroup]:
    """Room for a process on each of the nodes: a placement group for those of one node."""
    groups = []
    for node_id, own in groupby(nodes, key=lambda node: node.id):
        bundles = [dict(unit) for _ in own]
        groups.append(placement_group(bundles, bundle_label_selector=[{"ray.io/node-id": node_id}] * len(bundles)))
    if not all(group.wait(ROOM_S) for group in groups):
        for group in groups:
            remove_placement_group(group)
        table = "; ".join(map(str, _nodes()))
        raise ClusterError(f"no room for {len(nodes)} processes of {unit} within {ROOM_S:g} s. Free: {table}")
    return groups


def pool(nodes: list[Node], unit: Unit, apart: bool = False) -> RayResourcePool:
    """For a worker group of equally many processes on each node, or, apart, of any number. On GPUs actor and engine
    share a device, each with half of it."""
    groups = [group for node in nodes for group in reserve([node], unit)] if apart else reserve(nodes, unit)
    sizes = [group.bundle_count for group in groups]
    made = RayResourcePool(sizes, use_gpu="GPU" in unit, max_colocate_count=int(unit["CPU"]))
    made.pgs = groups
    return made


def inside(group: PlacementGroup, bundle: int = 0) -> PlacementGroupSchedulingStrategy:
    return PlacementGroupSchedulingStrategy(group, placement_group_bundle_index=bundle)
