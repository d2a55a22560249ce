"""A random two-layer Llama with a word tokenizer, small enough for exact comparisons in a second."""

from __future__ import annotations

import random

import pytest
import torch
from tokenizers import Tokenizer, models, pre_tokenizers
from transformers import LlamaConfig, LlamaForCausalLM, PreTrainedTokenizerFast

from sdpo.config.schema import Config
from sdpo.records import MiniBatch, TrainRow

VOCAB = 23


@pytest.fixture(scope="session")
def random_llama(tmp_path_factory) -> str:
    folder = str(tmp_path_factory.mktemp("random_llama"))
    words = {"<pad>": 0, "<s>": 1, "</s>": 2} | {f"w{i}": i for i in range(3, VOCAB)}
    tokenizer = Tokenizer(models.WordLevel(words, unk_token="<pad>"))
    tokenizer.pre_tokenizer = pre_tokenizers.Whitespace()
    fast = PreTrainedTokenizerFast(tokenizer_object=tokenizer, bos_token="<s>", eos_token="</s>", pad_token="<pad>")
    fast.save_pretrained(folder)
    torch.manual_seed(0)
    config = LlamaConfig(
        vocab_size=VOCAB,
        hidden_size=32,
        intermediate_size=48,
        num_hidden_layers=2,
        num_attention_heads=2,
        num_key_value_heads=1,
        tie_word_embeddings=True,
        initializer_range=0.3,  # far from uniform: losses well above the rounding of float32
        bos_token_id=1,
        eos_token_id=2,
        pad_token_id=0,
    )
    LlamaForCausalLM(config).save_pretrained(folder)
    return folder


@pytest.fixture
def actor_config(random_llama) -> Config:
    config = Config()
    config.actor_rollout_ref.model.path = random_llama
    config.actor_rollout_ref.actor.optim.lr = 1e-2
    config.actor_rollout_ref.actor.optim.eps = 1e-2  # Adam's sign of a rounding error is not what is compared here
    config.data.max_response_length = 8
    return config


@pytest.fixture
def mini_batch() -> MiniBatch:
    """Seven rows of unequal lengths: a group of three with one teacher prompt, a pair whose teacher prompts
    begin alike, and two single rows."""
    rng = random.Random(3)

    def ids(low: int, high: int) -> list[int]:
        return [rng.randrange(3, VOCAB) for _ in range(rng.randint(low, high))]

    prompts, reprompts = [ids(2, 6) for _ in range(4)], [ids(3, 6) for _ in range(4)]
    rows = []
    for group, index in ((0, 0), (0, 1), (0, 2), (1, 0), (1, 1), (2, 0), (3, 0)):
        response, feedback = ids(1, 8), ids(1, 3) if group else []
        rows.append(
            TrainRow.single_turn(
                f"p{group}",
                index,
                prompts[group],
                response,
                teacher_prompt_ids=reprompts[group] + feedback + prompts[group],
                sampler_logprobs=[-2.5] * len(response),
            )
        )
    return MiniBatch(rows)
