"""Freed memory between memory in use goes back to the system; a little of it stays."""

from __future__ import annotations

import ctypes
import gc
from types import SimpleNamespace

import pytest
import torch

from sdpo.offload import freed_memory
from sdpo.offload.freed_memory import give_back_freed_memory

KIB, MIB = 2**10, 2**20


def _resident() -> int:
    with open("/proc/self/statm") as file:
        return int(file.read().split()[1]) * 4 * KIB


@pytest.mark.parametrize(("mib", "goes"), [(600, True), (60, False)])
def test_scattered_freed_memory_goes_back_when_it_is_much(monkeypatch, mib, goes):
    monkeypatch.setattr(freed_memory, "WORTH_IT", freed_memory._glibc().mallinfo2().fordblks + 200 * MIB)
    small = [torch.ones(16 * KIB) for _ in range(mib * 16)]  # 64 KiB each, from the heap
    kept = small[::8]
    del small
    gc.collect()
    before = _resident()
    give_back_freed_memory()
    given = before - _resident()
    assert (given > mib * MIB / 2) if goes else (given < 10 * MIB)
    assert all(bool((tensor == 1).all()) for tensor in kept)


def test_a_library_without_the_functions_of_glibc_is_left_alone(monkeypatch):
    other = SimpleNamespace(malloc_trim=lambda _: pytest.fail("not asked whether it is worth it"))
    monkeypatch.setattr(ctypes, "CDLL", lambda _: other)
    monkeypatch.setattr(freed_memory, "_glibc", freed_memory._glibc.__wrapped__)
    assert freed_memory._glibc() is None
    give_back_freed_memory()
