"""How many cores there are, and who gets how many."""

from __future__ import annotations

import os
from pathlib import Path

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from sdpo.config.schema import Config
from sdpo.workers.cores import available_cores, threads_of, use_cores

HERE = len(os.sched_getaffinity(0))


def machine(tmp_path: Path, own: str, limits: dict[str, str]) -> tuple[Path, Path]:
    file, root = tmp_path / "cgroup", tmp_path / "groups"
    file.write_text(own)
    root.mkdir()
    for name, text in limits.items():
        place = root / name
        place.parent.mkdir(parents=True, exist_ok=True)
        place.write_text(text + "\n")
    return file, root


@pytest.mark.parametrize(
    ("own", "limits", "share"),
    [
        ("0::/\n", {"cpu.max": "100000 100000"}, 1),
        ("0::/\n", {"cpu.max": "max 100000"}, None),
        ("0::/job/step\n", {"job/cpu.max": "50000 100000", "job/step/cpu.max": "max 100000"}, 1),
        ("0::/job\n", {"job/cpu.max": "not a number"}, None),
        (
            "4:cpu,cpuacct:/box\n3:memory:/x\n",
            {"cpu/box/cpu.cfs_quota_us": "60000", "cpu/box/cpu.cfs_period_us": "50000"},
            2,
        ),
        ("4:cpu:/\n", {"cpu/cpu.cfs_quota_us": "-1", "cpu/cpu.cfs_period_us": "100000"}, None),
        ("4:cpu:/\n", {"cpu/cpu.cfs_quota_us": "20000", "cpu/cpu.cfs_period_us": "100000"}, 1),
        ("", {}, None),
    ],
)  # fmt: skip
def test_a_containers_share_bounds_the_cores(tmp_path: Path, own: str, limits: dict[str, str], share) -> None:
    assert available_cores(*machine(tmp_path, own, limits)) == (HERE if share is None else min(share, HERE))


@given(cores=st.integers(1, 256), ranks=st.integers(1, 16), engines=st.integers(1, 16), stale=st.booleans())
def test_who_computes_at_the_same_time_shares_the_machine(cores: int, ranks: int, engines: int, stale: bool) -> None:
    config = Config()
    config.trainer.n_gpus_per_node, config.actor_rollout_ref.rollout.replicas = ranks, engines
    config.actor_rollout_ref.rollout.max_staleness = int(stale)
    actor = threads_of("actor", config, "cpu", cores, ranks)
    engine = threads_of("rollout", config, "cpu", cores, engines)
    together = ranks * actor + engines * engine if stale else max(ranks * actor, engines * engine)
    assert min(actor, engine) >= 1 and together <= max(cores, ranks + engines)
    if not stale:
        assert actor == max(1, cores // ranks) and engine == max(1, cores // engines)


def test_the_users_number_wins_then_the_settings(monkeypatch) -> None:
    set_to: list[int] = []
    monkeypatch.setattr(torch, "set_num_threads", set_to.append)
    monkeypatch.delenv("RAY_LOCAL_WORLD_SIZE", raising=False)
    config = Config()
    use_cores(config, "cpu", chosen={"OMP_NUM_THREADS": "3"})
    assert set_to == []
    config.ray_kwargs.ray_init.num_cpus = 7
    use_cores(config, "cpu", chosen={})
    monkeypatch.setenv("RAY_LOCAL_WORLD_SIZE", "2")
    use_cores(config, "cpu", "actor", {})
    assert set_to == [7, 3]
