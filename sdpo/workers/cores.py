"""Cores of this machine, and how many of them a process of a run computes with.

Ray gives each of its processes one thread. Here they get cores by what they do: ranks and engines take turns, so each
group has the machine while it computes; groups that compute at the same time share it. Graders wait most of the time,
and the programs they run have limits of their own: one thread each.
"""

from __future__ import annotations

import math
import os
from collections.abc import Mapping
from pathlib import Path

import torch

from sdpo.config.schema import Config

CGROUPS = Path("/sys/fs/cgroup")


def available_cores(own: Path = Path("/proc/self/cgroup"), root: Path = CGROUPS) -> int:
    """Cores that this process may use: those it is bound to, or fewer where a container has a share of them."""
    cores = len(os.sched_getaffinity(0))
    shares = [share for folder in _groups(own, root) if (share := _share(folder)) is not None]
    return max(1, min([cores, *(math.ceil(share) for share in shares)]))


def _groups(own: Path, root: Path) -> list[Path]:
    """Folders of the control groups that hold this process, of both versions, with all above them."""
    lines = own.read_text().splitlines() if own.is_file() else []
    found = {root, root / "cpu"}
    for controllers, path in (line.split(":", 2)[1:] for line in lines if line.count(":") >= 2):
        if controllers and "cpu" not in controllers.split(","):
            continue
        top = root / "cpu" if controllers else root
        place = top / path.strip("/")
        found |= {place, *(above for above in place.parents if above.is_relative_to(top))}
    return sorted(found)


def _share(folder: Path) -> float | None:
    """Cores' worth of time that a group may use; None without a limit."""
    try:
        quota, period = (folder / "cpu.max").read_text().split()
    except (OSError, ValueError):
        try:
            quota, period = ((folder / f"cpu.cfs_{name}_us").read_text().strip() for name in ("quota", "period"))
        except OSError:
            return None
    return int(quota) / int(period) if quota.isdigit() and int(period) else None


def threads_of(role: str, config: Config, device: str, cores: int, mates: int = 1) -> int:
    """`mates`: processes of the same group on this machine, itself included; `role`: of the group."""
    engines, ranks = config.actor_rollout_ref.rollout.replicas, config.trainer.n_gpus_per_node
    at_once = mates
    if device == "cuda":  # threads start kernels and move data; all processes are busy with that
        at_once = 2 * ranks
    elif config.actor_rollout_ref.rollout.max_staleness and role in ("actor", "rollout"):
        at_once += engines if role == "actor" else ranks
    return max(1, cores // at_once)


def use_cores(config: Config, device: str, role: str = "all", chosen: Mapping[str, str] = os.environ) -> None:
    """Sets the threads of this process, unless the user has chosen them: by OMP_NUM_THREADS in `chosen`."""
    if "OMP_NUM_THREADS" not in chosen:
        cores = config.ray_kwargs.ray_init.num_cpus or available_cores()
        mates = int(os.environ.get("RAY_LOCAL_WORLD_SIZE", "1"))
        torch.set_num_threads(threads_of(role, config, device, cores, mates))


def use_cores_in_ray(config: Config, device: str, role: str) -> None:
    """In a process of Ray's, which sets OMP_NUM_THREADS itself where the user has not: what he has is passed on."""
    import ray

    use_cores(config, device, role, ray.get_runtime_context().runtime_env.get("env_vars", {}))
