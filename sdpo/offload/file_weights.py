"""Weights of a module in a file that is mapped into memory: what has been read leaves memory again."""

from __future__ import annotations

from collections.abc import Iterable

import torch
from torch import nn

from sdpo.offload.mapped_file import MappedFile


class FileWeights:
    """Moves the parameters of `module` to a file without a name in `folder` (`models.mapped_file.MappedFile`).

    The parameters stay ordinary tensors, to be read and written. After a layer's forward pass its pages are given back.
    Raises ModelError when the disk cannot hold them.
    """

    def __init__(self, module: nn.Module, layers: Iterable[nn.Module], folder: str) -> None:
        parameters = list(module.parameters())
        self._file = MappedFile(parameters, folder, "teacher_offload", "the teacher's")
        for parameter, mapped in zip(parameters, self._file.tensors, strict=True):
            parameter.data = mapped.copy_(parameter.data)
            self.give_back([parameter])
        for layer in layers:
            layer.register_forward_hook(lambda done, *_: self.give_back(done.parameters()))

    def give_back(self, parameters: Iterable[torch.Tensor]) -> None:
        """Takes pages out of this process's memory. Their contents stay, and come back when they are next touched."""
        self._file.give_back(parameters)
