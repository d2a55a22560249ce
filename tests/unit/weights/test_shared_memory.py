from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest
import torch

from sdpo.errors import RolloutError
from sdpo.weights import shared_memory
from sdpo.weights.version import read_label


def groups() -> list[dict[str, torch.Tensor]]:
    generator = torch.Generator().manual_seed(0)
    return [{"a.weight": torch.randn(3, 4, generator=generator)}, {"b.bias": torch.randn(4, generator=generator)}]


def received(folder: str, version: int) -> dict[str, torch.Tensor]:
    return {name: tensor for group in shared_memory.receive(folder, version) for name, tensor in group.items()}


def test_what_is_sent_is_received_bit_for_bit_group_by_group(tmp_path):
    folder = shared_memory.send(iter(groups()), str(tmp_path), 7)
    found = list(shared_memory.receive(folder, 7))
    assert [group.keys() for group in found] == [group.keys() for group in groups()]
    assert all(torch.equal(there[n], here[n]) for there, here in zip(found, groups(), strict=True) for n in here)


def test_many_groups_arrive_in_their_order(tmp_path):
    names = [f"layer.{number}" for number in range(120)]
    folder = shared_memory.send(({name: torch.ones(1)} for name in names), str(tmp_path), 1)
    assert list(received(folder, 1)) == names


def test_only_the_newest_version_stays_and_no_draft_is_left(tmp_path):
    for version in (1, 2, 3):
        folder = shared_memory.send(groups(), str(tmp_path), version)
    assert [entry.name for entry in tmp_path.iterdir()] == [Path(folder).name]
    assert read_label(folder).version == 3


def test_a_version_can_be_sent_again_after_a_resume(tmp_path):
    shared_memory.send(groups(), str(tmp_path), 3)
    folder = shared_memory.send([{"b.bias": torch.ones(4)}], str(tmp_path), 3)
    assert torch.equal(received(folder, 3)["b.bias"], torch.ones(4))


def test_a_killed_sender_leaves_no_folder_that_looks_complete(tmp_path, monkeypatch):
    def killed(*_):
        raise KeyboardInterrupt

    monkeypatch.setattr(shared_memory, "write_label", killed)
    with pytest.raises(KeyboardInterrupt):
        shared_memory.send(groups(), str(tmp_path), 3)
    assert not list(tmp_path.iterdir())


def test_views_of_one_buffer_arrive_as_they_are(tmp_path):
    flat = torch.arange(12.0)
    sent = {"a": flat[:6], "b": flat[6:], "c": flat.view(3, 4).T}
    found = received(shared_memory.send([sent], str(tmp_path), 0), 0)
    assert all(torch.equal(found[name], tensor) for name, tensor in sent.items())


def test_another_version_than_asked_for_is_refused(tmp_path):
    folder = shared_memory.send(groups(), str(tmp_path), 7)
    with pytest.raises(RolloutError, match="weights.version: got 7; allowed: 8"):
        received(folder, 8)


def test_a_folder_without_label_or_with_a_broken_or_missing_file_is_refused(tmp_path):
    with pytest.raises(RolloutError, match="version.json"):
        received(str(tmp_path), 1)
    folder = shared_memory.send(groups(), str(tmp_path), 1)
    last = max(Path(folder).glob("*.safetensors"))
    last.write_bytes(b"\x00" * 20)
    with pytest.raises(RolloutError, match="readable safetensors file"):
        received(folder, 1)
    last.unlink()
    with pytest.raises(RolloutError, match="weights.tensors: got 1; allowed: 2"):
        received(folder, 1)


def test_no_space_is_an_error_and_leaves_nothing(tmp_path, monkeypatch):
    usage = type("Usage", (), {"free": 40})  # enough for the second group only
    monkeypatch.setattr(shared_memory.shutil, "disk_usage", lambda path: usage)
    with pytest.raises(RolloutError, match="shm-size"):
        shared_memory.send(groups(), str(tmp_path), 1)
    assert not list(tmp_path.iterdir())


def test_a_base_is_private_and_removed_with_what_is_in_it():
    base = shared_memory.new_base()
    shared_memory.send(groups(), base, 1)
    assert os.stat(base).st_mode & 0o077 == 0
    shared_memory.remove_base(base)
    shared_memory.remove_base(base)
    assert not Path(base).exists()


def test_what_a_killed_process_left_is_swept_and_what_a_live_one_uses_is_not():
    live = shared_memory.new_base()
    code = (
        "import os, signal; from sdpo.weights import shared_memory as s; print(s.new_base(), flush=True);"
        "os.kill(os.getpid(), signal.SIGKILL)"
    )
    killed = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False).stdout.strip()
    assert Path(killed).is_dir()
    assert Path(live).is_dir()
    other = shared_memory.new_base()
    assert not Path(killed).exists()
    assert Path(live).is_dir()
    for base in (live, other):
        shared_memory.remove_base(base)
