"""Weights for processes of the same machine: safetensors files in shared memory, one folder per version.

    base = new_base()                                   # /dev/shm/sdpo-weights-<random>
    folder = publish(source, base, 7)                   # weights.transport; here: send
    engine.load_weights(folder, 7)
    remove_base(base)

A reader never sees half a folder: it is written under another name and renamed. `send` removes older versions, so an
engine must have loaded one before the next is sent (it maps the files: removal does not disturb a running read).
"""

from __future__ import annotations

import atexit
import fcntl
import os
import shutil
import tempfile
from collections.abc import Generator, Iterable, Sequence
from pathlib import Path
from typing import IO, TYPE_CHECKING

from safetensors import SafetensorError
from safetensors.torch import load_file, save_file

from sdpo.errors import RolloutError, problem
from sdpo.weights.version import Label, check_version, write_label

if TYPE_CHECKING:
    from sdpo.weights.source import Group

STREAMS = False
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


def send(groups: Iterable[Group], base: str, version: int, tied: Sequence[str] = ()) -> str:
    """See `Transport.send`: writes the folder `base`/v<version>, a file per group, and removes older ones. Raises
    RolloutError when there is no space."""
    root = Path(base)
    root.mkdir(mode=0o700, parents=True, exist_ok=True)
    target, draft = root / f"v{version:09d}", root / f".draft-{os.getpid()}"
    shutil.rmtree(draft, ignore_errors=True)
    draft.mkdir(mode=0o700)
    tensors = size = 0
    try:
        for number, group in enumerate(groups):
            bytes_here = sum(tensor.nbytes for tensor in group.values())
            if bytes_here > (free := shutil.disk_usage(root).free):
                fix = "give the container more shared memory (docker --shm-size)"
                raise RolloutError(problem("weights.bytes", bytes_here, f"at most {free}, what is free in {base}", fix))
            group = {name: tensor.to("cpu").contiguous() for name, tensor in group.items()}
            save_file(group, draft / f"{number:06d}.safetensors", metadata={"format": "pt"})
            tensors, size = tensors + len(group), size + bytes_here
        write_label(draft, Label(version, tensors, size, tuple(tied)))
        shutil.rmtree(target, ignore_errors=True)
        draft.rename(target)
    finally:
        shutil.rmtree(draft, ignore_errors=True)
    for other in root.iterdir():
        if other.is_dir() and other != target:
            shutil.rmtree(other, ignore_errors=True)
    return str(target)


def receive(place: str, version: int) -> Generator[Group, None, Label]:
    """See `Transport.receive`: from the folder `place`, to the CPU."""
    label = check_version(place, version)
    found = 0
    for path in sorted(Path(place).glob("*.safetensors")):
        try:
            group = load_file(path)
        except (OSError, SafetensorError) as error:
            raise RolloutError(problem("weights", str(path), "a readable safetensors file")) from error
        found += len(group)
        yield group
    if found != label.tensors:
        raise RolloutError(problem("weights.tensors", found, f"{label.tensors}, as in the label of {place}"))
    return label


def forget(place: str) -> None:
    """See `Transport.forget`."""
    shutil.rmtree(place, ignore_errors=True)


def _sweep(root: Path) -> None:
    for folder in root.glob(f"{_PREFIX}*"):
        try:
            with open(folder / _LOCK_NAME, encoding="utf-8") as lock:
                fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
                shutil.rmtree(folder, ignore_errors=True)
        except OSError:
            continue  # in use, being made right now, or another user's
