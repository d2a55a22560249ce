"""Weights of a module in a file that is mapped into memory: what has been read leaves memory again."""

from __future__ import annotations

import mmap
import os
import tempfile
from collections.abc import Iterable

import torch
from torch import nn

from sdpo.errors import ModelError
from sdpo.models.load import first_line


class FileWeights:
    """Moves the parameters of `module` to a file without a name in `folder`; the last process that has it open takes
    it away, however it ends.

    The parameters stay ordinary tensors, to be read and written: the system brings their pages into memory when they
    are touched. After a layer's forward pass its pages are given back; the system may keep them in its own cache while
    memory is free. Raises ModelError when the disk cannot hold them.
    """

    def __init__(self, module: nn.Module, layers: Iterable[nn.Module], folder: str) -> None:
        sizes = [_whole_pages(p.nbytes) for p in module.parameters()]
        try:
            os.makedirs(folder, exist_ok=True)
            with tempfile.TemporaryFile(dir=folder) as file:
                os.posix_fallocate(file.fileno(), 0, sum(sizes))  # a mapped file that cannot grow ends the process
                self._map = mmap.mmap(file.fileno(), sum(sizes))
        except OSError as error:
            wanted = f"teacher_offload: the teacher's {sum(sizes) / 2**20:.0f} MiB do not fit in {folder}"
            raise ModelError(f"{wanted}: {first_line(error)}") from error
        self._start = torch.frombuffer(self._map, dtype=torch.uint8).data_ptr()
        end = 0
        for parameter, size in zip(module.parameters(), sizes, strict=True):
            mapped = torch.frombuffer(self._map, dtype=parameter.dtype, count=parameter.numel(), offset=end)
            parameter.data = mapped.view(parameter.shape).copy_(parameter.data)
            self.give_back([parameter])
            end += size
        for layer in layers:
            layer.register_forward_hook(lambda done, *_: self.give_back(done.parameters()))

    def give_back(self, parameters: Iterable[torch.Tensor]) -> None:
        """Takes pages out of this process's memory. Their contents stay, and come back when they are next touched."""
        for parameter in parameters:
            start = parameter.data_ptr() - self._start
            self._map.madvise(mmap.MADV_DONTNEED, start, _whole_pages(parameter.nbytes))


def _whole_pages(size: int) -> int:
    return -(-size // mmap.PAGESIZE) * mmap.PAGESIZE
