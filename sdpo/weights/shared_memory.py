"""Weights from the trainer to engines on the same machine: a safetensors file in shared memory, one folder per version.

    base = new_base()                                   # /dev/shm/sdpo-weights-<random>
    folder = publish(state_dict, base, version=7)
    engine.load_weights(folder, 7)
    remove_base(base)

A reader never sees half a file: the folder is written under another name and renamed. `publish` removes older
versions, so an engine must have loaded one before the next is published (it maps the file: removal does not disturb a
running read).
"""

from __future__ import annotations

import atexit
import fcntl
import os
import shutil
import tempfile
from collections.abc import Mapping
from pathlib import Path
from typing import IO

import torch
from safetensors import SafetensorError
from safetensors.torch import load_file, save_file

from sdpo.errors import RolloutError, problem
from sdpo.weights.version import Label, check_version, write_label

WEIGHTS_NAME = "model.safetensors"
_PREFIX = "sdpo-weights-"
_LOCK_NAME = "owner.lock"
_locks: dict[str, IO[str]] = {}  # of the folders that this process made


def new_base() -> str:
    """A new private folder for published weights, in /dev/shm or, where that is missing, in the temporary folder.

    It lives as long as this process, or until `remove_base`. What a killed process left behind is swept here: its
    lock is free.
    """
    root = Path("/dev/shm")
    root = root if os.access(root, os.W_OK) else Path(tempfile.gettempdir())
    _sweep(root)
    draft = Path(tempfile.mkdtemp(prefix=".sdpo-", dir=root))
    lock = open(draft / _LOCK_NAME, "w", encoding="utf-8")  # noqa: SIM115 - held until remove_base
    fcntl.flock(lock, fcntl.LOCK_EX)
    base = str(root / f"{_PREFIX}{draft.name.removeprefix('.sdpo-')}")
    draft.rename(base)  # under the name that is swept only once it is locked
    _locks[base] = lock
    atexit.register(remove_base, base)
    return base


def remove_base(base: str) -> None:
    """Remove the folder and what is published in it. A second call does nothing."""
    lock = _locks.pop(base, None)
    if lock is not None:
        lock.close()
    shutil.rmtree(base, ignore_errors=True)


def publish(
    state_dict: Mapping[str, torch.Tensor], folder_base: str, version: int, dtype: torch.dtype | None = None
) -> str:
    """Write the full weights as `folder_base`/v<version> and return that path; older versions are removed.

    `state_dict`: Hugging Face names to full tensors (any device; not sharded). Tensors that share memory (tied
    embeddings) are written once, not under the head's name. Floating-point tensors are cast to `dtype` when it is
    given. Raises RolloutError when there is no space.
    """
    base = Path(folder_base)
    base.mkdir(mode=0o700, parents=True, exist_ok=True)
    tensors = _plain(state_dict, dtype)
    size = sum(tensor.numel() * tensor.element_size() for tensor in tensors.values())
    free = shutil.disk_usage(base).free
    if size > free:
        fix = "give the container more shared memory (docker --shm-size)"
        raise RolloutError(problem("weights.bytes", size, f"at most {free}, what is free in {base}", fix))
    target, draft = base / f"v{version:09d}", base / f".draft-{os.getpid()}"
    shutil.rmtree(draft, ignore_errors=True)
    draft.mkdir(mode=0o700)
    save_file(tensors, draft / WEIGHTS_NAME, metadata={"format": "pt"})
    tied = tuple(sorted(set(state_dict) - set(tensors)))
    write_label(draft, Label(version, len(tensors), size, _dtype_name(tensors), tied))
    shutil.rmtree(target, ignore_errors=True)
    draft.rename(target)
    for other in base.iterdir():
        if other.is_dir() and other != target:
            shutil.rmtree(other, ignore_errors=True)
    return str(target)


def read(folder: str, version: int) -> dict[str, torch.Tensor]:
    """The weights published in `folder`, on the CPU. Raises RolloutError when they are not of `version` or
    unreadable."""
    label = check_version(folder, version)
    try:
        tensors = load_file(Path(folder) / WEIGHTS_NAME)
    except (OSError, SafetensorError) as error:
        raise RolloutError(problem("weights", folder, f"a folder with a readable {WEIGHTS_NAME}")) from error
    if len(tensors) != label.tensors:
        raise RolloutError(problem("weights.tensors", len(tensors), f"{label.tensors}, as in the label of {folder}"))
    return tensors


def _sweep(root: Path) -> None:
    for folder in root.glob(f"{_PREFIX}*"):
        try:
            with open(folder / _LOCK_NAME, encoding="utf-8") as lock:
                fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
                shutil.rmtree(folder, ignore_errors=True)
        except OSError:
            continue  # in use, being made right now, or another user's


def _plain(state_dict: Mapping[str, torch.Tensor], dtype: torch.dtype | None) -> dict[str, torch.Tensor]:
    seen: set[tuple[int, torch.Size]] = set()
    tensors: dict[str, torch.Tensor] = {}
    for name in sorted(state_dict, key=lambda name: ("lm_head" in name, name)):
        source = state_dict[name].detach()
        place = (source.data_ptr(), source.shape)
        if source.numel() and place in seen:
            continue
        seen.add(place)
        cast = dtype if dtype is not None and source.is_floating_point() else source.dtype
        tensors[name] = source.to(device="cpu", dtype=cast).contiguous()
    return tensors


def _dtype_name(tensors: Mapping[str, torch.Tensor]) -> str:
    names = {str(tensor.dtype).removeprefix("torch.") for tensor in tensors.values() if tensor.is_floating_point()}
    return names.pop() if len(names) == 1 else "mixed"
