"""The learning rate of each rollout batch."""

from __future__ import annotations

import math

from torch.optim import Optimizer

from sdpo.config.schema import OptimConfig


class Schedule:
    """Linear warm-up, then constant; or constant for `lr_stable_steps` and a cosine down to `min_lr_ratio`.

    It counts rollout batches, as verl does: how many optimizer steps a batch makes, and whether any was left out, does
    not move it, so that it ends with the run.
    """

    def __init__(self, optimizer: Optimizer, config: OptimConfig, total_batches: int) -> None:
        self._optimizer, self._config, self._total = optimizer, config, total_batches
        self._warmup = config.lr_warmup_steps
        if self._warmup < 0:
            self._warmup = int(config.lr_warmup_steps_ratio * total_batches)
        self.move_to(0)

    def move_to(self, batches: int) -> None:
        """Sets the rate that follows after so many batches."""
        self.batches = batches
        self.rate = self._config.lr * self._factor(batches)
        for group in self._optimizer.param_groups:
            group["lr"] = self.rate

    def _factor(self, batches: int) -> float:
        if batches < self._warmup:
            return (batches + 1) / self._warmup
        if self._config.warmup_style == "constant":
            return 1.0
        start = self._warmup + self._config.lr_stable_steps
        length = self._config.lr_decay_steps
        if length < 0:
            length = self._total - start
        progress = min(1.0, max(0, batches - start) / max(1, length))
        floor = self._config.min_lr_ratio
        return floor + (1 - floor) * 0.5 * (1 + math.cos(math.pi * progress))
