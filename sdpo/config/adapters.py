"""Settings of an adapter that is trained instead of the weights. What a model says of them is asked in
`models.adapter_files`."""

from __future__ import annotations

from pathlib import Path

from sdpo.algorithms.registry import descriptor_of
from sdpo.config.schema import Config, ModelConfig
from sdpo.errors import ConfigError, problem

MODEL = "actor_rollout_ref.model"
DISTILL = "actor_rollout_ref.actor.self_distillation"
ROLLOUT_LORA = "actor_rollout_ref.rollout.lora"
FILES = ("adapter_config.json", "adapter_model.safetensors")  # of a folder in PEFT's format
LARGEST_VLLM_RANK = 512
MOVING = ("ema", "snapshot")  # teachers that are an average; a snapshot's goes all the way, at every K-th batch


def trains_adapter(model: ModelConfig) -> bool:
    return model.lora_rank > 0 or model.lora_adapter_path is not None


def sends_adapter(config: Config) -> bool:
    """Whether engines get the adapter alone, and multiply with it."""
    return trains_adapter(config.actor_rollout_ref.model) and config.actor_rollout_ref.rollout.lora == "adapter"


def needs_reference(config: Config) -> bool:
    """Whether the policy that the run starts from is asked later on, beside any teacher."""
    return config.actor_rollout_ref.actor.use_kl_loss or config.algorithm.use_kl_in_reward


def check_adapter(config: Config) -> None:
    """Raises ConfigError for settings that do not go together."""
    model, settings = config.actor_rollout_ref.model, config.actor_rollout_ref.actor.self_distillation
    if not trains_adapter(model):
        _check_none(config)
        return
    if not 0 <= model.lora_dropout < 1:
        raise ConfigError(problem(f"{MODEL}.lora_dropout", model.lora_dropout, "a number in [0, 1)"))
    if model.lora_adapter_path is not None:
        folder = Path(model.lora_adapter_path)
        for name in FILES:
            if not (folder / name).is_file():
                fix = f"there is no {name}; is it a PEFT folder?"
                raise ConfigError(problem(f"{MODEL}.lora_adapter_path", str(folder), " and ".join(FILES), fix))
    rollout = config.actor_rollout_ref.rollout
    if rollout.lora == "adapter" and rollout.name != "vllm":
        raise ConfigError(problem(ROLLOUT_LORA, "adapter", f"merged with rollout.name={rollout.name}"))
    if descriptor_of(config).needs_teacher:
        _check_teacher(config)
    elif settings.teacher_lora_rank is not None:
        raise ConfigError(problem(f"{DISTILL}.teacher_lora_rank", settings.teacher_lora_rank, "null without a teacher"))


def _check_none(config: Config) -> None:
    """What would do nothing."""
    model, settings = config.actor_rollout_ref.model, config.actor_rollout_ref.actor.self_distillation
    rollout = config.actor_rollout_ref.rollout
    said = {
        ROLLOUT_LORA: (rollout.lora, "merged"),
        f"{MODEL}.lora_dropout": (model.lora_dropout, 0),
        f"{MODEL}.use_rslora": (model.use_rslora, False),
        f"{MODEL}.use_dora": (model.use_dora, False),
        f"{DISTILL}.teacher_lora_rank": (settings.teacher_lora_rank, None),
    }
    for key, (value, none) in said.items():
        if value != none:
            allowed = f"{'null' if none is None else str(none).lower()} with {MODEL}.lora_rank=0"
            raise ConfigError(problem(key, value, allowed, "there is no adapter: set lora_rank"))


def _check_teacher(config: Config) -> None:
    settings = config.actor_rollout_ref.actor.self_distillation
    kind, shared = settings.teacher_regularization, "with an adapter the teacher's weights are the student's"
    if config.actor_rollout_ref.ref.placement != "colocated":
        field = "actor_rollout_ref.ref.placement"
        raise ConfigError(problem(field, config.actor_rollout_ref.ref.placement, "colocated with an adapter", shared))
    for name, plain in (("teacher_offload", False), ("teacher_master_dtype", "float32")):
        value = getattr(settings, name)
        if value != plain:
            raise ConfigError(problem(f"{DISTILL}.{name}", value, f"{str(plain).lower()} with an adapter", shared))
    if kind not in MOVING and settings.teacher_lora_rank is not None:
        allowed = f"null with teacher_regularization={kind}"
        raise ConfigError(problem(f"{DISTILL}.teacher_lora_rank", settings.teacher_lora_rank, allowed))
