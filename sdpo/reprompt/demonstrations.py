"""Which sibling's solution each sample of a group is shown, or the one stored with the row."""

from __future__ import annotations

import functools
import random
from collections.abc import Sequence

from sdpo.algorithms.rows import is_success
from sdpo.config.schema import SelfDistillationConfig
from sdpo.errors import ConfigError, problem
from sdpo.records import Group, Prompt, Sample
from sdpo.tokens.think import strip_think

CHOICES = ("first", "random", "shortest")


def demonstration_text(sample: Sample, config: SelfDistillationConfig) -> str:
    """The response as it is shown to the teacher."""
    text = sample.response_text
    return _answer(text) if config.remove_thinking_from_demonstration else text


_answer = functools.lru_cache(maxsize=256)(strip_think)  # asked for by each sibling


def stored_solution(prompt: Prompt, config: SelfDistillationConfig) -> str | None:
    """The row's own, for samples that no sibling demonstrates for; None where it has none."""
    text = strip_think(prompt.solution) if config.remove_thinking_from_demonstration else prompt.solution
    return text if text.strip() else None


def may_serve(sample: Sample, config: SelfDistillationConfig) -> bool:
    """A complete success with something to show. A truncated or aborted response never serves."""
    complete = sample.finish_reason == "stop"
    return (
        complete
        and is_success(sample, config.success_reward_threshold)
        and bool(demonstration_text(sample, config).strip())
    )


def route(group: Group, config: SelfDistillationConfig, rng: random.Random | None = None) -> list[int | None]:
    """For each sample, the position in `group.samples` of the sibling that demonstrates for it, or None.

    `first`: the earliest success; `shortest`: the one with the fewest response tokens, the earliest of equals;
    `random`: drawn from `rng` for each sample. With `dont_reprompt_on_self_success` a sample never demonstrates for
    itself.

    Example: rewards [1, 1, 0, 0] give [1, 0, 0, 0]; [1, 0, 0, 0] give [None, 0, 0, 0].
    """
    successes = [position for position, sample in enumerate(group.samples) if may_serve(sample, config)]
    sources: list[int | None] = []
    for position in range(len(group.samples)):
        itself_too = not config.dont_reprompt_on_self_success
        candidates = [source for source in successes if itself_too or source != position]
        sources.append(_choose(candidates, group.samples, config.demonstration_choice, rng) if candidates else None)
    return sources


def _choose(candidates: Sequence[int], samples: Sequence[Sample], choice: str, rng: random.Random | None) -> int:
    if choice == "first":
        return candidates[0]
    if choice == "shortest":
        return min(candidates, key=lambda position: len(samples[position].response_ids))
    if choice == "random":
        return (rng or random.Random(0)).choice(candidates)
    field = "actor_rollout_ref.actor.self_distillation.demonstration_choice"
    raise ConfigError(problem(field, choice, " | ".join(CHOICES)))
