"""A checkpoint counts only when this process sees all of it, and late files are waited for."""

from __future__ import annotations

import threading
import time
from pathlib import Path

import pytest
import torch
import torch.distributed.checkpoint as dcp

from sdpo.config import fields
from sdpo.config.files import READ
from sdpo.config.schema import Config
from sdpo.errors import CheckpointError, ConfigError
from sdpo.training import checkpoint
from sdpo.training.checkpoint import TrainerState
from sdpo.workers import seen
from sdpo.workers.layout import Layout, Node
from sdpo.workers.shared_files import check_folder, check_shards


def saved(folder: Path) -> Path:
    """As one rank writes it."""
    dcp.save({"weight": torch.arange(1000.0)}, checkpoint_id=str(folder), no_dist=True)
    return folder


def test_what_is_whole_costs_no_waiting(tmp_path):
    begun = time.monotonic()
    check_shards([str(saved(tmp_path / "actor"))], 60)
    assert time.monotonic() - begun < 30


@pytest.mark.parametrize("lost", ["__0_0.distcp", ".metadata", "half", "half the index", "all"])
def test_a_shard_or_index_that_stays_on_its_ranks_machine_is_named_and_no_marker_is_written(tmp_path, lost):
    def write(folder: str) -> None:
        whole = saved(Path(folder))
        if lost == "all":
            whole.rename(tmp_path / "elsewhere")
        elif lost.startswith("half"):
            file = whole / (".metadata" if "index" in lost else "__0_0.distcp")
            file.write_bytes(file.read_bytes()[: file.stat().st_size // 2])
        else:
            (whole / lost).unlink()
        check_shards([folder], 0.02)

    name = "the index" if lost in (".metadata", "half the index", "all") else "the shard __0_0.distcp of rank 0"
    with pytest.raises(CheckpointError, match=f"{name}.* is not seen .* 0.02 s .*trainer.file_wait_s"):
        checkpoint.save(tmp_path / "checkpoints", TrainerState(3, 3, 3), write, None)
    assert checkpoint.latest(tmp_path / "checkpoints") is None
    assert list(tmp_path.rglob(checkpoint.MARKER)) == []


def test_files_that_come_late_are_waited_for(tmp_path):
    folder, hidden = saved(tmp_path / "actor"), tmp_path / "hidden"
    (folder / "__0_0.distcp").rename(hidden)
    threading.Timer(0.2, hidden.rename, [folder / "__0_0.distcp"]).start()
    check_shards([str(folder)], 60)
    threading.Timer(0.2, (tmp_path / "model").mkdir).start()
    check_folder(str(tmp_path / "model"), 60)
    with pytest.raises(CheckpointError, match="other is not seen"):
        check_folder(str(tmp_path / "other"), 0.02)


@pytest.fixture
def two_machines(monkeypatch, tmp_path):
    """check_nodes with a second machine, whose processes run here; `hide` are paths that it does not have."""
    from sdpo.workers import nodes

    first, second = (Node(n, f"10.0.0.{n}", {}, {}) for n in "12")
    hide: set[str] = set()
    code = [seen.code_hash()]
    real = seen.unseen

    def ask(node, *arguments):
        with monkeypatch.context() as there:
            there.setattr(
                seen, "unseen", lambda path: str(path) if hide & {str(path), str(path.parent)} else real(path)
            )
            found, missing, _ = seen.look(*arguments, node.id)
        return lambda: (found, missing, code[0])

    monkeypatch.setattr(nodes, "_ask", ask)
    config = Config()
    config.trainer.default_local_dir, config.trainer.file_wait_s = str(tmp_path / "run"), 0.02
    (tmp_path / "run").mkdir()

    def check(actors=(first, second), engines=(second,)):
        nodes.check_nodes(config, Layout(first, list(actors), [], list(engines), []))
        assert list((tmp_path / "run").iterdir()) == []

    return config, check, hide, code


def test_a_run_folder_that_a_machine_with_ranks_does_not_share_is_refused_with_its_name(two_machines, tmp_path):
    config, check, hide, _ = two_machines
    check()
    hide.add(config.trainer.default_local_dir)
    with pytest.raises(
        ConfigError, match=r"trainer.default_local_dir: .* 10.0.0.2 and this machine share; 10.0.0.2 do"
    ):
        check()
    assert list((tmp_path / "run").iterdir()) == []
    check(actors=check.__defaults__[0][:1])  # engines write nothing there


@pytest.mark.parametrize("key", READ)
def test_a_file_that_another_machine_lacks_is_refused_before_a_model_is_loaded(two_machines, tmp_path, key):
    config, check, hide, _ = two_machines
    mine = tmp_path / "mine"
    mine.write_text("")
    section, _, name = key.rpartition(".")
    setattr(fields.get(config, section), name, str(mine))
    check()
    hide.add(str(mine))
    with pytest.raises(ConfigError, match=f"{key}: .*10.0.0.2 does not have it"):
        check()


def test_however_many_paths_are_missing_a_machine_waits_for_them_once(tmp_path, monkeypatch):
    """Longer than the driver waits for its answer, it would be said not to run this program."""
    clock = [0.0]
    monkeypatch.setattr(seen.time, "monotonic", lambda: clock[0])
    monkeypatch.setattr(seen.time, "sleep", lambda seconds: clock.__setitem__(0, clock[0] + seconds))
    (tmp_path / "there").touch()
    names = [str(tmp_path / name) for name in ("a", "there", "b", "c")]
    found, missing, _ = seen.look(tmp_path / "run", "mark", names, 60, "1")
    assert (found, missing) == (False, [names[0], *names[2:]])
    assert clock[0] <= 60 + seen.LONGEST_PAUSE_S


def test_another_version_of_the_code_is_refused(two_machines):
    _, check, _, code = two_machines
    code[0] = "0" * 12
    with pytest.raises(Exception, match="10.0.0.2 runs another version of sdpo"):
        check()


def test_paths_are_found_from_any_folder(tmp_path, monkeypatch):
    from sdpo.workers.nodes import with_whole_paths

    monkeypatch.chdir(tmp_path)
    (tmp_path / "reward.py").write_text("")
    config = Config()
    config.custom_reward_function.path, config.trainer.default_local_dir = "reward.py", "runs/a"
    (tmp_path / "adapter").mkdir()
    config.actor_rollout_ref.model.lora_adapter_path = "adapter"
    found = with_whole_paths(config)
    assert found.actor_rollout_ref.model.lora_adapter_path == f"{tmp_path}/adapter"
    assert found.custom_reward_function.path == f"{tmp_path}/reward.py"
    assert found.trainer.default_local_dir == f"{tmp_path}/runs/a"
    assert found.actor_rollout_ref.model.path == config.actor_rollout_ref.model.path == "builtin://tiny/hard"
