"""The trained policy as an ordinary Hugging Face folder that any tool loads."""

from __future__ import annotations

import shutil
from pathlib import Path

import torch
from safetensors import SafetensorError
from transformers import PreTrainedModel

from sdpo.config.schema import ModelConfig
from sdpo.errors import ModelError
from sdpo.models.load import first_line, load_tokenizer


def export_hf(lm: PreTrainedModel, state: dict[str, torch.Tensor], config: ModelConfig, folder: str) -> None:
    """Writes config, tokenizer (with its chat template) and `state` as safetensors, in the dtype of the weights. The
    folder appears whole or not at all; one that is there is replaced. Raises ModelError when the disk refuses."""
    final = Path(folder)
    temporary = final.with_name(f".tmp_{final.name}")
    try:
        shutil.rmtree(temporary, ignore_errors=True)
        temporary.mkdir(parents=True)
        lm.save_pretrained(temporary, state_dict=state)
        load_tokenizer(config).save_pretrained(temporary)
        shutil.rmtree(final, ignore_errors=True)
        temporary.rename(final)
    except (OSError, SafetensorError) as error:
        reason = getattr(error, "strerror", None) or first_line(error)
        raise ModelError(f"{final}: the model could not be written ({reason}); make room, then resume") from error
    finally:
        shutil.rmtree(temporary, ignore_errors=True)
