"""Dropout of every kind off, while the model stays in training mode."""

from __future__ import annotations

import re
from collections.abc import Iterator
from contextlib import contextmanager

from torch import nn
from transformers import PreTrainedConfig, PreTrainedModel

_RATE = re.compile(r"drop|jitter")


def switch_off_dropout(lm: PreTrainedModel) -> None:
    """Sets all rates to 0: attention, residual, embedding and layer dropout, the noise of a router.

    Not the mode: gradient checkpointing is on in training mode only, and some models take another, not differentiable
    path outside of it. What a model still draws is found by `trial.check_scores`.
    """
    holders = {id(holder): holder for holder in [*lm.modules(), *_configs(lm)]}.values()
    lm.configured_rates = []
    for holder in holders:
        if isinstance(holder, nn.modules.dropout._DropoutNd):
            holder.p = 0.0
        for name, value in list(vars(holder).items()):
            if type(value) is float and _RATE.search(name):
                setattr(holder, name, 0.0)
                if isinstance(holder, PreTrainedConfig):
                    lm.configured_rates.append((holder, name, value))


@contextmanager
def configured_rates(lm: PreTrainedModel) -> Iterator[None]:
    """Within, the model's configuration says what it came with: a folder that is written keeps it."""
    rates = getattr(lm, "configured_rates", [])
    for config, name, value in rates:
        setattr(config, name, value)
    try:
        yield
    finally:
        for config, name, _ in rates:
            setattr(config, name, 0.0)


@contextmanager
def evaluating(module: nn.Module) -> Iterator[None]:
    """Without dropout and gradient checkpointing; the mode is put back after."""
    training = module.training
    module.eval()
    try:
        yield
    finally:
        module.train(training)


def _configs(lm: PreTrainedModel) -> Iterator[PreTrainedConfig]:
    for module in lm.modules():
        yield from (value for value in vars(module).values() if isinstance(value, PreTrainedConfig))
