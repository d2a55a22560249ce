"""Many episodes at once through the rollout worker: faults cost the one they befall, and nothing is shared."""

from __future__ import annotations

import asyncio
import gc
import signal
import uuid
from dataclasses import replace
from types import SimpleNamespace

import pytest

from sdpo import interrupt
from sdpo.config.compose import compose
from sdpo.config.schema import SelfDistillationConfig
from sdpo.environments.episode import Episode
from sdpo.errors import ConfigError, RolloutError
from sdpo.records import Grade, GradeStatus, Prompt
from sdpo.reprompt.builder import RepromptBuilder
from sdpo.rollout.engine import Generation
from sdpo.rollout.engine_loop import EngineLoop
from sdpo.rollout.scripted import ScriptedEngine
from sdpo.tokens.chat import ChatRenderer
from sdpo.training.metrics import train_metrics
from sdpo.workers import rollout
from sdpo.workers.rollout import RenderedPrompt, RolloutWorker, training_plan

ENVIRONMENT = "actor_rollout_ref.rollout.environment"


class Graders:
    """Right when the text says so."""

    async def grade(self, prompt, text, truncated):
        await asyncio.sleep(0)
        return Grade(GradeStatus.OK if "right" in text else GradeStatus.WRONG, float("right" in text))

    def close(self):
        pass


@pytest.fixture
def draw(monkeypatch, chatml_tokenizer):
    """Groups of two prompts with `n` episodes each in the environment, a class; `answer`: text of a request."""

    def run(environment, answer=lambda request: "right", n=4, reprompts=False, **settings):
        tokenizer = chatml_tokenizer

        def script(request):
            said = answer(request)
            return said if isinstance(said, Generation) else [*tokenizer.encode(said), tokenizer.eos_token_id]

        engine = ScriptedEngine(script, [tokenizer.eos_token_id])
        monkeypatch.setattr(rollout, "load_tokenizer", lambda model: tokenizer)
        monkeypatch.setattr(rollout, "build_engine", lambda *_: engine)
        monkeypatch.setattr(rollout, "environment_maker", lambda config: environment)
        config = compose([f"actor_rollout_ref.rollout.n={n}", *(f"{ENVIRONMENT}.{k}={v}" for k, v in settings.items())])
        worker = RolloutWorker(config, "cpu", Graders())
        prompts = [Prompt(uid, ({"role": "user", "content": uid},), "exact", "x") for uid in ("p", "q")]
        jobs = [RenderedPrompt(prompt, worker.chat.student_ids(prompt)) for prompt in prompts]

        async def all_of_it():
            groups = await worker.draw(jobs, replace(training_plan(config, 1), reprompts=reprompts))
            left = asyncio.all_tasks() - {asyncio.current_task()}
            return groups, left

        try:
            groups, left = worker.run(all_of_it())
        finally:
            worker.close()
        assert not left
        assert [(s.prompt_uid, s.index) for g in groups for s in g.samples] == [(u, i) for u in "pq" for i in range(n)]
        return SimpleNamespace(groups=groups, samples=[s for g in groups for s in g.samples], engine=engine)

    return run


def test_one_episode_that_raises_and_one_that_hangs_take_nobody_along(draw):
    class Fragile:
        number = 0

        async def run(self, prompt, policy, grade):
            Fragile.number += 1
            mine = Fragile.number
            answer = await policy.reply()
            if mine == 1:
                raise KeyError("a tool")
            if mine == 2:
                await asyncio.sleep(3600)
            return Episode(answer, await grade(answer))

    found = draw(Fragile, max_seconds=0.5)
    first, second, *others = found.samples
    assert first.grade.status is GradeStatus.INFRA_ERROR and first.grade.reward is None
    assert first.grade.flags == ("environment: KeyError: 'a tool'",) and first.finish_reason == "abort"
    assert second.grade.reward == 1.0  # what it had written counts: its own slowness is no excuse
    assert all(sample.grade.reward == 1.0 and sample.finish_reason == "stop" for sample in others)


