"""The one-file example as a module, and small models for comparisons between two implementations."""

from __future__ import annotations

import importlib.util
import random
import sys

import pytest

VOCAB = 31


@pytest.fixture(scope="session")
def example(repository):
    """`examples/sdpo_in_one_file.py`, imported from its path: it is no part of the package."""
    path = repository / "examples" / "sdpo_in_one_file.py"
    spec = importlib.util.spec_from_file_location("sdpo_in_one_file", path)
    module = importlib.util.module_from_spec(spec)
    sys.modules[spec.name] = module  # dataclasses look their module up
    spec.loader.exec_module(module)
    return module


@pytest.fixture(scope="session")
def random_model(tmp_path_factory):
    """Folder of a random two-layer Llama with a word tokenizer of VOCAB entries."""
    import torch
    from tokenizers import Tokenizer, models, pre_tokenizers
    from transformers import LlamaConfig, LlamaForCausalLM, PreTrainedTokenizerFast

    folder = str(tmp_path_factory.mktemp("random_model"))
    words = {"<pad>": 0, "<s>": 1, "</s>": 2} | {f"w{i}": i for i in range(3, VOCAB)}
    core = Tokenizer(models.WordLevel(words, unk_token="<pad>"))
    core.pre_tokenizer = pre_tokenizers.Whitespace()
    tokenizer = PreTrainedTokenizerFast(tokenizer_object=core, bos_token="<s>", eos_token="</s>", pad_token="<pad>")
    tokenizer.save_pretrained(folder)
    torch.manual_seed(0)
    config = LlamaConfig(
        vocab_size=VOCAB,
        hidden_size=32,
        intermediate_size=48,
        num_hidden_layers=2,
        num_attention_heads=2,
        num_key_value_heads=1,
        initializer_range=0.3,  # far from uniform: every term of the loss counts
        bos_token_id=1,
        eos_token_id=2,
        pad_token_id=0,
    )
    LlamaForCausalLM(config).save_pretrained(folder)
    return folder


@pytest.fixture
def random_rows():
    """(prompt ids, teacher prompt ids, response ids, sampler log-probs) of five rows of unequal lengths."""
    rng = random.Random(5)

    def ids(low: int, high: int) -> list[int]:
        return [rng.randrange(3, VOCAB) for _ in range(rng.randint(low, high))]

    rows = []
    for _ in range(5):
        response = ids(1, 9)
        rows.append((ids(2, 6), ids(4, 12), response, [-rng.uniform(1, 5) for _ in response]))
    return rows
