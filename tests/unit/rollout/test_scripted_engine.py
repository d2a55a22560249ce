from __future__ import annotations

import asyncio

import pytest
import torch

from sdpo.errors import RolloutError
from sdpo.rollout.engine import GenerationRequest, SamplingSpec, draw_all
from sdpo.rollout.scripted import ScriptedEngine
from sdpo.weights import shared_memory


def test_answers_come_from_the_script_and_are_cut_like_a_real_engine_would():
    engine = ScriptedEngine({"a": [5, 6, 2], "b": [5, 6, 7, 8]}, stop_ids=(2,))
    done = draw_all(engine, [GenerationRequest(n, [1], SamplingSpec(max_tokens=3)) for n in "ab"])
    assert [(g.request_id, g.response_ids, g.finish_reason) for g in done.values()] == [
        ("a", [5, 6, 2], "stop"),
        ("b", [5, 6, 7], "length"),
    ]
    assert [len(g.log_probs) for g in done.values()] == [3, 3]


def test_a_function_may_answer_and_an_unscripted_request_is_an_error():
    engine = ScriptedEngine(lambda request: [request.sampling.seed, 2], stop_ids=(2,))
    assert draw_all(engine, [GenerationRequest("x", [1], SamplingSpec(seed=9))])["x"].response_ids == [9, 2]
    with pytest.raises(RolloutError, match="no answer for request 'y'"):
        draw_all(ScriptedEngine({}), [GenerationRequest("y", [1])])


def test_weights_of_another_version_are_refused_and_calls_are_recorded(tmp_path):
    folder = shared_memory.send([{"w": torch.ones(2)}], str(tmp_path), 4)
    engine = ScriptedEngine({})
    with pytest.raises(RolloutError, match="weights.version"):
        asyncio.run(engine.load_weights(folder, 5))
    asyncio.run(engine.load_weights(folder, 4))
    engine.close()
    assert engine.policy_version == 4
    assert engine.calls == [("load_weights", 4), ("close", None)]
