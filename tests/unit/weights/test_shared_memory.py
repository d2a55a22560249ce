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


def state() -> dict[str, torch.Tensor]:
    generator = torch.Generator().manual_seed(0)
    return {"a.weight": torch.randn(3, 4, generator=generator), "b.bias": torch.randn(4, generator=generator)}


def test_what_is_published_is_read_back_bit_for_bit(tmp_path):
    folder = shared_memory.publish(state(), str(tmp_path), 7)
    tensors = shared_memory.read(folder, 7)
    assert set(tensors) == set(state())
    assert all(torch.equal(tensors[name], tensor) for name, tensor in state().items())


def test_only_the_newest_version_stays_and_no_draft_is_left(tmp_path):
    for version in (1, 2, 3):
        folder = shared_memory.publish(state(), str(tmp_path), version)
    assert [entry.name for entry in tmp_path.iterdir()] == [Path(folder).name]
    assert read_label(folder).version == 3


def test_a_version_can_be_published_again_after_a_resume(tmp_path):
    shared_memory.publish(state(), str(tmp_path), 3)
    other = {name: tensor + 1 for name, tensor in state().items()}
    folder = shared_memory.publish(other, str(tmp_path), 3)
    assert torch.equal(shared_memory.read(folder, 3)["b.bias"], other["b.bias"])


def test_a_killed_publisher_leaves_no_folder_that_looks_complete(tmp_path, monkeypatch):
    def killed(*_):
        raise KeyboardInterrupt

    monkeypatch.setattr(shared_memory, "write_label", killed)
    with pytest.raises(KeyboardInterrupt):
        shared_memory.publish(state(), str(tmp_path), 3)
    assert not [entry for entry in tmp_path.iterdir() if entry.name.startswith("v")]


def test_tied_tensors_are_written_once_and_not_under_the_head(tmp_path):
    embedding = torch.randn(5, 2)
    folder = shared_memory.publish({"lm_head.weight": embedding, "model.embed.weight": embedding}, str(tmp_path), 0)
    assert set(shared_memory.read(folder, 0)) == {"model.embed.weight"}


def test_views_of_one_buffer_are_not_taken_for_tied_tensors(tmp_path):
    flat = torch.arange(12.0)
    folder = shared_memory.publish({"a": flat[:6], "b": flat[6:], "c": flat.view(3, 4).T}, str(tmp_path), 0)
    tensors = shared_memory.read(folder, 0)
    assert torch.equal(tensors["b"], flat[6:])
    assert torch.equal(tensors["c"], flat.view(3, 4).T)


def test_floating_point_tensors_are_cast_and_integers_are_not(tmp_path):
    folder = shared_memory.publish({"w": torch.randn(4), "n": torch.tensor([3])}, str(tmp_path), 0, torch.bfloat16)
    tensors = shared_memory.read(folder, 0)
    assert (tensors["w"].dtype, tensors["n"].dtype) == (torch.bfloat16, torch.int64)
    assert read_label(folder).dtype == "bfloat16"


def test_another_version_than_asked_for_is_refused(tmp_path):
    folder = shared_memory.publish(state(), str(tmp_path), 7)
    with pytest.raises(RolloutError, match="weights.version: got 7; allowed: 8"):
        shared_memory.read(folder, 8)


def test_a_folder_without_label_or_with_a_broken_file_is_refused(tmp_path):
    with pytest.raises(RolloutError, match="version.json"):
        shared_memory.read(str(tmp_path), 1)
    folder = shared_memory.publish(state(), str(tmp_path), 1)
    Path(folder, "model.safetensors").write_bytes(b"\x00" * 20)
    with pytest.raises(RolloutError, match="readable model.safetensors"):
        shared_memory.read(folder, 1)


def test_no_space_is_an_error_before_anything_is_written(tmp_path, monkeypatch):
    usage = type("Usage", (), {"free": 10})
    monkeypatch.setattr(shared_memory.shutil, "disk_usage", lambda path: usage)
    with pytest.raises(RolloutError, match="shm-size"):
        shared_memory.publish(state(), str(tmp_path), 1)
    assert not list(tmp_path.iterdir())


def test_a_base_is_private_and_removed_with_what_is_in_it():
    base = shared_memory.new_base()
    shared_memory.publish(state(), base, 1)
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
