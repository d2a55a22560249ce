from __future__ import annotations

import asyncio
import threading

import pytest
import torch
from transformers import DynamicCache

from sdpo.errors import ConfigError, RolloutError
from sdpo.rollout.engine import GenerationRequest, SamplingSpec, draw_all
from sdpo.rollout.hf_generate import HfEngine
from sdpo.rollout.kv_cache import roomy_cache
from sdpo.weights import shared_memory

PROMPTS = {"a": [1, 5, 9], "b": [1, 5, 9], "c": [1, 8], "d": [1, 30, 31, 32, 33, 34]}


def requests(temperature=1.0, max_tokens=30, names=tuple(PROMPTS), **more):
    return [
        GenerationRequest(name, PROMPTS[name], SamplingSpec(temperature, max_tokens=max_tokens, seed=ord(name), **more))
        for name in names
    ]


def reference_log_probs(model, prompt, response, temperature):
    with torch.no_grad():
        logits = model(torch.tensor([prompt + response])).logits[0, len(prompt) - 1 : -1]
    return (logits / temperature).log_softmax(-1).gather(1, torch.tensor(response)[:, None])[:, 0]


@pytest.mark.parametrize("temperature", [0.5, 1.0, 1.7])
def test_log_probs_are_those_of_one_forward_pass_at_the_sampling_temperature(llama, temperature):
    done = draw_all(HfEngine(llama, (2, 7), 200), requests(temperature))
    for name, generation in done.items():
        expected = reference_log_probs(llama, PROMPTS[name], generation.response_ids, temperature)
        assert len(generation.log_probs) == len(generation.response_ids)
        assert (torch.tensor(generation.log_probs) - expected).abs().max() < 2e-5


def test_greedy_takes_the_most_likely_token_each_time(llama):
    (generation,) = draw_all(HfEngine(llama, (), 200), requests(0.0, 12, ("d",))).values()
    ids = list(PROMPTS["d"])
    for token in generation.response_ids:
        with torch.no_grad():
            assert token == llama(torch.tensor([ids])).logits[0, -1].argmax().item()
        ids.append(token)


def test_equal_seeds_give_equal_bits_and_batch_order_does_not_matter(llama):
    engine = HfEngine(llama, (2, 7), 200)
    first = draw_all(engine, requests())
    assert draw_all(engine, requests()) == first
    alone = {name: draw_all(engine, requests(names=(name,)))[name] for name in PROMPTS}
    assert {n: g.response_ids for n, g in alone.items()} == {n: g.response_ids for n, g in first.items()}
    small_batches = draw_all(HfEngine(llama, (2, 7), 200, batch_size=3), requests())
    assert {n: g.response_ids for n, g in small_batches.items()} == {n: g.response_ids for n, g in first.items()}


def test_two_requests_of_one_prompt_differ_by_their_seed(llama):
    done = draw_all(HfEngine(llama, (), 200), requests())
    assert done["a"].response_ids != done["b"].response_ids


def test_any_of_the_stop_ids_ends_a_response_and_is_part_of_it(llama):
    many = [GenerationRequest(str(i), [1, 5], SamplingSpec(max_tokens=40, seed=i)) for i in range(60)]
    ends = set()
    for generation in draw_all(HfEngine(llama, (2, 7), 200), many).values():
        body, last = generation.response_ids[:-1], generation.response_ids[-1]
        assert not {2, 7} & set(body)
        assert generation.finish_reason == ("stop" if last in (2, 7) else "length")
        assert last in (2, 7) or len(generation.response_ids) == 40
        ends.add(last if last in (2, 7) else None)
    assert {2, 7} <= ends


def test_ignoring_stop_ids_fills_the_limit(llama):
    done = draw_all(HfEngine(llama, (2, 7), 200), requests(max_tokens=40, ignore_eos=True))
    assert all(len(g.response_ids) == 40 and g.finish_reason == "length" for g in done.values())


def test_a_finished_response_is_handed_on_while_others_still_run_and_nobody_waits_for_those_given_up(llama):
    async def run():
        engine = HfEngine(llama, (), 4000)
        long = [asyncio.create_task(engine.generate(request)) for request in requests(max_tokens=3000)]
        short = await engine.generate(GenerationRequest("short", [1, 5], SamplingSpec(max_tokens=1, seed=0)))
        assert len(short.response_ids) == 1 and not any(task.done() for task in long)
        for task in long:
            task.cancel()
        again = await asyncio.wait_for(engine.generate(*requests(names=("a",))), 120)
        engine.close()
        return again

    assert len(asyncio.run(run()).response_ids) == 30


def test_what_waits_is_drawn_together_and_what_comes_later_next(llama, monkeypatch):
    batches, real = [], HfEngine._generate_batch

    def record(self, module, requests, loop):
        batches.append([request.request_id for request in requests])
        return real(self, module, requests, loop)

    monkeypatch.setattr(HfEngine, "_generate_batch", record)

    async def turns(engine, request):
        first = await engine.generate(request)
        context = request.prompt_ids + first.response_ids
        return await engine.generate(GenerationRequest(f"{request.request_id}2", context, SamplingSpec(max_tokens=2)))

    async def run():
        engine = HfEngine(llama, (), 200, batch_size=3)
        return await asyncio.gather(*(turns(engine, request) for request in requests(max_tokens=5)))

    found = [generation.request_id for generation in asyncio.run(run())]
    assert found == [f"{name}2" for name in PROMPTS]
    assert batches[0] == ["a", "b", "c"] and sorted(sum(batches, [])) == sorted([*PROMPTS, *found])


