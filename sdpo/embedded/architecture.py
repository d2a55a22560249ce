"""The built-in model: a Llama of about 0.55 million parameters with heads of 32, the smallest that vLLM serves."""

from __future__ import annotations

import json
from pathlib import Path
from typing import TYPE_CHECKING

from sdpo.embedded.tokenizer import MODEL_MAX_LENGTH

if TYPE_CHECKING:
    from transformers import LlamaForCausalLM, PreTrainedTokenizerFast

WIDTH, LAYERS, HEADS, HEAD_SIZE, INNER_WIDTH = 128, 3, 4, 32, 256
INITIAL_DEVIATION = 0.06  # the usual 0.02 is for wide models; at this width it costs hundreds of steps


def build_model(tokenizer: PreTrainedTokenizerFast) -> LlamaForCausalLM:
    """A freshly initialised float32 model for this tokenizer (torch's global generator decides the weights)."""
    from transformers import LlamaConfig, LlamaForCausalLM

    config = LlamaConfig(
        vocab_size=len(tokenizer),
        hidden_size=WIDTH,
        num_hidden_layers=LAYERS,
        num_attention_heads=HEADS,
        num_key_value_heads=HEADS,
        head_dim=HEAD_SIZE,
        intermediate_size=INNER_WIDTH,
        max_position_embeddings=MODEL_MAX_LENGTH,
        initializer_range=INITIAL_DEVIATION,
        tie_word_embeddings=True,
        bos_token_id=tokenizer.bos_token_id,
        eos_token_id=tokenizer.eos_token_id,
        pad_token_id=tokenizer.pad_token_id,
    )
    return LlamaForCausalLM(config)


def round_to_bfloat16(model: LlamaForCausalLM) -> None:
    """Rounds every weight to a bfloat16 value, in place: what is measured is then exactly what is stored."""
    import torch

    with torch.no_grad():
        for parameter in model.parameters():
            parameter.copy_(parameter.to(torch.bfloat16).float())


def save_model(model: LlamaForCausalLM, folder: Path) -> None:
    """Writes an ordinary Hugging Face folder. Weights are stored as bfloat16 (half the size), the configuration says
    float32, so loaders widen them, which is exact for rounded weights."""
    import torch
    from safetensors.torch import save_file

    folder.mkdir(parents=True, exist_ok=True)
    model.generation_config.update(
        do_sample=True,
        bos_token_id=model.config.bos_token_id,
        eos_token_id=model.config.eos_token_id,
        pad_token_id=model.config.pad_token_id,
    )
    model.config.save_pretrained(folder)
    settings = folder / "config.json"
    values = json.loads(settings.read_text()) | {"architectures": ["LlamaForCausalLM"], "dtype": "float32"}
    settings.write_text(json.dumps(values, indent=2) + "\n")
    model.generation_config.save_pretrained(folder)
    tensors = {
        name: tensor.to(torch.bfloat16) for name, tensor in model.state_dict().items() if name != "lm_head.weight"
    }
    save_file(tensors, folder / "model.safetensors", metadata={"format": "pt"})
    (folder / "model.safetensors").chmod(0o644)  # the writer makes it private to the user
