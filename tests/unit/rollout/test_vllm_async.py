"""vLLM's asynchronous engine, the one for GPUs, on the CPU. Slow: it starts a process of its own."""

from __future__ import annotations

import asyncio
import importlib.util
import os
import signal

import pytest

from sdpo.config.schema import RolloutConfig
from sdpo.errors import ConfigError, RolloutError
from sdpo.rollout.engine import GenerationRequest, SamplingSpec
from sdpo.rollout.hf_generate import HfEngine
from sdpo.weights import shared_memory

pytestmark = [
    pytest.mark.slow,
    pytest.mark.timeout(600),
    pytest.mark.skipif(importlib.util.find_spec("vllm") is None, reason="needs vLLM"),
]
PROMPTS = {"a": [1, *range(5, 60)], "b": [1, 8], "c": [1, 30, 31, 32]}


def requests():
    return [GenerationRequest(n, ids, SamplingSpec(max_tokens=30, seed=ord(n))) for n, ids in PROMPTS.items()]


async def drawn(engine) -> dict[str, list[int]]:
    found = await asyncio.gather(*map(engine.generate, requests()))
    await engine.rest()
    assert all(len(generation.log_probs) == len(generation.response_ids) for generation in found)
    return {generation.request_id: generation.response_ids for generation in found}


def test_it_answers_like_the_hugging_face_engine_takes_new_weights_and_names_its_death(llama_folder, llama, tmp_path):
    from sdpo.rollout.vllm_async import AsyncVllmEngine

    async def life(engine):
        reference = HfEngine(llama, (2, 7), 160)
        assert await drawn(engine) == await drawn(reference)
        with pytest.raises(ConfigError, match="prompt length: got 160"):
            await engine.generate(GenerationRequest("long", [1] * 160))
        endless = asyncio.create_task(
            engine.generate(GenerationRequest("x", [1, 5], SamplingSpec(max_tokens=150, ignore_eos=True)))
        )
        await asyncio.sleep(0.05)
        endless.cancel()
        state = {name: tensor.clone() for name, tensor in llama.state_dict().items()}
        for name in ("model.embed_tokens.weight", "lm_head.weight"):
            state[name] = state[name].flip(0)
        folder = shared_memory.send([state], str(tmp_path), 3)
        await engine.load_weights(folder, 3)
        await reference.load_weights(folder, 3)
        assert engine.policy_version == 3
        assert await drawn(engine) == await drawn(reference)
        processes = engine._engine.engine_core.resources.engine_manager.processes
        waiting = asyncio.create_task(drawn(engine))
        await asyncio.sleep(0)
        os.kill(processes[0].pid, signal.SIGKILL)
        with pytest.raises(RolloutError, match="vLLM"):
            await asyncio.wait_for(waiting, 60)

    engine = AsyncVllmEngine(llama_folder, RolloutConfig(max_num_seqs=16), 100, 60, "cpu", (2, 7))
    try:
        asyncio.run(life(engine))
    finally:
        engine.close()
