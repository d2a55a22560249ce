"""Weights for processes of other machines: streamed by torch's gloo while they are gathered, nothing is written.

    base = new_base("10.0.0.1", receivers=2, seconds=300)  # where the sender is; for one transfer
    send(groups, base, 7)                                  # there
    for group in receive(base, 7): ...                     # at the same time, in each receiver, wherever it runs

A store on the sender's machine says who takes part and what comes next; the bytes go by broadcast in a process group
of their own, made for this transfer and gone with it: a receiver that has been started anew meets nobody's dead
partners. No step of it waits longer than `seconds` for the others.
"""

from __future__ import annotations

import json
import re
from collections.abc import Generator, Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import asdict
from datetime import timedelta
from typing import TYPE_CHECKING, NamedTuple

import torch
import torch.distributed as dist

from sdpo.errors import RolloutError, TransferError, first_line, problem
from sdpo.weights.version import Label

if TYPE_CHECKING:
    from sdpo.weights.source import Group

PREFIX = "gloo:"
STREAMS = True
PIECE = 64 << 20  # bytes per broadcast: the time limit is one of standing still, however large the model is
TIMEOUT_KEY = "actor_rollout_ref.rollout.checkpoint_engine.timeout_s"
_ALIGNED = 16  # where a tensor may begin in the bytes of its group, whatever its dtype
_stores: dict[str, dist.TCPStore] = {}  # of this process's bases


class _Place(NamedTuple):
    host: str
    port: int
    receivers: int
    seconds: float

    @classmethod
    def of(cls, base: str) -> _Place:
        host, port, receivers, seconds = base.removeprefix(PREFIX).split("|")
        return cls(host, int(port), int(receivers), float(seconds))

    def __str__(self) -> str:
        return PREFIX + "|".join(map(str, self))


def new_base(host: str, receivers: int, seconds: float) -> str:
    """For one transfer to so many receivers, which reach this machine as `host`. The port is whichever is free."""
    with _failures(f"a store on {host}"):
        store = dist.TCPStore(host, 0, is_master=True, wait_for_workers=False, timeout=timedelta(seconds=seconds))
    base = str(_Place(host, store.port, receivers, seconds))
    _stores[base] = store
    return base


def send(groups: Iterable[Group], base: str, version: int, tied: Sequence[str] = ()) -> str:
    """See `Transport.send`. Returns when every receiver has taken the last group."""
    place, store = _Place.of(base), _stores.pop(base)
    number = tensors = size = 0
    what = f"weights of version {version} to {place.receivers} receivers"
    with _failures(what, place, store):
        store.set("version", str(version))
        peers = _meet(store, 0, place)
    for group in groups:
        entries, flat = _packed(group)
        with _failures(what, place, store):
            store.set(f"group {number}", json.dumps({"bytes": flat.nbytes, "tensors": entries}))
            _broadcast(peers, flat)
        number, tensors = number + 1, tensors + len(entries)
        size += sum(tensor.nbytes for tensor in group.values())
    with _failures(what, place, store):
        store.set(f"group {number}", json.dumps({"end": asdict(Label(version, tensors, size, tuple(tied)))}))
        peers.barrier().wait()
    return base


def receive(base: str, version: int) -> Generator[Group, None, Label]:
    """See `Transport.receive`: to the CPU, in memory that is the receiver's own. Returns the label."""
    place = _Place.of(base)
    what = f"weights of version {version} from {place.host}"
    with _failures(what, place):
        limit = timedelta(seconds=place.seconds)
        store = dist.TCPStore(place.host, place.port, is_master=False, timeout=limit)
        peers = _meet(store, store.add("came", 1), place)
        found = int(store.get("version"))
    if found != version:
        raise RolloutError(problem("weights.version", found, f"{version}, as asked for"))
    number = count = 0
    while True:
        with _failures(what, place):
            told = json.loads(store.get(f"group {number}"))
        if "end" in told:
            break
        flat = torch.empty(told["bytes"], dtype=torch.uint8)
        with _failures(what, place):
            _broadcast(peers, flat)
        group = _unpacked(told["tensors"], flat)
        number, count = number + 1, count + len(group)
        yield group
    label = Label(**{**told["end"], "tied": tuple(told["end"]["tied"])})
    if count != label.tensors:
        raise RolloutError(problem("weights.tensors", count, f"{label.tensors}, as in the label"))
    with _failures(what, place):
        peers.barrier().wait()
    return label


def forget(base: str) -> None:
    """See `Transport.forget`: nothing is left."""


@contextmanager
def _failures(what: str, place: _Place | None = None, store: dist.Store | None = None) -> Iterator[None]:
    """What torch says of a partner that is gone, or silent for too long, as an error of ours."""
    try:
        yield
    except RuntimeError as error:
        reason = re.sub(r"^\[\S+\] |\. This is typically.*", "", first_line(error))
        if store is not None and place is not None:
            reason = f"{store.add('came', 0)} came; {reason}"
        limit = f"; nothing may stand still for {place.seconds:g} s ({TIMEOUT_KEY})" if place else ""
        raise TransferError(f"{what}: {reason}{limit}") from error


def _meet(store: dist.Store, rank: int, place: _Place) -> dist.ProcessGroupGloo:
    """A connection of each with each, apart from the groups of training. Interface: GLOO_SOCKET_IFNAME."""
    members = dist.PrefixStore("members", store)
    return dist.ProcessGroupGloo(members, rank, place.receivers + 1, timedelta(seconds=place.seconds))


def _broadcast(peers: dist.ProcessGroupGloo, flat: torch.Tensor) -> None:
    for piece in flat.split(PIECE) if len(flat) else ():
        peers.broadcast(piece, 0).wait()


def _packed(group: Group) -> tuple[list[tuple[str, str, list[int], int]], torch.Tensor]:
    """Name, dtype, shape and beginning of each tensor in the bytes of all."""
    entries, end = [], 0
    for name, tensor in group.items():
        entries.append((name, str(tensor.dtype).removeprefix("torch."), list(tensor.shape), end))
        end += -(-tensor.nbytes // _ALIGNED) * _ALIGNED
    flat = torch.empty(end, dtype=torch.uint8)
    for (_, _, _, start), tensor in zip(entries, group.values(), strict=True):
        flat[start : start + tensor.nbytes].copy_(tensor.contiguous().view(-1).view(torch.uint8))
    return entries, flat


def _unpacked(entries: Sequence[tuple[str, str, list[int], int]], flat: torch.Tensor) -> Group:
    group = {}
    for name, kind, shape, start in entries:
        dtype = getattr(torch, kind)
        size = torch.Size(shape).numel() * dtype.itemsize
        group[name] = flat[start : start + size].view(dtype).view(shape)
    return group
