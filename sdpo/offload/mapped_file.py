"""Tensors in a file that is mapped into memory: they take memory while they are used, and disk otherwise."""

from __future__ import annotations

import mmap
import os
import tempfile
from collections.abc import Iterable, Sequence

import torch

from sdpo.errors import ModelError, first_line


class MappedFile:
    """`tensors`: zeros, one for each of `like`, of its shape, dtype and order of dimensions, each from a page of its
    own on, in a file without a name in `folder`. The last process that has the file open takes it away, however it
    ends.

    They are ordinary CPU tensors, to be read and written: the system brings their pages into memory when they are
    touched, and may keep what has been given back in its own cache while memory is free. Raises ModelError, beginning
    with `setting` and saying `whose` they are, when the disk cannot hold them.
    """

    def __init__(self, like: Sequence[torch.Tensor], folder: str, setting: str, whose: str) -> None:
        size = sum(_whole_pages(tensor.nbytes) for tensor in like)
        try:
            os.makedirs(folder, exist_ok=True)
            with tempfile.TemporaryFile(dir=folder) as file:
                os.posix_fallocate(file.fileno(), 0, size)  # a mapped file that cannot grow ends the process
                self._map = mmap.mmap(file.fileno(), size)
        except OSError as error:
            wanted = f"{setting}: {whose} {size / 2**20:.0f} MiB do not fit in {folder}"
            raise ModelError(f"{wanted}: {first_line(error)}") from error
        self._start = torch.frombuffer(self._map, dtype=torch.uint8).data_ptr()
        self.tensors: list[torch.Tensor] = []
        end = 0
        for tensor in like:
            made = torch.frombuffer(self._map, dtype=tensor.dtype, count=tensor.numel(), offset=end)
            layout = torch.empty_like(tensor, device="meta")  # without the gaps that a view may have
            self.tensors.append(made.as_strided(layout.shape, layout.stride()))
            end += _whole_pages(tensor.nbytes)

    def give_back(self, tensors: Iterable[torch.Tensor]) -> None:
        """Takes pages of `tensors`, of this file, out of the process's memory. Their contents stay, and come back when
        they are next touched."""
        for tensor in tensors:
            start = tensor.data_ptr() - self._start
            self._map.madvise(mmap.MADV_DONTNEED, start, _whole_pages(tensor.nbytes))


def _whole_pages(size: int) -> int:
    return -(-size // mmap.PAGESIZE) * mmap.PAGESIZE
