"""A model behind an OpenAI-compatible server: what is asked, what is graded, what is lost, what is refused."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Callable
from typing import Any

import httpx
import pytest

from sdpo.config.compose import compose
from sdpo.config.schema import Config
from sdpo.errors import ConfigError, RolloutError
from sdpo.evaluation import server
from sdpo.evaluation.server import Server, gradable
from sdpo.records import Group, Prompt

RIGHT = "The answer is \\boxed{4}."
PROMPTS = [Prompt(str(i), ({"role": "user", "content": f"{i}: 2 + 2?"},), "math", "4") for i in range(3)]


@pytest.fixture
def config() -> Config:
    found = compose(["data.train_files=[x.jsonl]", "actor_rollout_ref.rollout.val_kwargs.n=2"])
    found.data.max_response_length = 32
    found.data.apply_chat_template_kwargs = {"enable_thinking": False}
    return found


@pytest.fixture(autouse=True)
def no_pauses(monkeypatch) -> None:
    monkeypatch.setattr(server, "PAUSES", (0.0,) * 4)


def answering(answer: Callable[[dict[str, Any]], httpx.Response], seen: list[dict[str, Any]] | None = None):
    def handle(request: httpx.Request) -> httpx.Response:
        if request.url.path.endswith("/models"):
            return httpx.Response(200, json={"data": [{"id": "m"}]})
        body = json.loads(request.content)
        if seen is not None:
            seen.append(body)
        return answer(body)

    return httpx.MockTransport(handle)


def said(content: str | None, why: str = "stop", **more: Any) -> httpx.Response:
    message = {"role": "assistant", "content": content, **more}
    return httpx.Response(200, json={"choices": [{"message": message, "finish_reason": why}]})


def measured(config: Config, transport, name: str = "m", prompts: list[Prompt] = PROMPTS):
    groups: list[Group] = []
    found = Server("http://there/v1", config, transport=transport).measure(name, prompts, lambda _: None, groups.append)
    return found, groups


def test_every_answer_is_asked_for_once_with_the_settings_of_validation_and_graded(config: Config) -> None:
    seen: list[dict[str, Any]] = []
    right = lambda body: said(RIGHT if body["messages"][0]["content"][0] != "1" else "5", "stop")  # noqa: E731
    found, groups = measured(config, answering(right, seen))
    assert [(p.graded, p.correct, p.tokens) for p in found.problems] == [(2, 2, None), (2, 0, None), (2, 2, None)]
    assert len(seen) == 6 and len({body["seed"] for body in seen}) == 6
    sampling = config.actor_rollout_ref.rollout.val_kwargs
    assert {(body["max_tokens"], body["temperature"], body["top_p"]) for body in seen} == {
        (32, sampling.temperature, sampling.top_p)
    }
    assert all(body["chat_template_kwargs"] == {"enable_thinking": False} for body in seen)
    assert [group.prompt.uid for group in groups] == ["0", "1", "2"]


def test_a_cut_answer_is_known_as_such_and_an_empty_one_is_wrong(config: Config) -> None:
    found, groups = measured(config, answering(lambda body: said(None, "length")))
    assert [(p.graded, p.correct, p.truncated) for p in found.problems] == [(2, 0, 2)] * 3


def test_calls_that_the_server_has_parsed_are_graded_as_text(config: Config) -> None:
    call = {"id": "1", "type": "function", "function": {"name": "add", "arguments": '{"a": 1}'}}
    _, groups = measured(config, answering(lambda body: said(None, tool_calls=[call])))
    assert groups[0].samples[0].response_text == '<tool_call>\n{"name": "add", "arguments": {"a": 1}}\n</tool_call>'


@pytest.mark.parametrize("status", sorted(server.BUSY))
def test_a_busy_server_is_asked_again_and_one_that_stays_busy_loses_the_answer_not_the_run(config, status) -> None:
    tries: dict[int, int] = {}

    def busy(body: dict[str, Any]) -> httpx.Response:
        tries[body["seed"]] = tries.get(body["seed"], 0) + 1
        whole = body["messages"][0]["content"][0] == "0"
        return said(RIGHT) if tries[body["seed"]] == (3 if whole else 99) else httpx.Response(status)

    found, _ = measured(config, answering(busy))
    assert [(p.graded, p.correct, p.failed) for p in found.problems] == [(2, 2, 0), (0, 0, 2), (0, 0, 2)]
    assert sorted(tries.values()) == [3, 3, 5, 5, 5, 5]


@pytest.mark.parametrize("body", [b"", b"[]", b"{", b'{"choices": []}', b'{"choices": [{"message": 3}]}', b"\xff\xfe"])
def test_a_reply_without_an_answer_is_lost_and_counted(config: Config, body: bytes) -> None:
    found, groups = measured(config, answering(lambda _: httpx.Response(200, content=body)))
    assert all(p.failed == 2 and p.graded == 0 for p in found.problems)
    assert groups[0].samples[0].grade.flags[0].startswith("server: ")


@pytest.mark.parametrize("status", [400, 401, 404, 422])
def test_what_the_server_refuses_ends_with_its_reason_at_once(config: Config, status: int) -> None:
    asked: list[dict[str, Any]] = []
    refusing = answering(lambda _: httpx.Response(status, text="this model's context is 16\ntokens"), asked)
    with pytest.raises(RolloutError, match=rf"status {status}: this model's context is 16 tokens") as refused:
        measured(config, refusing)
    assert "\n" not in str(refused.value) and len(asked) <= 6


def test_a_server_that_is_not_there_and_a_model_it_does_not_have_are_one_line(config: Config) -> None:
    with pytest.raises(ConfigError, match="model: got 'other'; allowed: m"):
        measured(config, answering(lambda _: said(RIGHT)), "other")
    with pytest.raises(RolloutError, match="--base-url: got 'http://127.0.0.1:9/v1"):
        Server("http://127.0.0.1:9/v1", config).measure("m", PROMPTS, lambda _: None, lambda _: None)
    for wrong in ("http://127.0.0.1:9:9/v1", "localhost:8000/v1", "nonsense"):
        with pytest.raises(RolloutError, match="--base-url"):
            Server(wrong, config).measure("m", PROMPTS, lambda _: None, lambda _: None)


def test_an_answer_that_takes_too_long_is_lost(config: Config) -> None:
    class Slow(httpx.AsyncBaseTransport):
        async def handle_async_request(self, request: httpx.Request) -> httpx.Response:
            if request.url.path.endswith("/models"):
                return httpx.Response(200, json={"data": [{"id": "m"}]})
            await asyncio.sleep(5)
            return said(RIGHT)

    slow = Server("http://there/v1", config, seconds=0.02, transport=Slow())
    found = slow.measure("m", PROMPTS, lambda _: None, lambda _: None)
    assert all(p.failed == 2 for p in found.problems)


def test_an_environment_of_several_turns_is_refused(config: Config) -> None:
    config.actor_rollout_ref.rollout.environment.name = "python"
    with pytest.raises(ConfigError, match="environment.name: got 'python'; allowed: single_turn"):
        gradable(config)
