"""From the configuration to environments: by name, or a class of the user's file."""

from __future__ import annotations

import importlib
from collections.abc import Callable
from functools import partial
from typing import Any

from sdpo.config.schema import Config
from sdpo.environments.episode import Environment
from sdpo.errors import ConfigError, problem
from sdpo.grading.user_code import load_function

FIELD = "actor_rollout_ref.rollout.environment"
ENVIRONMENTS = {
    "single_turn": "sdpo.environments.single_turn:SingleTurn",
    "python": "sdpo.environments.python_tool:PythonTool",
}


def environment_class(config: Config) -> Any:
    """Raises ConfigError when there is none of that name."""
    settings = config.actor_rollout_ref.rollout.environment
    if settings.path is not None:
        return load_function(settings.path, settings.name, FIELD)
    if settings.name not in ENVIRONMENTS:
        known = " | ".join(ENVIRONMENTS)
        raise ConfigError(problem(f"{FIELD}.name", settings.name, known, f"or a class of the file in {FIELD}.path"))
    module, _, name = ENVIRONMENTS[settings.name].partition(":")
    return getattr(importlib.import_module(module), name)


def environment_maker(config: Config) -> Callable[[], Environment]:
    """Makes one instance per episode. A class with a `maker(config, **settings)` shares what is expensive."""
    found, settings = environment_class(config), dict(config.actor_rollout_ref.rollout.environment.settings)
    name = getattr(found, "__name__", type(found).__name__)
    try:
        make = found.maker(config, **settings) if hasattr(found, "maker") else partial(found, **settings)
        first = make()
    except TypeError as error:
        raise ConfigError(problem(f"{FIELD}.settings", settings, f"arguments of {name}", str(error))) from error
    if not callable(getattr(first, "run", None)):
        raise ConfigError(problem(f"{FIELD}.name", name, "a class with `async def run(prompt, policy, grade)`"))
    return make
