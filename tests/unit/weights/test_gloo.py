"""Weights over the network: what arrives is what was sent, whole and of the version asked for, or an error in time."""

from __future__ import annotations

import asyncio
import threading
import time
from concurrent.futures import ThreadPoolExecutor
from datetime import timedelta

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from safetensors.torch import save_file
from transformers import AutoModelForCausalLM, PreTrainedModel, Qwen3MoeConfig, Qwen3MoeForCausalLM

from sdpo.errors import RolloutError, TransferError
from sdpo.rollout.hf_generate import HfEngine
from sdpo.weights import gloo
from sdpo.weights.coverage import covering
from sdpo.weights.source import WeightSource
from sdpo.weights.transport import publish
from sdpo.weights.version import Label

HOST = "127.0.0.1"
DTYPES = (torch.float32, torch.bfloat16, torch.float16, torch.int64, torch.uint8, torch.bool)


def random_group(sizes: list[list[int]], seed: int) -> dict[str, torch.Tensor]:
    generator = torch.Generator().manual_seed(seed)
    tensors = (torch.randn(size, generator=generator) * 9 for size in sizes)
    return {f"{seed}.{n}": tensor.to(DTYPES[(n + seed) % len(DTYPES)]) for n, tensor in enumerate(tensors)}


def transferred(groups: list, receivers: int = 1, tied=(), delay=()) -> list[tuple[list, Label]]:
    base = gloo.new_base(HOST, receivers, 20)

    def receive(number: int) -> tuple[list, Label]:
        arriving, found = gloo.receive(base, 7), []
        while True:
            time.sleep(delay[number] if delay else 0)
            try:
                found.append(next(arriving))
            except StopIteration as end:
                return found, end.value

    with ThreadPoolExecutor(receivers) as pool:
        taken = [pool.submit(receive, number) for number in range(receivers)]
        gloo.send(iter(groups), base, 7, tied)
        return [future.result() for future in taken]


@settings(max_examples=25)
@given(
    shapes=st.lists(st.lists(st.lists(st.integers(0, 5), max_size=3), max_size=4), max_size=4),
    piece=st.sampled_from([1, 16, 100, 1 << 20]),
)
def test_what_is_sent_arrives_bit_for_bit_whatever_its_shapes_kinds_and_pieces(shapes, piece):
    groups = [random_group(sizes, number) for number, sizes in enumerate(shapes)]
    whole, gloo.PIECE = gloo.PIECE, piece
    try:
        ((found, label),) = transferred(groups, tied=("head",))
    finally:
        gloo.PIECE = whole
    assert [list(group) for group in found] == [list(group) for group in groups]
    for name, tensor in ((n, t) for group in groups for n, t in group.items()):
        (there,) = [group[name] for group in found if name in group]
        assert there.dtype == tensor.dtype and torch.equal(there, tensor)
    size = sum(t.nbytes for group in groups for t in group.values())
    assert label == Label(7, sum(map(len, groups)), size, ("head",))


@pytest.mark.parametrize("slow", [0, 1])
def test_a_slow_receiver_has_its_own_copy_of_each_group_also_of_equal_shapes(slow):
    groups = [{"a": torch.full((50,), float(number))} for number in range(4)]
    delay = [0.0, 0.0]
    delay[slow] = 0.05
    for found, _ in transferred(groups, 2, delay=delay):
        assert [group["a"].unique().tolist() for group in found] == [[0.0], [1.0], [2.0], [3.0]]


def failing(work) -> tuple[Exception, float]:
    begun = time.monotonic()
    with pytest.raises(RolloutError) as error:
        work()
    return error.value, time.monotonic() - begun


def test_another_version_than_asked_for_is_refused_by_the_receiver_and_ends_the_sending():
    base = gloo.new_base(HOST, 1, 20)
    with ThreadPoolExecutor(1) as pool:
        sent = pool.submit(gloo.send, [{"a": torch.ones(3)}] * 100, base, 7)
        with pytest.raises(RolloutError, match="weights.version: got 7; allowed: 8"):
            next(gloo.receive(base, 8))
        with pytest.raises(TransferError, match="weights of version 7 to 1 receivers"):
            sent.result()


