"""What every test runs under: no network, no telemetry, two polite cores; GPU and slow tests only where they run."""

from __future__ import annotations

import fcntl
import os
import signal
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest
from hypothesis import settings
from hypothesis.configuration import set_hypothesis_home_dir

if TYPE_CHECKING:
    from forked_programs import Programs
    from xdist.scheduler import LoadScopeScheduling

# Before anything imports torch, ray, vllm or a hub client: they read these once. Child processes inherit them.
ENVIRONMENT = {
    "OMP_WAIT_POLICY": "passive",  # trainer and engine take turns; a spinning OpenMP team starves the other
    "OMP_NUM_THREADS": "1",  # two processes run tests
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
if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:  # as in the background of a shell; programs would inherit it
    signal.signal(signal.SIGINT, signal.default_int_handler)
sys.path.insert(0, str(Path(__file__).parent))  # modules that tests share: forked_programs

# The same examples every time, nothing written to the checkout, no time limit: red is red for everybody.
settings.register_profile("repeatable", derandomize=True, database=None, deadline=None)
settings.load_profile("repeatable")
# It writes without a database, too, and as early as a test file is imported.
HYPOTHESIS_FOLDER = tempfile.TemporaryDirectory(prefix="sdpo-hypothesis-")
set_hypothesis_home_dir(HYPOTHESIS_FOLDER.name)


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


RAY = {f"tests/equivalence/test_{name}.py" for name in ("clusters", "remote_teacher", "two_nodes")}


@pytest.hookimpl(optionalhook=True)
def pytest_xdist_make_scheduler(config: pytest.Config, log: Any) -> LoadScopeScheduling:
    """A file stays in one process; so do those that start Ray, one cluster after the other."""
    from xdist.scheduler import LoadScopeScheduling

    class Files(LoadScopeScheduling):
        def _split_scope(self, nodeid: str) -> str:
            file = nodeid.partition("::")[0]
            return "ray" if file in RAY else file

    return Files(config, log)


def _skip(items: list[pytest.Item], marker: str, reason: str) -> None:
    for item in items:
        if item.get_closest_marker(marker):
            item.add_marker(pytest.mark.skip(reason=reason))


# What makes and changes itself, or is edited while the tests run. Everything else in the checkout must stay as it is.
CACHES = {".git", ".venv", "__pycache__", ".pytest_cache", ".ruff_cache", "node_modules"}
SOURCES = {"sdpo", "tests", "docs", "recipes", "examples"}
EDITED = {".py", ".md", ".yaml", ".toml", ".txt", ".js", ".css", ".html", ".sh", ""}
LAST_FOOTPRINT = pytest.StashKey[tuple[dict[str, tuple[int, ...]], set[str]]]()
RUN_LOCK = ".lock"  # of a run folder, held while its run goes on


def footprint(checkout: Path) -> tuple[dict[str, tuple[int, ...]], set[str]]:
    """What each file of the checkout is, cheaply: a file that is written to, replaced or given other rights gets other
    numbers. Left out are caches, and sources, which may be edited meanwhile. And the folders of runs that go on beside
    the tests."""
    found: dict[str, tuple[int, ...]] = {}
    going_on = set()
    for folder, folders, files in os.walk(checkout):
        inside = Path(folder).relative_to(checkout)
        folders[:] = [name for name in folders if name not in CACHES]
        if RUN_LOCK in files and _held(Path(folder, RUN_LOCK)):
            going_on.add(f"{inside}{os.sep}")
            folders.clear()
            continue
        found[f"{inside}{os.sep}"] = ()
        edited = not inside.parts or inside.parts[0] in SOURCES
        for name in files:
            if not (edited and Path(name).suffix in EDITED):
                state = os.lstat(os.path.join(folder, name))
                found[str(inside / name)] = state.st_ino, state.st_mode, state.st_size, state.st_mtime_ns
    return found, going_on


def _held(lock: Path) -> bool:
    with lock.open() as file:
        try:
            fcntl.flock(file, fcntl.LOCK_SH | fcntl.LOCK_NB)
        except BlockingIOError:
            return True
    return False


@pytest.fixture(scope="session")
def own_folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Where the tests run: run folders are relative by default, and those of the checkout are the user's."""
    return tmp_path_factory.mktemp("own_folder")


@pytest.fixture(scope="module", autouse=True)
def nothing_is_written_outside_of_temporary_folders(
    request: pytest.FixtureRequest, repository: Path, own_folder: Path
) -> Iterator[None]:
    """Fails the module whose tests change the checkout, or leave something in the folder they run in."""
    started = Path.cwd()
    os.chdir(own_folder)
    before, runs_before = request.config.stash.get(LAST_FOOTPRINT, None) or footprint(repository)
    yield
    os.chdir(started)
    after, runs_after = request.config.stash[LAST_FOOTPRINT] = footprint(repository)  # the next module's `before`
    runs = tuple(runs_before | runs_after)
    changed = sorted(name for name in before.keys() | after.keys() if before.get(name) != after.get(name))
    changed = [name for name in changed if not name.startswith(runs)]
    left = sorted(str(path.relative_to(own_folder)) for path in own_folder.rglob("*"))
    for path in sorted(own_folder.rglob("*"), reverse=True):  # the next module starts clean
        path.rmdir() if path.is_dir() and not path.is_symlink() else path.unlink()
    assert not changed, f"{request.path.name} changed the checkout (a path of its own is missing): {changed[:10]}"
    assert not left, f"{request.path.name} wrote to the folder it ran in (tmp_path is missing somewhere): {left[:10]}"


@pytest.fixture(scope="session")
def programs() -> Iterator[Programs]:
    """Runs `main_sdpo` and scripts as programs of their own, quickly."""
    from forked_programs import Programs

    server = Programs()
    yield server
    server.close()


@pytest.fixture(scope="session")
def repository() -> Path:
    """Root of the checkout."""
    return Path(__file__).resolve().parent.parent
