"""Calls are answered once, in order, by a real sandbox; what cannot be run is told, what was cut is not run."""

from __future__ import annotations

import asyncio
import json

import pytest

from sdpo.config.compose import compose
from sdpo.environments.python_tool import NO_CALL_LEFT, PythonTool
from sdpo.environments.registry import environment_maker
from sdpo.errors import ConfigError
from sdpo.records import Grade, GradeStatus

END = "<|im_end|>"
FIELD = "actor_rollout_ref.rollout.environment"


def call(code: str) -> str:
    return f"<tool_call>\n{json.dumps({'name': 'python', 'arguments': {'code': code}})}\n</tool_call>"


@pytest.fixture(scope="module")
def make():
    make = environment_maker(compose([f"{FIELD}.name=python", f"{FIELD}.settings={{max_calls: 2}}"]))
    yield make
    make.args[1].close()


def play(make, policy):
    graded = []

    async def grade(answer):
        graded.append((answer.text, answer.truncated))
        return Grade(GradeStatus.OK, 1.0)

    episode = asyncio.run(make().run(policy.prompt, policy, grade))
    assert graded == [(episode.answer.text, episode.answer.truncated)]
    results = [[m["content"] for m in turn.said] for turn in policy.turns]
    return episode, results


def test_results_of_programs_come_back_and_the_answer_is_graded(make, policy_of, chat):
    turns = [f"Let me see. {call('print(6*7)')}{END}", f"{call('1/0')}{END}", f"42{END}"]
    policy = policy_of(turns, tools=PythonTool.tools)
    episode, results = play(make, policy)
    assert results[1] == ["42"] and results[2][0].endswith("ZeroDivisionError: division by zero")
    assert episode.answer.text == "42"
    assert [turn.feedback for turn in policy.turns] == ["", results[2][0], ""]
    for turn, request in zip(policy.turns, policy.engine.requests, strict=True):
        assert policy.sequences[0][: turn.span[0]] == request.prompt_ids
    assert "Tools: " in chat.decode(policy.prompt_ids)


def test_every_call_is_answered_once_in_order_and_the_limit_ends_the_episode(make, policy_of):
    three = "".join(call(f"print({i})") for i in range(3))
    policy = policy_of([three + END, call("print(9)") + END], tools=PythonTool.tools)
    episode, results = play(make, policy)
    assert results[1] == ["0", "1", NO_CALL_LEFT]
    assert episode.answer is policy.turns[1] and len(policy.turns) == 2  # with no call left it is the answer


@pytest.mark.parametrize(
    ("text", "why"),
    [
        ('<tool_call>{"name": "python", "arguments": {"code": "x"</tool_call>', "No call was made."),
        ('<tool_call>{"name": "search", "arguments": {"q": "x"}}</tool_call>', "There is one tool, python"),
        ('<tool_call>{"name": "python", "arguments": {"code": 3}}</tool_call>', "There is one tool, python"),
    ],
)
def test_a_call_that_cannot_be_made_is_told_why_and_the_episode_goes_on(make, policy_of, text, why):
    policy = policy_of([text + END, f"4{END}"], tools=PythonTool.tools)
    episode, results = play(make, policy)
    assert results[1][0].startswith(why) and len(results[1]) == 1
    assert policy.turns[0].feedback == results[1][0] and episode.answer.text == "4"


@pytest.mark.parametrize(
    "text",
    [
        f"the answer is 4{END}",
        f"```python\nprint(4)\n```{END}",  # an answer that is code
        call("print(1)"),  # cut: no end
        call("print(1)")[:40],
        f"<think>{call('print(1)')}</think>4{END}",  # only a thought
    ],
)
def test_what_is_no_whole_call_runs_nothing_and_is_the_answer(make, policy_of, text, monkeypatch):
    monkeypatch.setattr(PythonTool, "_run", lambda *_: pytest.fail("it ran"))
    episode, results = play(make, policy_of([text], tools=PythonTool.tools))
    assert results == [[]] and episode.answer.truncated == (END not in text)


def test_a_call_behind_whose_result_no_room_is_left_ends_cut_off(make, policy_of):
    text = call("print(6*7)")
    policy = policy_of([text + END], tools=PythonTool.tools, max_tokens=len(text))
    episode, _ = play(make, policy)
    assert episode.answer.truncated and len(policy.turns) == 1


def test_nothing_stays_between_calls_or_episodes(make, policy_of):
    leave = "open('x', 'w').write('1'); import builtins; builtins.secret = 1; print('left')"
    look = "import os, builtins; print(os.path.exists('x'), hasattr(builtins, 'secret'))"
    _, results = play(make, policy_of([call(leave) + END, call(look) + END, f"4{END}"], tools=PythonTool.tools))
    assert results[1:] == [["left"], ["False False"]]


@pytest.mark.parametrize("settings", ["{max_calls: 0}", "{max_calls: many}", "{max_call: 3}"])
def test_settings_that_cannot_be_are_one_line(settings):
    with pytest.raises(ConfigError, match=f"{FIELD}.settings") as refused:
        environment_maker(compose([f"{FIELD}.name=python", f"{FIELD}.settings={settings}"]))
    assert "\n" not in str(refused.value)
