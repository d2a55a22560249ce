"""What each algorithm is, as plain data. The only place in the program that names one; loads no torch.

Limits, validation, runs and reports read descriptors; `build_algorithm` imports the class behind `implementation`.
"""

from __future__ import annotations

import importlib
from dataclasses import dataclass
from typing import TYPE_CHECKING, Protocol

from sdpo.errors import ConfigError, problem

if TYPE_CHECKING:
    from sdpo.config.schema import Config
    from sdpo.records import Group, RoutedRows


class Algorithm(Protocol):
    """One algorithm, on the controller: which samples are trained on, and with which components of the loss."""

    def describe(self) -> str:
        """One line for the log: what is optimised."""
        ...

    def route(self, groups: list[Group], step: int) -> RoutedRows:
        """Graded groups of one rollout batch -> rows with their components."""
        ...


@dataclass(frozen=True)
class Descriptor:
    """`components`: of the loss (`records.COMPONENTS`) that its rows may carry."""

    name: str  # value of actor_rollout_ref.actor.policy_loss.loss_mode
    label: str  # for people
    components: tuple[str, ...]
    implementation: str  # module:class, made with (config, reprompt builder)
    compares_group: bool  # does a reward say nothing without the others of its group
    sequence_ratio: bool = False  # is PPO's ratio that of the response (GSPO) instead of each token's

    @property
    def needs_teacher(self) -> bool:
        return "distillation" in self.components


ALGORITHMS = {
    descriptor.name: descriptor
    for descriptor in (
        Descriptor("sdpo", "SDPO", ("distillation",), "sdpo.algorithms.sdpo:Sdpo", compares_group=False),
        Descriptor("vanilla", "GRPO", ("policy_gradient",), "sdpo.algorithms.grpo:Grpo", compares_group=True),
        Descriptor(
            "gspo", "GSPO", ("policy_gradient",), "sdpo.algorithms.grpo:Grpo", compares_group=True, sequence_ratio=True
        ),
        Descriptor(
            "srpo", "SRPO", ("distillation", "policy_gradient"), "sdpo.algorithms.srpo:Srpo", compares_group=False
        ),
    )
}


def descriptor_of(config: Config) -> Descriptor:
    """Of the algorithm that the configuration names. Raises ConfigError when there is none of that name."""
    field, mode = "actor_rollout_ref.actor.policy_loss.loss_mode", config.actor_rollout_ref.actor.policy_loss.loss_mode
    if mode not in ALGORITHMS:
        raise ConfigError(problem(field, mode, " | ".join(ALGORITHMS), "vanilla is GRPO"))
    return ALGORITHMS[mode]


def build_algorithm(config: Config, reprompts: object) -> Algorithm:
    """`reprompts`: the controller's reprompt builder."""
    module, _, name = descriptor_of(config).implementation.partition(":")
    return getattr(importlib.import_module(module), name)(config, reprompts)
