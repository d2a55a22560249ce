"""Models and tokenizers from a local folder, a hub id, or the package itself (`builtin://tiny/<setting>`)."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

from sdpo.config.schema import Config, ModelConfig
from sdpo.errors import ModelError, first_line, problem

if TYPE_CHECKING:
    import torch
    from transformers import PreTrainedConfig, PreTrainedModel, PreTrainedTokenizerBase

    from sdpo.tokens.chat import ChatRenderer

BUILTIN = "builtin://"
FIELD = "actor_rollout_ref.model.path"
WEIGHTS = Path(__file__).parents[1] / "embedded" / "weights"


def resolve_model_path(path: str, revision: str | None = None) -> str:
    """The local folder of a model: `builtin://tiny/hard` inside the package, a folder as it is, a hub id downloaded at
    `revision` (or taken from the hub's cache).

    Raises ModelError for an unknown built-in model, a missing local folder and a hub id that cannot be had.
    """
    if path.startswith(BUILTIN):
        folder = WEIGHTS / path.removeprefix(BUILTIN).removeprefix("tiny/")
        if not (folder / "config.json").exists():
            known = ", ".join(f"{BUILTIN}tiny/{p.parent.name}" for p in sorted(WEIGHTS.glob("*/config.json")))
            raise ModelError(problem(FIELD, path, known))
        return str(folder)
    local = Path(path).expanduser()
    if local.exists():
        return str(local)
    if path.startswith(("/", "./", "../", "~")):
        raise ModelError(problem(FIELD, path, "an existing folder or a hub id", "check the path"))
    from huggingface_hub import snapshot_download

    try:
        return snapshot_download(path, revision=revision, ignore_patterns=["*.bin", "*.pth", "*.gguf", "*.onnx"])
    except (OSError, ValueError) as error:
        raise ModelError(problem(FIELD, path, "an existing folder or a reachable hub id", first_line(error))) from error


def load_tokenizer(config: ModelConfig) -> PreTrainedTokenizerBase:
    """The model's tokenizer, padding on the left. Raises ModelError with the loader's own words."""
    from transformers import AutoTokenizer

    path = resolve_model_path(config.tokenizer_path or config.path, config.revision)
    try:
        tokenizer = AutoTokenizer.from_pretrained(path, trust_remote_code=config.trust_remote_code, padding_side="left")
    except Exception as error:  # whatever the files of a stranger make the loader do
        field = "actor_rollout_ref.model.tokenizer_path"
        raise ModelError(problem(field, path, "a folder or hub id with a tokenizer", first_line(error))) from error
    if tokenizer.pad_token_id is None:
        tokenizer.pad_token = tokenizer.eos_token
    return tokenizer


def load_chat(config: Config) -> ChatRenderer:
    """The model's chat template, found to say all that it is given. Raises ModelError for one that does not."""
    from sdpo.tokens.chat import ChatRenderer
    from sdpo.tokens.template_check import check_template

    model = config.actor_rollout_ref.model
    chat = ChatRenderer(load_tokenizer(model), config.data.apply_chat_template_kwargs)
    if not (model.tokenizer_path or model.path).startswith(BUILTIN):
        check_template(chat)
    return chat


def max_positions(config: ModelConfig) -> int | None:
    """The longest sequence the model was made for, in tokens; None when its configuration does not say."""
    from transformers import AutoConfig

    path = resolve_model_path(config.path, config.revision)
    try:
        found = AutoConfig.from_pretrained(path, trust_remote_code=config.trust_remote_code)
    except Exception as error:  # as above
        raise ModelError(problem(FIELD, path, "a model that transformers can read", first_line(error))) from error
    name = "max_position_embeddings"
    return config.override_config.get(name, getattr(found.get_text_config(), name, None))


def load_causal_lm(config: ModelConfig, dtype: torch.dtype) -> PreTrainedModel:
    """The language model in `dtype` on the CPU, in training mode. Raises ModelError with the loader's own words."""
    from transformers import AutoModelForCausalLM
    from transformers.utils import logging

    from sdpo.models.tree_plan import checkpoint_contexts

    logging.disable_progress_bar()
    path = resolve_model_path(config.path, config.revision)
    try:
        model_config = _model_config(config, path)
        model = AutoModelForCausalLM.from_pretrained(
            path,
            config=model_config,
            dtype=dtype,
            trust_remote_code=config.trust_remote_code,
            attn_implementation=config.attn_implementation,
        )
        if config.enable_gradient_checkpointing:
            options = {"use_reentrant": False, "context_fn": checkpoint_contexts}
            model.gradient_checkpointing_enable(gradient_checkpointing_kwargs=options)
    except Exception as error:  # as above
        raise ModelError(
            problem(FIELD, path, "a folder or hub id of a causal language model", first_line(error))
        ) from error
    return model.train()


def load_skeleton(config: ModelConfig) -> PreTrainedModel:
    """The model without weights: its layers, their names and shapes. Raises ModelError with the loader's own words."""
    import torch
    from transformers import AutoModelForCausalLM

    path = resolve_model_path(config.path, config.revision)
    try:
        with torch.device("meta"):
            model_config = _model_config(config, path)
            return AutoModelForCausalLM.from_config(model_config, trust_remote_code=config.trust_remote_code)
    except Exception as error:  # as above
        raise ModelError(
            problem(FIELD, path, "a folder or hub id of a causal language model", first_line(error))
        ) from error


def _model_config(config: ModelConfig, path: str) -> PreTrainedConfig:
    from transformers import AutoConfig

    found = AutoConfig.from_pretrained(path, trust_remote_code=config.trust_remote_code)
    for key, value in config.override_config.items():
        setattr(found, key, value)
    return found


def load_policy(config: Config, dtype: torch.dtype) -> PreTrainedModel:
    """`load_causal_lm`, made to score a row the same whenever it comes and whatever it comes with."""
    from sdpo.models.dropout import switch_off_dropout
    from sdpo.models.rotary import pin_rotary
    from sdpo.models.tree_attention import read_trees

    lm = load_causal_lm(config.actor_rollout_ref.model, dtype)
    pin_rotary(lm, config)
    if not config.actor_rollout_ref.model.enable_dropout:
        switch_off_dropout(lm)
    read_trees(lm)  # also for an engine, which reads none: capped scores are capped
    return lm
