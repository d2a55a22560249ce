"""vLLM itself, on the CPU. Two starts: one engine for all tests, and a fresh one to compare a reloaded one with."""

from __future__ import annotations

import asyncio
import importlib.util

import pytest
import torch

from sdpo.config.schema import RolloutConfig
from sdpo.errors import ConfigError, ModelError, RolloutError
from sdpo.rollout.engine import GenerationRequest, SamplingSpec, draw_all
from sdpo.rollout.hf_generate import HfEngine
from sdpo.rollout.noise import process_logits
from sdpo.weights import shared_memory
from sdpo.weights.source import WeightSource

if importlib.util.find_spec("vllm") is None:
    pytest.skip("needs vLLM", allow_module_level=True)

STOP_IDS = (2, 7)
# The first three share more than a block of 32 tokens: cached prefixes are used.
LONG = [1, *(3 + (7 * i) % 60 for i in range(70))]
PROMPTS = {"a": LONG, "b": LONG, "c": [*LONG[:60], 9], "d": [1, 8], "e": [1, 30, 31, 32]}


def start(folder):
    from sdpo.rollout.vllm_engine import VllmEngine

    return VllmEngine(folder, RolloutConfig(max_num_seqs=16), 100, 60, "cpu", STOP_IDS)


@pytest.fixture(scope="module")
def engine(llama_folder):
    engine = start(llama_folder)
    yield engine
    engine.close()


@pytest.fixture(autouse=True)
def original_weights(request, llama_folder, tmp_path):
    """Tests may load other weights; each begins with those of the folder."""
    if "engine" in request.fixturenames:
        from safetensors.torch import load_file

        folder = shared_memory.send([load_file(f"{llama_folder}/model.safetensors")], str(tmp_path / "original"), 0)
        asyncio.run(request.getfixturevalue("engine").load_weights(folder, 0))


def requests(temperature=1.0, max_tokens=30, names=tuple(PROMPTS), **more):
    return [
        GenerationRequest(name, PROMPTS[name], SamplingSpec(temperature, max_tokens=max_tokens, seed=ord(name), **more))
        for name in names
    ]


def ids(done):
    return {name: generation.response_ids for name, generation in done.items()}


def forward_log_probs(model, prompt, response, temperature):
    with torch.no_grad():
        logits = model(torch.tensor([prompt + response])).logits[0, len(prompt) - 1 : -1]
    return (logits / temperature).log_softmax(-1).gather(1, torch.tensor(response)[:, None])[:, 0]


def permuted(model):
    """Weights that answer differently everywhere."""
    generator = torch.Generator().manual_seed(5)
    state = {name: tensor.clone() for name, tensor in model.state_dict().items()}
    order = torch.randperm(len(state["model.embed_tokens.weight"]), generator=generator)
    for name in ("model.embed_tokens.weight", "lm_head.weight"):
        state[name] = state[name][order]
    return state


@pytest.mark.parametrize("temperature", [0.5, 1.0, 1.7])
def test_log_probs_are_those_of_the_trainers_forward_pass_despite_generation_config_json(engine, llama, temperature):
    for name, generation in draw_all(engine, requests(temperature)).items():
        expected = forward_log_probs(llama, PROMPTS[name], generation.response_ids, temperature)
        assert len(generation.log_probs) == len(generation.response_ids)
        assert (torch.tensor(generation.log_probs) - expected).abs().max() < 2e-5


def test_top_k_and_top_p_renormalize_the_log_probs(engine, llama):
    (generation,) = draw_all(engine, requests(1.0, names=("d",), top_k=1)).values()
    assert generation.log_probs == pytest.approx([0.0] * len(generation.response_ids), abs=1e-6)
    spec = SamplingSpec(top_p=0.6, top_k=20)
    (generation,) = draw_all(engine, requests(1.0, names=("d",), top_p=0.6, top_k=20)).values()
    with torch.no_grad():
        logits = llama(torch.tensor([PROMPTS["d"] + generation.response_ids])).logits[0, 1:-1]
    expected = process_logits(logits, [spec] * len(logits)).log_softmax(-1)
    for row, token, log_prob in zip(expected, generation.response_ids, generation.log_probs, strict=True):
        assert log_prob == pytest.approx(row[token].item(), abs=2e-5)


@pytest.mark.parametrize("temperature", [0.0, 1.0])
def test_it_answers_with_the_tokens_of_the_hugging_face_engine(engine, llama, temperature):
    reference = draw_all(HfEngine(llama, STOP_IDS, 160), requests(temperature))
    done = draw_all(engine, requests(temperature))
    assert ids(done) == ids(reference)
    for name in PROMPTS:
        assert done[name].finish_reason == reference[name].finish_reason
        assert done[name].log_probs == pytest.approx(reference[name].log_probs, abs=2e-5)


def test_temperature_zero_is_repeatable_and_finite(engine):
    first, second = (draw_all(engine, requests(0.0)) for _ in range(2))
    assert ids(first) == ids(second)
    assert all(torch.isfinite(torch.tensor(generation.log_probs)).all() for generation in first.values())
    assert ids(first)["a"] == ids(first)["b"]


def test_equal_seeds_give_equal_ids_in_any_company_and_different_seeds_differ(engine):
    first = draw_all(engine, requests())
    assert ids(draw_all(engine, requests())) == ids(first)
    assert ids(draw_all(engine, requests(names=("e", "b")))) == {name: ids(first)[name] for name in ("e", "b")}
    assert ids(first)["a"] != ids(first)["b"]


