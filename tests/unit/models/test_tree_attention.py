"""A forward and backward pass over a prefix tree equals the one over padded rows; models that cannot are told apart."""

from __future__ import annotations

import random
from functools import cache

import pytest
import torch
from transformers import AutoConfig, AutoModelForCausalLM, PreTrainedModel

from sdpo.models.forward import PolicyModule
from sdpo.models.tree_attention import prefix_sharing_unsupported
from sdpo.tokens.packing import pack_responses

VOCAB = 29
SMALL = {
    "vocab_size": VOCAB,
    "hidden_size": 32,
    "intermediate_size": 48,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "head_dim": 8,
    "pad_token_id": 0,
    "bos_token_id": 1,
    "eos_token_id": 2,
}
READS_TREES = {
    "llama": {},
    "mistral": {"sliding_window": None},
    "qwen2": {},
    "qwen3": {},
    "phi3": {},
    "olmo2": {},
    "granite": {},
    "cohere": {},
    "smollm3": {},
    "gpt2": {"n_embd": 32, "n_head": 4, "n_layer": 2, "attn_pdrop": 0.0, "resid_pdrop": 0.0, "embd_pdrop": 0.0},
    "qwen3_moe": {"moe_intermediate_size": 16, "num_experts": 4, "num_experts_per_tok": 2},
}
DOES_NOT = {
    "mistral": ({"sliding_window": 4}, "whole sequence"),
    "qwen2": ({"use_sliding_window": True, "sliding_window": 4, "max_window_layers": 0}, "whole sequence"),
    "gemma2": ({}, "whole sequence"),
    "gemma3_text": ({}, "whole sequence"),
    "gpt_oss": ({"num_local_experts": 4}, ""),
    "llama": ({"attn_implementation": "eager"}, "attn_implementation=eager"),
    "bloom": ({}, "attention interface"),
    "mamba": ({}, ""),
    "lfm2": ({"full_attn_idxs": [1]}, ""),
}


def _model(kind: str, options: dict, dtype: torch.dtype = torch.float32) -> PreTrainedModel:
    torch.manual_seed(0)
    attention = options.get("attn_implementation")
    options = {name: value for name, value in options.items() if name != "attn_implementation"}
    config = AutoConfig.for_model(kind, **SMALL | options)
    return AutoModelForCausalLM.from_config(config, attn_implementation=attention, dtype=dtype)


@cache
def _rows() -> tuple[list[list[int]], list[list[int]]]:
    """Three prompts with 4, 3 and 1 responses; two responses are the same, one goes on where another ends."""
    rng = random.Random(0)

    def ids(length: int) -> list[int]:
        return [rng.randrange(3, VOCAB) for _ in range(length)]

    first, second, third = ids(7), ids(7), ids(5)
    responses = [ids(rng.randint(1, 9)) for _ in range(8)]
    responses[1], responses[3] = list(responses[0]), [*responses[2], 4]
    return [first] * 4 + [second] * 3 + [third], responses


def _pass(module: PolicyModule, padded: bool) -> tuple[torch.Tensor, dict[str, torch.Tensor]]:
    module.zero_grad()
    side = pack_responses(*_rows(), padded=padded).to(next(module.parameters()).device)
    hidden = module(side)
    (hidden.float().tanh() * torch.arange(hidden.shape[1], device=hidden.device)).sum().backward()
    return hidden.detach(), {n: p.grad.clone() for n, p in module.named_parameters() if p.grad is not None}


@pytest.mark.parametrize("kind", READS_TREES)
def test_states_and_gradients_over_a_tree_are_those_of_padded_rows(kind: str) -> None:
    module = PolicyModule(_model(kind, READS_TREES[kind]), VOCAB)
    assert module.prefix_sharing_unsupported is None
    assert pack_responses(*_rows()).input_ids.numel() < 0.6 * pack_responses(*_rows(), padded=True).input_ids.numel()
    (tree, tree_gradients), (rows, row_gradients) = _pass(module, padded=False), _pass(module, padded=True)
    torch.testing.assert_close(tree, rows, atol=1e-6, rtol=1e-5)
    assert tree_gradients.keys() == row_gradients.keys() and len(row_gradients) > 5
    for name, gradient in row_gradients.items():
        torch.testing.assert_close(tree_gradients[name], gradient, atol=1e-5 * float(gradient.abs().max()), rtol=0)


@pytest.mark.parametrize("kind", DOES_NOT)
def test_a_model_whose_attention_is_more_than_a_softmax_over_the_past_gets_padded_rows(kind: str) -> None:
    options, reason = DOES_NOT[kind]
    found = prefix_sharing_unsupported(_model(kind, options))
    assert found is not None and reason in found


def test_generation_with_a_cache_is_left_as_it_was() -> None:
    plain, module = _model("llama", {}), PolicyModule(_model("llama", {}), VOCAB)
    prompt = torch.tensor([[3, 4, 5]])
    options = {"max_new_tokens": 5, "do_sample": False, "attention_mask": torch.ones_like(prompt)}
    assert torch.equal(plain.generate(prompt, **options), module.lm.generate(prompt, **options))


def test_logits_after_one_more_token_are_left_as_they_were_with_shared_heads_and_padding() -> None:
    plain, module = _model("llama", {}), PolicyModule(_model("llama", {}), VOCAB)
    ids = torch.tensor([[0, 0, 3, 4, 5], [6, 7, 8, 9, 3]])
    mask = torch.tensor([[0, 0, 1, 1, 1], [1, 1, 1, 1, 1]])
    found = []
    for model in (plain, module.lm):
        with torch.no_grad():
            cache = model(input_ids=ids[:, :4], attention_mask=mask[:, :4], use_cache=True).past_key_values
            found.append(model(input_ids=ids[:, 4:], attention_mask=mask, past_key_values=cache).logits)
    torch.testing.assert_close(found[1], found[0], atol=1e-6, rtol=1e-5)


def test_the_saved_configuration_does_not_name_our_attention() -> None:
    assert "prefix_tree" not in str(PolicyModule(_model("llama", {}), VOCAB).lm.config.to_dict())


def test_gradient_checkpointing_gives_the_same_gradients_over_a_tree() -> None:
    module = PolicyModule(_model("llama", {}), VOCAB)
    plain = _pass(module, padded=False)[1]
    module.lm.gradient_checkpointing_enable(gradient_checkpointing_kwargs={"use_reentrant": False})
    module.train()
    for name, gradient in _pass(module, padded=False)[1].items():
        torch.testing.assert_close(gradient, plain[name])


@pytest.mark.gpu
def test_flash_attention_over_a_tree_agrees_with_padded_rows_in_bfloat16() -> None:
    module = PolicyModule(_model("llama", {"head_dim": 32}, torch.bfloat16), VOCAB).cuda()
    (tree, tree_gradients), (rows, row_gradients) = _pass(module, padded=False), _pass(module, padded=True)
    torch.testing.assert_close(tree, rows, atol=3e-2, rtol=3e-2)
    for name, gradient in row_gradients.items():
        difference = (tree_gradients[name] - gradient).float().norm() / gradient.float().norm()
        assert difference < 3e-2, name
