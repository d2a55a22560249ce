"""Where the processes go: one resource pool for training ranks and one for rollout engines, colocated on GPUs."""

from __future__ import annotations

import os
import warnings

import ray
from verl.single_controller.ray import RayResourcePool

import sdpo.workers.cpu_platform  # noqa: F401  (before verl's single controller)
from sdpo.config.environment import ENVIRONMENT
from sdpo.config.schema import Config
from sdpo.errors import ClusterError, problem
from sdpo.interrupt import raise_on_signals

PASSED_ON = ("OMP_NUM_THREADS", "HF_HUB_OFFLINE", "HF_HOME")


def worker_env() -> dict[str, str]:
    """Environment of every Ray worker: the user's values where there are some."""
    common = {key: os.environ.get(key, value) for key, value in ENVIRONMENT.items()}
    return common | {key: os.environ[key] for key in PASSED_ON if key in os.environ}


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
        raise ClusterError(f"Ray ({where}) did not start: {reason}; or run in one process: cluster=inline") from error
    raise_on_signals()  # Ray has put its own handler there


def training_pool(config: Config, device: str) -> RayResourcePool:
    """One process per training rank; on GPUs each shares its device with the rollout engine of the same index."""
    trainer = config.trainer
    return RayResourcePool(
        [trainer.n_gpus_per_node] * trainer.nnodes,
        use_gpu=device == "cuda",
        max_colocate_count=2 if device == "cuda" else 1,
    )


def teacher_pool(config: Config, device: str) -> RayResourcePool:
    """One process per rank of a teacher with `ref.placement=remote`, on GPUs of its own.

    Raises ClusterError when there are fewer: Ray would wait for them without a word."""
    ranks = config.actor_rollout_ref.ref.ranks or config.trainer.n_gpus_per_node
    here, wanted = int(ray.cluster_resources().get("GPU", 0)), ranks + config.trainer.n_gpus_per_node
    if device == "cuda" and here < wanted:
        fix = "lower trainer.n_gpus_per_node or actor_rollout_ref.ref.ranks, or use placement=colocated"
        raise ClusterError(problem("actor_rollout_ref.ref.placement", "remote", f"{wanted} GPUs; {here} are here", fix))
    return RayResourcePool([ranks], use_gpu=device == "cuda", max_colocate_count=1)


def rollout_pool(config: Config, device: str, training: RayResourcePool) -> RayResourcePool:
    """On GPUs the training pool itself; on CPUs a pool of `rollout.replicas` processes."""
    if device == "cuda":
        return training
    return RayResourcePool([config.actor_rollout_ref.rollout.replicas], use_gpu=False, max_colocate_count=1)
