"""A random Llama of a hundred thousand parameters, as a folder whose generation_config.json is full of traps."""

from __future__ import annotations

import json
from pathlib import Path

import pytest


@pytest.fixture(scope="session")
def llama_folder(tmp_path_factory: pytest.TempPathFactory) -> str:
    import torch
    from transformers import LlamaConfig, LlamaForCausalLM

    folder = tmp_path_factory.mktemp("llama")
    torch.manual_seed(0)
    config = LlamaConfig(
        vocab_size=64,
        hidden_size=64,
        intermediate_size=128,
        num_hidden_layers=2,
        num_attention_heads=2,
        num_key_value_heads=1,
        max_position_embeddings=512,
        bos_token_id=1,
        eos_token_id=2,
        pad_token_id=2,
        tie_word_embeddings=True,
        initializer_range=0.15,
    )
    LlamaForCausalLM(config).save_pretrained(folder)
    traps = {"temperature": 0.6, "top_p": 0.8, "top_k": 20, "repetition_penalty": 1.05, "do_sample": True}
    Path(folder, "generation_config.json").write_text(json.dumps(traps | {"eos_token_id": [2, 7]}))
    return str(folder)


@pytest.fixture
def llama(llama_folder: str):
    """A fresh copy of the model of the folder, float32."""
    import torch
    from transformers import LlamaForCausalLM

    return LlamaForCausalLM.from_pretrained(llama_folder, dtype=torch.float32).eval()