def test_an_episode_that_ends_by_its_time_before_any_answer_is_no_zero(draw):
    class Slow:
        async def run(self, prompt, policy, grade):
            await asyncio.sleep(3600)

    samples = draw(Slow, max_seconds=0.1).samples
    assert {sample.grade.status for sample in samples} == {GradeStatus.INFRA_ERROR}
    assert {sample.grade.reward for sample in samples} == {None}


@pytest.mark.parametrize("swallowed", [False, True])
def test_a_failed_generation_is_masked_and_counted_also_when_the_environment_swallows_it(draw, swallowed):
    class Careless:
        async def run(self, prompt, policy, grade):
            try:
                answer = await policy.reply()
            except Exception:
                if not swallowed:
                    raise
                return Episode(None, Grade(GradeStatus.WRONG, 0.0))
            return Episode(answer, await grade(answer))

    tried = []

    def answer(request):
        if request.request_id == "p/1":
            tried.append(request.sampling.seed)
            return Generation(request.request_id, [], None, "abort", "out of cache")
        return "wrong"

    found = draw(Careless, answer)
    lost = found.samples[1]
    assert lost.grade == Grade(GradeStatus.INFRA_ERROR, None, flags=("engine: GenerationFault: out of cache",))
    assert lost.finish_reason == "abort" and len(tried) == 3 and len(set(tried)) == 1
    metrics = train_metrics(found.groups, 1.0)
    assert metrics["train/infra_error_frac"] == 1 / 8 and metrics["rollout/failed_frac"] == 1 / 8
    assert metrics["train/reward"] == 0.0


def test_a_dead_engine_ends_the_run_and_not_the_samples(draw):
    def die(request):
        raise RolloutError("vLLM's process ended")

    class Plain:
        async def run(self, prompt, policy, grade):
            answer = await policy.reply()
            return Episode(answer, await grade(answer))

    with pytest.raises(RolloutError, match="process ended"):
        draw(Plain, die)


def test_every_episode_has_an_instance_of_its_own(draw):
    read, written = [], []

    class Keeper:
        async def run(self, prompt, policy, grade):
            self.secret = uuid.uuid4().hex
            written.append(self.secret)
            answer = await policy.reply()
            await asyncio.sleep(0.01)
            read.append(self.secret)
            return Episode(answer, await grade(answer))

    draw(Keeper, n=8)
    assert len(read) == 16 and set(read) == set(written)


def test_the_samples_of_an_episode_hold_all_turns_and_metrics_count_episodes(draw):
    class Again:
        async def run(self, prompt, policy, grade):
            answer = await policy.reply()
            if prompt.uid == "q":
                await policy.complete([3, 4])  # a conversation apart
                answer.feedback = "not so"
                answer = await policy.complete(policy.sequences[0])
            return Episode(answer, await grade(answer))

    found = draw(Again, lambda request: "right" if request.request_id.endswith("/2") else "wrong", n=2)
    single, several = found.groups[0].samples[1], found.groups[1].samples[0]
    assert single.turns == [] and single.sequences == [] and single.response_text == "wrong"
    assert len(several.turns) == 3 and len(several.sequences) == 2
    assert several.grade.reward == 1.0 and several.response_text == "right"
    assert (
        len(several.response_ids)
        == len(several.sampler_logprobs)
        == sum(stop - start for start, stop in (turn.span for turn in several.turns))
    )
    metrics = train_metrics(found.groups, 1.0)
    assert metrics["train/samples"] == 4 and metrics["rollout/turns"] == 2.0 and metrics["rollout/forks"] == 0.5


def test_feedback_for_a_turn_that_cannot_have_a_hint_is_said(draw):
    class Hinting:
        async def run(self, prompt, policy, grade):
            answer = await policy.complete([1, 2])
            answer.feedback = "no"
            return Episode(answer, await grade(answer))

    assert "use policy.reply" in draw(Hinting).samples[0].grade.flags[0]