def test_steps_run_in_the_thread_that_asks_and_others_have_their_turn_between_them_with_gradients(llama):
    """A second thread that computes has OpenMP threads of its own, and slows down whatever else computes here."""
    threads, turns, forward = set(), [], llama.forward

    def watched(*args, **kwargs):
        threads.add(threading.get_ident())
        turns.append("step")
        return forward(*args, **kwargs)

    async def beside():
        for _ in range(5):
            turns.append(torch.is_grad_enabled())
            await asyncio.sleep(0)

    async def run():
        engine = HfEngine(llama, (), 200)
        await asyncio.gather(beside(), *map(engine.generate, requests(max_tokens=5)))

    llama.forward = watched
    try:
        asyncio.run(run())
    finally:
        del llama.forward
    assert threads == {threading.get_ident()}
    first = turns.index("step")
    assert "step" in turns[first + 1 :] and True in turns[first:] and False not in turns


def test_the_model_length_limits_a_response_and_refuses_a_prompt_without_room(llama):
    (generation,) = draw_all(HfEngine(llama, (), 10), requests(names=("d",))).values()
    assert (len(generation.response_ids), generation.finish_reason) == (4, "length")
    with pytest.raises(ConfigError, match="prompt length: got 6"):
        draw_all(HfEngine(llama, (), 6), requests(names=("d",)))


def test_published_weights_change_the_responses_and_carry_their_version(llama, tmp_path):
    engine = HfEngine(llama, (), 200)
    before = draw_all(engine, requests(0.0))
    assert engine.policy_version == -1
    changed = {name: tensor.clone() for name, tensor in llama.state_dict().items() if name != "lm_head.weight"}
    embedding = changed["model.embed_tokens.weight"]
    changed["model.embed_tokens.weight"] = embedding[torch.randperm(len(embedding))]
    folder = shared_memory.send([changed], str(tmp_path), 3)
    with pytest.raises(RolloutError, match="weights.version: got 3; allowed: 4"):
        asyncio.run(engine.load_weights(folder, 4))
    assert draw_all(engine, requests(0.0)) == before
    asyncio.run(engine.load_weights(folder, 3))
    assert engine.policy_version == 3
    assert draw_all(engine, requests(0.0)) != before


def test_the_training_mode_is_put_back_also_after_an_error(llama, monkeypatch):
    def fail(*_):
        raise ValueError("no")

    monkeypatch.setattr("sdpo.rollout.hf_generate._read_prompts", fail)
    llama.train()
    engine = HfEngine(llama, (), 200)
    for _ in range(2):  # nobody is left waiting, and it goes on
        with pytest.raises(RolloutError, match="cannot generate here: ValueError: no"):
            draw_all(engine, requests())
    assert llama.training


def test_a_closed_engine_refuses_work(llama):
    engine = HfEngine(llama, (), 200)
    engine.close()
    engine.close()
    with pytest.raises(RolloutError, match="closed"):
        draw_all(engine, requests())


def test_padding_leaves_with_the_long_prompt_that_needed_it(llama, monkeypatch):
    lengths, real = [], torch.nn.functional.scaled_dot_product_attention

    def record(query, key, *rest, **options):
        lengths.append(key.shape[-2])
        return real(query, key, *rest, **options)

    monkeypatch.setattr(torch.nn.functional, "scaled_dot_product_attention", record)
    both = [
        GenerationRequest("d", PROMPTS["d"], SamplingSpec(max_tokens=2, seed=1)),
        GenerationRequest("c", PROMPTS["c"], SamplingSpec(max_tokens=8, seed=2)),
    ]
    together = draw_all(HfEngine(llama, (), 200), both)
    assert lengths[0] == len(PROMPTS["d"]) and lengths[-1] == len(PROMPTS["c"]) + 7
    assert together["c"].response_ids == draw_all(HfEngine(llama, (), 200), both[1:])["c"].response_ids


def test_the_cache_with_room_holds_what_transformers_own_cache_holds(llama, monkeypatch):
    """Across a growth of the buffer and rows that leave early."""
    monkeypatch.setattr("sdpo.rollout.kv_cache.ROOM", 4)
    torch.manual_seed(0)
    ours, theirs = roomy_cache(llama.config), DynamicCache(config=llama.config)
    rows, ids = 3, torch.randint(3, 30, (3, 20))
    with torch.no_grad():
        for start, stop in ((0, 6), (6, 7), (7, 8), (8, 9), (9, 10), (10, 11), (11, 13)):
            if start == 8:
                ids, rows = ids[[0, 2]], 2
                for cache in (ours, theirs):
                    cache.batch_select_indices(torch.tensor([0, 2]))
            logits = [llama(ids[:, start:stop], past_key_values=cache).logits for cache in (ours, theirs)]
            assert torch.equal(*logits) and ours.get_seq_length() == stop
    for a, b in zip(ours.layers, theirs.layers, strict=True):
        assert torch.equal(a.keys, b.keys) and torch.equal(a.values, b.values) and len(a.keys) == rows