def test_any_of_the_stop_ids_ends_a_response_and_is_part_of_it(engine):
    many = [GenerationRequest(str(i), [1, 5], SamplingSpec(max_tokens=40, seed=i)) for i in range(60)]
    ends = set()
    for generation in draw_all(engine, many).values():
        body, last = generation.response_ids[:-1], generation.response_ids[-1]
        assert not set(STOP_IDS) & set(body)
        assert generation.finish_reason == ("stop" if last in STOP_IDS else "length")
        assert last in STOP_IDS or len(generation.response_ids) == 40
        ends.add(last)
    assert set(STOP_IDS) <= ends


def test_ignoring_stop_ids_fills_the_limit_and_log_probs_can_be_left_out(engine):
    done = draw_all(engine, requests(max_tokens=40, ignore_eos=True, log_probs=False))
    assert all(len(g.response_ids) == 40 and g.finish_reason == "length" for g in done.values())
    assert all(generation.log_probs is None for generation in done.values())


def test_a_request_joins_between_two_steps_and_is_handed_on_while_others_run_and_others_are_given_up(engine):
    async def run():
        long = [asyncio.create_task(engine.generate(r)) for r in requests(max_tokens=60, ignore_eos=True)]
        await asyncio.sleep(0.05)
        short = await engine.generate(GenerationRequest("short", [1, 5], SamplingSpec(max_tokens=1)))
        assert len(short.response_ids) == 1 and not any(task.done() for task in long)
        for task in long:
            task.cancel()

    asyncio.run(run())
    assert set(draw_all(engine, requests())) == set(PROMPTS)  # nothing of those given up comes back


def test_reloaded_weights_equal_a_fresh_engine_and_use_no_cached_prefix(engine, llama, tmp_path):
    before = draw_all(engine, requests(0.0))  # fills the prefix cache
    llama.load_state_dict(permuted(llama))
    asyncio.run(engine.load_weights(shared_memory.send(WeightSource(llama).gathered(), str(tmp_path / "w"), 3), 3))
    assert engine.policy_version == 3
    after = draw_all(engine, requests(0.0))
    assert all(ids(after)[name] != ids(before)[name] for name in PROMPTS)
    for name, generation in after.items():
        expected = forward_log_probs(llama, PROMPTS[name], generation.response_ids, 1.0)
        assert (torch.tensor(generation.log_probs) - expected).abs().max() < 2e-5
    llama.save_pretrained(tmp_path / "fresh")
    fresh = start(str(tmp_path / "fresh"))
    assert draw_all(fresh, requests(0.0)) == after
    fresh.close()
    assert draw_all(engine, requests(0.0)) == after  # closing one engine leaves the other alone


def test_weights_that_are_not_the_ones_asked_for_or_do_not_fit_are_refused(engine, llama, tmp_path):
    state = permuted(llama)
    folder = shared_memory.send([state], str(tmp_path / "w"), 5)
    before = draw_all(engine, requests(0.0))
    with pytest.raises(RolloutError, match="weights.version: got 5; allowed: 6"):
        asyncio.run(engine.load_weights(folder, 6))
    del state["model.norm.weight"]
    folder = shared_memory.send([state], str(tmp_path / "w"), 6)
    with pytest.raises(RolloutError, match="weights.missing"):
        asyncio.run(engine.load_weights(folder, 6))
    assert draw_all(engine, requests(0.0)) == before
    assert engine.policy_version == 0


def test_the_trainers_random_stream_and_threads_are_left_alone(engine):
    torch.manual_seed(3)
    expected = torch.rand(3)
    torch.manual_seed(3)
    draw_all(engine, requests())
    assert torch.equal(torch.rand(3), expected)
    threads = torch.get_num_threads()
    torch.set_num_threads(threads + 1)
    assert torch.get_num_threads() == threads + 1
    torch.set_num_threads(threads)


def test_a_request_that_cannot_be_served_is_refused_and_named(engine):
    with pytest.raises(ConfigError, match="prompt length: got 160; allowed: 1 to 159"):
        draw_all(engine, [*requests(), GenerationRequest("long", [1] * 160)])
    with pytest.raises(RolloutError, match="request_id"):
        draw_all(engine, requests(names=("a", "a")))
    (generation,) = draw_all(engine, [GenerationRequest("fits", [5] * 157, SamplingSpec(ignore_eos=True))]).values()
    assert (len(generation.response_ids), generation.finish_reason) == (3, "length")


def test_an_engine_that_failed_says_so_and_does_not_go_on(engine, monkeypatch):
    inner = engine._engine

    def die():
        raise RuntimeError("out of memory")

    monkeypatch.setattr(inner, "step", die)
    with pytest.raises(RolloutError, match="vLLM failed while generating: RuntimeError: out of memory"):
        draw_all(engine, requests())
    with pytest.raises(RolloutError, match="failed before"):
        draw_all(engine, requests())
    monkeypatch.undo()
    inner.abort_request(list(inner.output_processor.request_states), internal=True)
    engine._engine = inner


def test_a_folder_that_is_no_model_is_a_model_error(tmp_path):
    with pytest.raises(ModelError, match="vLLM cannot serve"):
        start(str(tmp_path))