def test_an_environment_is_found_by_name_and_in_a_file_and_one_that_is_none_is_one_line(tmp_path):
    from sdpo.environments.registry import environment_maker
    from sdpo.environments.single_turn import SingleTurn

    assert isinstance(environment_maker(compose([]))(), SingleTurn)
    (tmp_path / "mine.py").write_text(
        "class Mine:\n    def __init__(self, tries=2):\n        self.tries = tries\n"
        "    async def run(self, prompt, policy, grade): ...\nclass Other: ...\n"
    )
    path = f"{ENVIRONMENT}.path={tmp_path}/mine.py"
    made = environment_maker(compose([path, f"{ENVIRONMENT}.name=Mine", f"{ENVIRONMENT}.settings={{tries: 5}}"]))
    assert made().tries == 5 and made() is not made()
    for overrides, why in (
        ([f"{ENVIRONMENT}.name=two_turns"], "single_turn | python"),
        ([path, f"{ENVIRONMENT}.name=Nobody"], "Mine, Other"),
        ([path, f"{ENVIRONMENT}.name=Other"], "async def run"),
        ([path, f"{ENVIRONMENT}.name=Mine", f"{ENVIRONMENT}.settings={{trials: 5}}"], "trials"),
        ([f"{ENVIRONMENT}.path={tmp_path}/not.py", f"{ENVIRONMENT}.name=Mine"], "a Python file"),
    ):
        with pytest.raises(ConfigError, match=ENVIRONMENT) as refused:
            environment_maker(compose(overrides))
        assert why in str(refused.value) and "\n" not in str(refused.value)


@pytest.mark.parametrize("place", ["engine", "environment", "grader"])
def test_a_signal_is_raised_once_between_two_callbacks_and_no_task_reports_it_again(place, draw, monkeypatch, caplog):
    reached_and_left = []

    def reached(here):
        if here == place and not reached_and_left:
            signal.raise_signal(signal.SIGINT)
            reached_and_left.append(here)  # whatever was under way has not been torn

    def serve(loop):
        while taken := loop.take(limit=1):
            yield
            reached("engine")
            loop.deliver(taken[0], Generation(taken[0].request_id, [1], [-1.0], "length"))

    async def grade(self, prompt, text, truncated):
        reached("grader")
        return Grade(GradeStatus.OK, 1.0)

    class Plain:
        async def run(self, prompt, policy, grade):
            answer = await policy.reply()
            reached("environment")
            return Episode(answer, await grade(answer))

    loop = EngineLoop(serve)
    monkeypatch.setattr(ScriptedEngine, "generate", lambda self, request: loop.generate(request))
    monkeypatch.setattr(Graders, "grade", grade)
    before = signal.getsignal(signal.SIGINT)
    interrupt.raise_on_signals()
    try:
        with pytest.raises(KeyboardInterrupt) as stopped:
            draw(Plain)
    finally:
        signal.signal(signal.SIGINT, before)
    assert reached_and_left == [place]
    stopped.value.__traceback__ = None  # it holds the tasks, which say what nobody asked for when they go
    del stopped
    gc.collect()
    assert not [record for record in caplog.records if record.name == "asyncio"]


def test_reprompts_are_made_as_groups_end_and_are_those_of_the_controller(draw, chatml_tokenizer):
    class Once:
        async def run(self, prompt, policy, grade):
            answer = await policy.reply()
            return Episode(answer, await grade(answer))

    drawn = draw(Once, lambda request: "right" if request.request_id[-1] in "13" else "wrong", reprompts=True)
    builder = RepromptBuilder(SelfDistillationConfig(), ChatRenderer(chatml_tokenizer, {"enable_thinking": False}), 0)
    for group in drawn.groups:
        assert group.reprompts == builder.build(group, 1)
        assert [r and r.demonstration_index for r in group.reprompts[0]] == [1, 3, 1, 1]
    assert all(group.reprompts is None for group in draw(Once).groups)
