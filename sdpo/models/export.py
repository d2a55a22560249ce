"""The trained policy as an ordinary Hugging Face folder that any tool loads."""

from __future__ import annotations

from pathlib import Path

import torch
from transformers import PreTrainedModel

from sdpo.config.schema import ModelConfig
from sdpo.models.load import load_tokenizer


def export_hf(lm: PreTrainedModel, state: dict[str, torch.Tensor], config: ModelConfig, folder: str) -> None:
    """Writes config, tokenizer (with its chat template) and `state` as safetensors, in the dtype of the weights."""
    Path(folder).mkdir(parents=True, exist_ok=True)
    lm.save_pretrained(folder, state_dict=state)
    load_tokenizer(config).save_pretrained(folder)
