"""What is evaluated: a model, or a step of a run."""

from __future__ import annotations

import copy
from dataclasses import dataclass
from pathlib import Path

from sdpo.config.adapters import trains_adapter
from sdpo.config.compose import from_yaml
from sdpo.config.schema import Config, ModelConfig
from sdpo.errors import ConfigError, problem
from sdpo.tracking.history import CONFIG_FILE, MODEL_BEST

MODEL = "model"  # the weights of a run's last step
MAX_DIFF = 0.5  # nats that merging an adapter may cost


@dataclass(frozen=True)
class Subject:
    name: str
    model: ModelConfig


def is_run(text: str) -> bool:
    return (run_folder(text)[0] / CONFIG_FILE).is_file()


def run_folder(text: str) -> tuple[Path, str]:
    """RUN or RUN@STEP: the folder, and the step (last without one)."""
    folder, at, step = text.rpartition("@")
    return (Path(folder), step) if at and (Path(folder) / CONFIG_FILE).is_file() else (Path(text), "last")


def find(text: str, config: Config) -> Subject:
    """A run's folder (RUN, RUN@best, RUN@40), or a model as `actor_rollout_ref.model.path` takes it. `config` says how
    a model that is no run's is loaded. An adapter is merged into copies of its base's weights (RUN/export)."""
    folder, step = run_folder(text)
    if not is_run(text):
        return Subject(text, _plain(copy.copy(config.actor_rollout_ref.model), text))
    if step not in ("last", "best") and not step.isdecimal():
        raise ConfigError(problem(text, step, "RUN, RUN@best, RUN@last or RUN@STEP, a number"))
    model = from_yaml(folder / CONFIG_FILE).actor_rollout_ref.model
    stored = folder / {"last": MODEL, "best": MODEL_BEST}.get(step, "")
    if trains_adapter(model) or stored == folder or not (stored / "config.json").is_file():
        from sdpo.training.export_step import export_step

        stored = export_step(folder, step, trains_adapter(model), "auto", None, MAX_DIFF).folder
    return Subject(text, _plain(model, str(stored)))


def _plain(model: ModelConfig, path: str) -> ModelConfig:
    """Whole weights at `path`, with a tokenizer beside them."""
    if path != model.path:
        model.path, model.revision, model.tokenizer_path = path, None, None
    model.lora_rank, model.lora_adapter_path = 0, None
    return model
