"""Weights that arrive by the names of files find their places in a module, or are refused."""

from __future__ import annotations

import pytest
import torch
from transformers import LlamaConfig, LlamaForCausalLM

from sdpo.errors import RolloutError
from sdpo.weights import in_process
from sdpo.weights.source import WeightSource
from sdpo.weights.target import load_into


def llama(seed: int, tied: bool = True) -> LlamaForCausalLM:
    torch.manual_seed(seed)
    sizes = {"vocab_size": 11, "hidden_size": 8, "intermediate_size": 8, "num_hidden_layers": 2}
    return LlamaForCausalLM(LlamaConfig(**sizes, num_attention_heads=2, tie_word_embeddings=tied))


def equal(one: torch.nn.Module, other: torch.nn.Module) -> bool:
    pairs = zip(one.state_dict().values(), other.state_dict().values(), strict=True)
    return all(torch.equal(a, b) for a, b in pairs)


@pytest.mark.parametrize("tied", [False, True])
def test_a_module_takes_over_the_weights_of_another_and_keeps_its_own_tensors(tied):
    source, target = llama(1, tied), llama(2, tied)
    places = [p.data_ptr() for p in target.parameters()]
    load_into(target, WeightSource(source).gathered())
    assert equal(source, target) and [p.data_ptr() for p in target.parameters()] == places
    with torch.no_grad():
        source.model.norm.weight.add_(1)
    assert not equal(source, target)


def test_weights_are_cast_to_the_dtype_of_the_module():
    target = llama(2).to(torch.bfloat16)
    load_into(target, WeightSource(llama(1)).gathered())
    assert {p.dtype for p in target.parameters()} == {torch.bfloat16} and equal(target, llama(1).to(torch.bfloat16))


@pytest.mark.parametrize(
    ("name", "tensor", "word"),
    [
        ("model.norm.weight", None, "missing"),
        ("model.embed_tokens.weight", None, "missing"),  # nor is its head there
        ("model.layers.1.more", torch.ones(1), "unknown"),
        ("model.norm.weight", torch.ones(3), "misshapen"),
    ],
)
def test_weights_that_do_not_fit_are_refused_by_name(name, tensor, word):
    group = dict(WeightSource(llama(1)))
    group.pop(name, None)
    group |= {name: tensor} if tensor is not None else {}
    with pytest.raises(RolloutError, match=f"weights.{word}: got .*{name}"):
        load_into(llama(2), [group])


def test_in_one_process_the_weights_pass_without_a_copy_and_with_their_version():
    source, base = llama(1), in_process.new_base()
    weights = WeightSource(source)
    place = in_process.send(weights.gathered(), base, 4, weights.tied)
    with pytest.raises(RolloutError, match="weights.version: got 4; allowed: 5"):
        list(in_process.receive(place, 5))
    found = [tensor.data_ptr() for group in in_process.receive(place, 4) for tensor in group.values()]
    assert set(found) == {p.data_ptr() for p in source.parameters()}
    in_process.remove_base(base)
    with pytest.raises(RolloutError, match="weights.version"):
        list(in_process.receive(place, 4))
