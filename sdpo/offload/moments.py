"""Where AdamW's two moments are between two optimizer steps: `fsdp_config.optimizer_offload`.

They are needed in the step alone. In the passes, which need most memory, they only take room.
"""

from __future__ import annotations

from collections.abc import Iterator

import torch
from torch.optim import Optimizer

from sdpo.offload.mapped_file import MappedFile

NAMES = ("exp_avg", "exp_avg_sq")


class Moments:
    """Those of `optimizer`, which makes them itself in its first step. These stay where it has made them."""

    def __init__(self, optimizer: Optimizer) -> None:
        self.optimizer = optimizer

    def onload(self) -> None:
        """Called before an optimizer step: they are where the step computes."""

    def offload(self) -> None:
        """Called after an optimizer step, and after a checkpoint was written or read."""

    def _made(self) -> Iterator[tuple[torch.Tensor, str, dict[str, torch.Tensor]]]:
        """(parameter, name, the state in which the moment has this name) of all there are."""
        for parameter, state in self.optimizer.state.items():
            for name in NAMES:
                if name in state:
                    yield parameter, name, state


class MomentsInFile(Moments):
    """On a CPU: in a file in `folder`, made now, for all parameters of `optimizer`. The step brings the pages into
    memory. Raises ModelError when the disk cannot hold the file."""

    def __init__(self, optimizer: Optimizer, folder: str) -> None:
        super().__init__(optimizer)
        parameters = [p for group in optimizer.param_groups for p in group["params"]]
        keys = [(p, name) for p in parameters for name in NAMES]
        self._file = MappedFile([p for p, _ in keys], folder, "optimizer_offload", "the moments'")
        self._mapped = dict(zip(keys, self._file.tensors, strict=True))

    def offload(self) -> None:
        for parameter, name, state in self._made():
            mapped = self._mapped[parameter, name]
            if state[name] is not mapped:  # the optimizer's own tensor: of its first step, or of a checkpoint
                state[name] = mapped.copy_(state[name])
            self._file.give_back([mapped])


class MomentsInCpuMemory(Moments):
    """Beside a GPU: in pinned CPU memory, each rank its own shards."""

    def onload(self) -> None:
        for parameter, name, state in self._made():
            state[name] = state[name].to(parameter.device, non_blocking=True)

    def offload(self) -> None:
        for _, name, state in self._made():
            state[name] = state[name].to("cpu", non_blocking=True)  # pinned, because nobody waits for the copy
        torch.cuda.synchronize()  # from here on a checkpoint may read them


def place_moments(optimizer: Optimizer, offload: bool, device: str, folder: str) -> Moments:
    """As `optimizer_offload` says: `folder` is the run's. Raises ModelError when its disk cannot hold them."""
    if not offload:
        return Moments(optimizer)
    return MomentsInFile(optimizer, folder) if device == "cpu" else MomentsInCpuMemory(optimizer)
