"""Which prompts each training step uses: a pure function of (seed, step), so the step number is all a resume needs."""

from __future__ import annotations

import random

from sdpo.errors import DataError, problem


class PromptOrder:
    """Batches of prompt positions, by step number from 1.

    Every epoch is a new permutation from (seed, epoch), or the given order without `shuffle`. Batches never cross an
    epoch; the prompts that do not fill its last batch are left out of it (other ones each epoch when shuffled).

    Example: 4 prompts, batch size 2: steps 1 and 2 are the first epoch, steps 3 and 4 the second.

    Raises DataError when there are fewer prompts than one batch holds: the run would end without a step.
    """

    def __init__(self, num_prompts: int, batch_size: int, seed: int = 0, shuffle: bool = True) -> None:
        if batch_size < 1:
            raise DataError(problem("data.train_batch_size", batch_size, "a number >= 1"))
        if num_prompts < batch_size:
            fix = "the data set is smaller than one batch: lower the batch size or add rows"
            raise DataError(problem("data.train_batch_size", batch_size, f"at most the {num_prompts} prompts", fix))
        self.num_prompts = num_prompts
        self.batch_size = batch_size
        self.steps_per_epoch = num_prompts // batch_size
        self._seed = seed
        self._shuffle = shuffle
        self._cached: tuple[int, list[int]] = (-1, [])

    def total_steps(self, total_epochs: int, total_training_steps: int | None = None) -> int:
        """Steps of the whole run; an explicit number of steps wins over the epochs."""
        return self.steps_per_epoch * total_epochs if total_training_steps is None else total_training_steps

    def epoch_of(self, step: int) -> int:
        """Epoch of a step, from 0."""
        if step < 1:
            raise ValueError(f"steps count from 1, got {step}")
        return (step - 1) // self.steps_per_epoch

    def batch(self, step: int) -> list[int]:
        """Positions of the `batch_size` prompts of a step, all different."""
        order = self._permutation(self.epoch_of(step))
        start = (step - 1) % self.steps_per_epoch * self.batch_size
        return order[start : start + self.batch_size]

    def _permutation(self, epoch: int) -> list[int]:
        if self._cached[0] != epoch:
            order = list(range(self.num_prompts))
            if self._shuffle:
                random.Random(f"prompt-order:{self._seed}:{epoch}").shuffle(order)
            self._cached = (epoch, order)
        return self._cached[1]