def test_a_receiver_that_does_not_come_is_waited_for_as_long_as_the_limit_says():
    base = gloo.new_base(HOST, 2, 2)
    store = gloo._stores[base]
    with ThreadPoolExecutor(1) as pool:
        other = pool.submit(failing, lambda: next(gloo.receive(base, 7)))
        store.wait(["came"], timedelta(seconds=20))
        error, seconds = failing(lambda: gloo.send([{"a": torch.ones(3)}], base, 7))
        assert isinstance(other.result()[0], TransferError)
    assert isinstance(error, TransferError) and "1 came" in str(error) and "timeout_s" in str(error)
    assert seconds < 15


def test_a_sender_that_stands_still_is_waited_for_as_long_as_the_limit_says():
    base, go_on = gloo.new_base(HOST, 1, 1), threading.Event()

    def stuck():
        yield {"a": torch.ones(3)}
        go_on.wait(20)

    with ThreadPoolExecutor(1) as pool:
        sent = pool.submit(lambda: failing(lambda: gloo.send(stuck(), base, 7)))
        arriving = gloo.receive(base, 7)
        assert next(arriving)["a"].sum() == 3
        error, seconds = failing(lambda: next(arriving))
        assert isinstance(error, TransferError) and seconds < 15
        arriving.close()
        go_on.set()
        assert isinstance(sent.result()[0], TransferError)


def test_a_transfer_after_a_failed_one_meets_nobody_of_it():
    test_a_receiver_that_does_not_come_is_waited_for_as_long_as_the_limit_says()
    ((found, _),) = transferred([{"a": torch.ones(3)}])
    assert len(found) == 1


@pytest.mark.parametrize("lacking", [None, "b", "head"])
def test_a_model_that_is_not_covered_is_refused_when_the_last_group_is_there(tmp_path, lacking):
    model = {"a": torch.ones(3), "b": torch.ones(2, 2), "head": torch.ones(3)}
    save_file(model, tmp_path / "model.safetensors")

    def arriving():
        yield {name: tensor for name, tensor in model.items() if name not in (lacking, "head")}
        return Label(1, 2, 28, () if lacking == "head" else ("head",))

    groups = covering(arriving(), str(tmp_path))
    assert len(next(groups)) == 2 - (lacking == "b")
    if lacking is None:
        assert list(groups) == []
        return
    with pytest.raises(RolloutError, match=f"weights.missing.*{lacking}"):
        next(groups)


@pytest.mark.parametrize("tied", [False, True])
def test_an_engine_takes_a_mixture_of_experts_that_is_streamed_layer_by_layer(tmp_path, tied):
    mixture(tied).save_pretrained(tmp_path)
    lm, other = (AutoModelForCausalLM.from_pretrained(tmp_path) for _ in range(2))
    with torch.no_grad():
        for parameter in lm.parameters():
            parameter.mul_(2)
    engine, base = HfEngine(other, (2,), 64), gloo.new_base(HOST, 1, 20)
    with ThreadPoolExecutor(1) as pool:
        sent = pool.submit(publish, WeightSource(lm, torch.float32), base, 3)
        asyncio.run(engine.load_weights(base, 3))
        sent.result()
    assert engine.policy_version == 3
    assert all(torch.equal(a, b) for a, b in zip(other.parameters(), lm.parameters(), strict=True))


def mixture(tied: bool) -> PreTrainedModel:
    sizes = {"vocab_size": 32, "hidden_size": 16, "num_hidden_layers": 2, "num_attention_heads": 2, "head_dim": 8}
    experts = {"num_experts": 4, "num_experts_per_tok": 2, "moe_intermediate_size": 8, "num_key_value_heads": 1}
    return Qwen3MoeForCausalLM(Qwen3MoeConfig(**sizes, **experts, tie_word_embeddings=tied))
