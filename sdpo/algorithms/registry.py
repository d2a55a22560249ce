"""Name -> algorithm. The only place in the program that asks which one is running."""

from __future__ import annotations

from sdpo.algorithms.grpo import Grpo
from sdpo.algorithms.scores import Algorithm
from sdpo.algorithms.sdpo import RepromptSource, Sdpo
from sdpo.config.schema import Config
from sdpo.errors import ConfigError, problem

ALGORITHMS = {"sdpo": Sdpo, "vanilla": Grpo}


def build_algorithm(config: Config, reprompt_builder: RepromptSource | None) -> Algorithm:
    """By `actor_rollout_ref.actor.policy_loss.loss_mode`. Workers pass no builder and use only `loss`."""
    mode = config.actor_rollout_ref.actor.policy_loss.loss_mode
    if mode not in ALGORITHMS:
        field = "actor_rollout_ref.actor.policy_loss.loss_mode"
        raise ConfigError(problem(field, mode, " or ".join(ALGORITHMS), "vanilla is GRPO"))
    return ALGORITHMS[mode](config, reprompt_builder)
