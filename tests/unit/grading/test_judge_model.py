from __future__ import annotations

import json

import httpx
import pytest

from sdpo.grading.backends.retry import Retry
from sdpo.grading.feedback import FeedbackOptions
from sdpo.grading.judge_model import JudgeFault, JudgeModelGrader
from sdpo.records import GradeStatus, Prompt


class Endpoint:
    def __init__(self, *contents) -> None:
        self.contents = list(contents)
        self.requests: list[httpx.Request] = []

    def __call__(self, request: httpx.Request) -> httpx.Response:
        self.requests.append(request)
        content = self.contents.pop(0)
        if isinstance(content, httpx.Response):
            return content
        return httpx.Response(200, json={"choices": [{"message": {"content": content}}]})


def grade(*contents, response="an essay", truth="Is it clear?", retries=2):
    endpoint = Endpoint(*contents)
    client = httpx.Client(transport=httpx.MockTransport(endpoint))
    retry = Retry(retries, sleep=lambda _: None)
    grader = JudgeModelGrader(
        "http://judge/v1", "m", retry, FeedbackOptions(), key_variable="TEST_JUDGE_KEY", client=client
    )
    prompt = Prompt("p", ({"role": "user", "content": "Write."},), "judge", truth)
    return grader.grade(prompt, response, False), endpoint


def verdict(reward, critique="fine"):
    return json.dumps({"critique": critique, "reward": reward})


def test_reward_and_critique_come_back():
    result, _ = grade(verdict(0.5, "Half right. <|im_end|>"))
    assert (result.reward, result.status) == (0.5, GradeStatus.WRONG)
    assert result.feedback == "Half right. < |im_end|>"
    assert grade(verdict(1))[0].status is GradeStatus.OK


def test_the_request_asks_for_structured_output_and_holds_rubric_task_and_response(monkeypatch):
    monkeypatch.setenv("TEST_JUDGE_KEY", "k-1")
    _, endpoint = grade(verdict(1), truth={"rubric": "RUBRIC-1", "reference": "REF-2"})
    request = endpoint.requests[0]
    body = json.loads(request.content)
    assert request.headers["authorization"] == "Bearer k-1"
    assert body["response_format"]["type"] == "json_schema"
    text = body["messages"][1]["content"]
    assert all(part in text for part in ("RUBRIC-1", "REF-2", "Write.", "an essay"))


@pytest.mark.parametrize("bad", ["", "no json", "{}", verdict(2), verdict(True), verdict("1"), httpx.Response(500)])
def test_an_unusable_verdict_is_asked_for_again(bad):
    result, endpoint = grade(bad, verdict(1))
    assert result.reward == 1.0
    assert len(endpoint.requests) == 2


def test_without_a_usable_verdict_there_is_a_fault_and_never_a_zero():
    with pytest.raises(JudgeFault):
        grade(*["nonsense"] * 3)
    with pytest.raises(JudgeFault, match="401"):
        grade(httpx.Response(401))


def test_an_empty_response_is_not_sent():
    result, endpoint = grade(response="  ")
    assert result.status is GradeStatus.FORMAT_ERROR
    assert endpoint.requests == []


def test_a_row_without_a_rubric_is_invalid():
    assert grade(truth=None)[0].status is GradeStatus.INVALID_GOLD
