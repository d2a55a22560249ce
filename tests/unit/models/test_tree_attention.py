"""A forward and backward pass over a prefix tree equals that of each row alone; models that cannot are told apart."""

from __future__ import annotations

import importlib
import random
import sys
from functools import cache
from pathlib import Path

import pytest
import torch
from transformers import AutoConfig, AutoModelForCausalLM, PreTrainedModel

from sdpo.models.forward import PolicyModule
from sdpo.models.tree_attention import read_trees
from sdpo.models.tree_plan import checkpoint_contexts
from sdpo.tokens.packing import pack_responses

sys.path.append(str(Path(__file__).parents[3] / "recipes" / "benchmarks"))
families = importlib.import_module("families")

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
# Windows, chunks, capped scores, sinks, latent attention, shared keys; recurrent layers whose state branches, short
# convolutions, and layers that get whole rows.
READS_TREES = ["olmo3", "gemma2", "gemma3_text", "gemma4_text", "mistral", "qwen2", "cohere2", "gpt_oss", "deepseek_v3"]
READS_TREES += ["gpt2", "lfm2", "qwen3_5_text", "qwen3_next", "bamba", "minimax"]
DOES_NOT = {
    "bloom": ({}, "attention interface"),
    "mamba": ({}, "attention interface"),
    "llama4_text": ({}, "scaled by the place"),
    "llama": ({"attn_implementation": "flex_attention"}, "attn_implementation=flex_attention"),
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


@pytest.mark.parametrize("family", READS_TREES)
def test_states_and_gradients_over_a_tree_are_those_of_each_row_alone(family: str) -> None:
    """Rows longer than windows, branches behind branches; against transformers' own eager attention, in float64."""
    assert families.trained(families.build(family)).prefix_sharing_unsupported is None
    with families.InFloat64():
        assert max(families.difference(family, torch.float64)) < 1e-10
    assert max(families.difference(family, torch.float32)) < (1e-4 if family.startswith("qwen3_") else 1e-5)


def test_a_tree_is_smaller_than_its_rows() -> None:
    assert pack_responses(*families.rows()).input_ids.numel() < 0.5 * sum(len(p + r) for p, r in zip(*families.rows()))


@pytest.mark.parametrize("kind", DOES_NOT)
def test_a_model_whose_attention_cannot_follow_a_path_gets_padded_rows(kind: str) -> None:
    options, reason = DOES_NOT[kind]
    found = read_trees(_model(kind, options))
    assert found is not None and reason in found


@pytest.mark.parametrize("family", ["gemma2", "gpt_oss"])
def test_scores_are_capped_and_have_their_sink_without_a_tree_too(family: str) -> None:
    """transformers' `sdpa` leaves caps out: padded rows and an engine's would be those of another model."""
    ours, own = families.build(family).eval(), families.build(family).eval()
    ours.config._attn_implementation, own.config._attn_implementation = "sdpa", "eager"
    assert read_trees(ours) is None
    mask = torch.tensor([[0, 0, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1], [1] * 12])
    ids = torch.arange(5, 29).view(2, 12)
    with torch.no_grad():
        found, wanted = (lm(input_ids=ids, attention_mask=mask, use_cache=False).logits for lm in (ours, own))
        torch.testing.assert_close(found[mask > 0], wanted[mask > 0], atol=1e-4, rtol=1e-5)
        assert torch.equal(ours(input_ids=ids[1:], use_cache=False).logits, ours(input_ids=ids[1:]).logits)


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


@pytest.mark.parametrize("family", ["mistral", "qwen3_5_text"])
def test_gradient_checkpointing_gives_the_same_gradients_over_a_tree(family: str) -> None:
    module, side = families.trained(families.build(family)), pack_responses(*families.rows())
    plain = families.passed(module, [side])[1]
    options = {"use_reentrant": False, "context_fn": checkpoint_contexts}
    module.lm.gradient_checkpointing_enable(gradient_checkpointing_kwargs=options)
    torch.testing.assert_close(families.passed(module, [side])[1], plain)


@pytest.mark.gpu
@pytest.mark.parametrize(("kind", "options"), [("llama", {}), ("mistral", {"sliding_window": 4})])
def test_flash_attention_over_a_tree_agrees_with_padded_rows_in_bfloat16(kind: str, options: dict) -> None:
    module = PolicyModule(_model(kind, {"head_dim": 32, **options}, torch.bfloat16), VOCAB).cuda()
    (tree, tree_gradients), (rows, row_gradients) = _pass(module, padded=False), _pass(module, padded=True)
    torch.testing.assert_close(tree, rows, atol=3e-2, rtol=3e-2)
    for name, gradient in row_gradients.items():
        difference = (tree_gradients[name] - gradient).float().norm() / gradient.float().norm()
        assert difference < 3e-2, name
