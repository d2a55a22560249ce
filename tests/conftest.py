"""What every test runs under: no network, no telemetry, two polite cores; GPU and slow tests only where they run."""

from __future__ import annotations

import os
from pathlib import Path

import pytest
from hypothesis import settings

# Before anything imports torch, ray, vllm or a hub client: they read these once. Child processes inherit them.
ENVIRONMENT = {
    "OMP_WAIT_POLICY": "passive",  # trainer and engine take turns; a spinning OpenMP team starves the other
    "OMP_NUM_THREADS": "2",
    "TOKENIZERS_PARALLELISM": "false",
    "HF_HUB_OFFLINE": "1",
    "HF_DATASETS_OFFLINE": "1",
    "WANDB_MODE": "offline",
    "WANDB_SILENT": "true",
    "MPLBACKEND": "Agg",
    "GRADIO_ANALYTICS_ENABLED": "False",
    "VLLM_NO_USAGE_STATS": "1",
    "DO_NOT_TRACK": "1",
    "RAY_USAGE_STATS_ENABLED": "0",
    "RAY_ACCEL_ENV_VAR_OVERRIDE_ON_ZERO": "0",
    "RAY_DISABLE_IMPORT_WARNING": "1",
    "RAY_memory_usage_threshold": "0.99",  # a busy test machine is no reason to kill workers
}
for name, value in ENVIRONMENT.items():
    os.environ.setdefault(name, value)
for name in ("HF_HUB_OFFLINE", "WANDB_MODE"):
    os.environ[name] = ENVIRONMENT[name]  # not left to whatever the shell had: tests never reach a network
os.environ.pop("RAY_ADDRESS", None)  # nor somebody's cluster

# The same examples every time, nothing written to the checkout, no time limit: red is red for everybody.
settings.register_profile("repeatable", derandomize=True, database=None, deadline=None)
settings.load_profile("repeatable")


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption("--slow", action="store_true", default=False, help="also run the tests that take minutes")


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """Mark what lies in tests/gpu, then skip, with the reason, what cannot or should not run here."""
    gpu_folder = Path(__file__).parent / "gpu"
    for item in items:
        if gpu_folder in item.path.parents:
            item.add_marker(pytest.mark.gpu)
    if not config.getoption("--slow"):
        _skip(items, "slow", "takes minutes: run with --slow")
    if any(item.get_closest_marker("gpu") for item in items):
        import torch  # only now: collecting the other tests must not cost this import

        if not torch.cuda.is_available():
            _skip(items, "gpu", "needs an NVIDIA GPU: torch.cuda.is_available() is False")


def _skip(items: list[pytest.Item], marker: str, reason: str) -> None:
    for item in items:
        if item.get_closest_marker(marker):
            item.add_marker(pytest.mark.skip(reason=reason))


@pytest.fixture(scope="session")
def repository() -> Path:
    """Root of the checkout."""
    return Path(__file__).resolve().parent.parent
