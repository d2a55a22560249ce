"""How long a model's sequences may be, and the lengths that follow from it where nobody set them."""

from __future__ import annotations

import json
import logging
from collections.abc import Collection
from pathlib import Path
from typing import Any

from sdpo.algorithms.registry import descriptor_of
from sdpo.config import fields
from sdpo.config.schema import Config
from sdpo.errors import ConfigError, problem

log = logging.getLogger(__name__)

PROMPT, RESPONSE = "data.max_prompt_length", "data.max_response_length"
REPROMPT = "actor_rollout_ref.actor.self_distillation.max_reprompt_len"
MODELS = "the model's positions (its max_position_embeddings)"
_KEYS = ("max_position_embeddings", "n_positions")


def positions_of(path: str, revision: str | None, overridden: dict[str, Any]) -> int | None:
    """What the model's config.json says, in a folder or in the hub's cache; None where there is none, or it does not
    say."""
    if _KEYS[0] in overridden:
        return int(overridden[_KEYS[0]])
    file = _config_file(path, revision)
    try:
        found = json.loads(file.read_text(encoding="utf-8")) if file else {}
    except (OSError, ValueError):  # told when the model is loaded
        return None
    places = [found, found.get("text_config")] if isinstance(found, dict) else []
    numbers = (place.get(key) for place in places if isinstance(place, dict) for key in _KEYS)
    return next((number for number in numbers if isinstance(number, int) and number > 0), None)


def _config_file(path: str, revision: str | None) -> Path | None:
    if not path or "://" in path:
        return None
    folder = Path(path).expanduser()
    if folder.exists() or path.startswith(("/", ".", "~")) or path.count("/") > 1:
        return folder / "config.json" if (folder / "config.json").is_file() else None
    from huggingface_hub import try_to_load_from_cache
    from huggingface_hub.errors import HFValidationError

    try:
        found = try_to_load_from_cache(path, "config.json", revision=revision)
    except HFValidationError:  # no id of the hub: refused elsewhere
        return None
    return Path(found) if isinstance(found, str) else None


def fetch(config: Config) -> bool:
    """Gets the config.json of a hub model that is not in the cache. False: it was there, or cannot be had."""
    model = config.actor_rollout_ref.model
    if "://" in model.path or not model.path or Path(model.path).exists() or model.path.startswith(("/", ".", "~")):
        return False
    if _config_file(model.path, model.revision) is not None:
        return False
    import httpx
    from huggingface_hub import hf_hub_download

    try:
        hf_hub_download(model.path, "config.json", revision=model.revision)
    except (OSError, ValueError, httpx.HTTPError):  # told when the model is loaded
        return False
    return True


def fitting(
    values: dict[str, int], given: Collection[str], positions: int | None, needs_teacher: bool
) -> dict[str, int]:
    """New values of the lengths that are not among `given`, so that they fit into the model's positions. `values`: the
    present ones, by key."""
    prompt, response, reprompt = values[PROMPT], values[RESPONSE], values[REPROMPT]
    if REPROMPT not in given and prompt > reprompt:
        reprompt = prompt + response
    needed = (max(prompt, reprompt) if needs_teacher else prompt) + response
    if positions is not None and needed > positions:
        told = [values[key] for key in (PROMPT, REPROMPT) if key in given]
        if RESPONSE not in given:
            response = min(response, positions - max(told) if told else positions // 2)
        if REPROMPT not in given:
            reprompt = min(reprompt, positions - response)
        if PROMPT not in given:
            prompt = min(prompt, (reprompt if REPROMPT in given else positions - response) // 2)
    lengths = {PROMPT: prompt, RESPONSE: response, REPROMPT: reprompt}
    if min(lengths.values()) < 1:  # what was set leaves no room: refused, with what was set
        return {}
    followed = {key: value for key, value in lengths.items() if value != values[key] and key not in given}
    if followed and positions is not None:
        told_as = ", ".join(f"{key}={value}" for key, value in followed.items())
        log.warning("%s: not set, taken from the model's %d positions", told_as, positions)
    return followed


def refusals(config: Config, positions: int | None) -> list[ConfigError]:
    """Prompt and response, or the teacher's reprompt and the response, can be longer than the model's positions."""
    if positions is None:
        return []
    response = config.data.max_response_length
    if response >= positions:
        return [ConfigError(problem(RESPONSE, response, f"below {positions}, {MODELS}"))]
    found = []
    for key in (PROMPT, REPROMPT) if descriptor_of(config).needs_teacher else (PROMPT,):
        length = fields.get(config, key)
        if length + response > positions:
            allowed = f"at most {positions - response}: {MODELS} are {positions}"
            found.append(ConfigError(problem(key, length, allowed, f"lower it, or {RESPONSE}={response}")))
    return found
