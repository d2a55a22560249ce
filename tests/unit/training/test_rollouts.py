"""What is drawn while the step before trains: when, with which weights, and after a resume."""

from __future__ import annotations

import pytest

from sdpo.config.compose import compose
from sdpo.errors import CheckpointError, RolloutError
from sdpo.records import Grade, GradeStatus, Group, Prompt, Sample, TestOutcome, Turn
from sdpo.training.rollouts import DRAWN_AHEAD, Rollouts
from sdpo.workers.group import Versions
from sdpo.workers.rollout import RenderedPrompt

TESTS = (TestOutcome(GradeStatus.TIMEOUT, "f(1)", "2", "", "late \ud800", 0.1, True),)
GRADE = Grade(GradeStatus.WRONG, 0.0, 0.5, "no\n", TESTS, 0.25, ("truncated",))
TURNS = [Turn(0, (1, 3), "a", "stop", ()), Turn(1, (2, 3), "b", "length", None, "bad"),
         Turn(0, (4, 5), "c", "stop", ({"role": "tool", "content": "é"},))]  # fmt: skip


def sample(uid: str, step: int, version: int) -> Sample:
    return Sample(
        uid, 0, [1], [2, 3, step], "x", "stop", version, [-0.1, float("-inf"), -1 / 3], GRADE, TURNS, [[1], [2]]
    )


class Workers:
    def __init__(self, max_staleness: int = 1) -> None:
        self.policy_version, self.engine_version, self.calls = 0, 0, []
        self.versions = Versions(max_staleness)

    def submit(self, jobs, plan):
        self.calls.append(("submit", plan.step, self.engine_version))
        return [Group(job.prompt, [sample(job.prompt.uid, plan.step, self.engine_version)]) for job in jobs]

    def collect(self, ticket):
        self.calls.append(("collect", ticket[0].samples[0].response_ids[-1]))
        return self.versions.check(ticket, self.policy_version)

    def train(self):
        self.versions.updated(self.policy_version)
        self.policy_version += 2
        self.engine_version = self.policy_version


def rollouts(workers, staleness: int = 1, last: int = 4) -> Rollouts:
    config = compose([f"actor_rollout_ref.rollout.max_staleness={staleness}"])
    return Rollouts(config, workers, jobs, last)


def jobs(step: int) -> list[RenderedPrompt]:
    return [RenderedPrompt(Prompt(f"p{step}{k}", (), "x"), [1]) for k in range(2)]


def run(workers, batches, steps) -> list[tuple[int, int]]:
    seen = []
    for step in steps:
        groups = batches.take(step)
        assert [group.prompt.uid for group in groups] == [job.prompt.uid for job in jobs(step)]
        seen += {(s.policy_version, s.staleness) for group in groups for s in group.samples}
        workers.train()
    return seen


def test_in_turn_every_sample_comes_from_the_weights_that_it_trains():
    workers = Workers(0)
    assert run(workers, rollouts(workers, 0), range(1, 5)) == [(0, 0), (2, 0), (4, 0), (6, 0)]
    assert [call[0] for call in workers.calls] == ["submit", "collect"] * 4


def test_one_step_off_the_next_batch_is_asked_for_before_the_weights_move_and_the_last_step_asks_for_none():
    workers = Workers()
    assert run(workers, rollouts(workers), range(1, 5)) == [(0, 0), (0, 1), (2, 1), (4, 1)]
    submits = [call[1:] for call in workers.calls if call[0] == "submit"]
    assert submits == [(1, 0), (2, 0), (3, 2), (4, 4)]
    assert workers.calls[:3] == [("submit", 1, 0), ("collect", 1), ("submit", 2, 0)]


def test_weights_older_than_allowed_are_refused_with_both_versions():
    workers = Workers()
    ticket = workers.submit(jobs(1), type("Plan", (), {"step": 1}))
    workers.train()
    assert {s.staleness for g in workers.collect(ticket) for s in g.samples} == {1}
    workers.train()
    with pytest.raises(RolloutError, match="version 0, the actor is at 4; allowed: 4, 2"):
        workers.collect(ticket)


def test_an_update_without_a_step_makes_nothing_stale():
    workers = Workers()
    ticket = workers.submit(jobs(1), type("Plan", (), {"step": 1}))
    workers.versions.updated(0)
    assert {s.staleness for g in workers.collect(ticket) for s in g.samples} == {0}


def test_a_resumed_run_trains_on_the_very_samples_that_were_drawn_ahead(tmp_path):
    workers, file = Workers(), tmp_path / DRAWN_AHEAD
    unbroken = rollouts(workers)
    run(workers, unbroken, [1])
    unbroken.save(file, 2)
    expected = unbroken.take(2)
    assert expected[0].samples[0].staleness == 1
    later = Workers()
    later.policy_version = later.engine_version = 2
    resumed = rollouts(later)
    resumed.load(file, 2)
    assert resumed.take(2) == expected
    assert later.calls == [("submit", 3, 2)]


@pytest.mark.parametrize("staleness", [0, 1])
def test_in_turn_and_at_the_end_nothing_is_drawn_ahead_and_nothing_saved(tmp_path, staleness):
    workers = Workers(staleness)
    batches = rollouts(workers, staleness, last=2)
    run(workers, batches, [1, 2])
    batches.save(tmp_path / DRAWN_AHEAD, 3)
    assert list(tmp_path.iterdir()) == []
    batches.load(tmp_path / DRAWN_AHEAD, 3)


def test_samples_of_other_prompts_are_drawn_again_and_a_damaged_file_is_one_line(tmp_path):
    workers, file = Workers(), tmp_path / DRAWN_AHEAD
    batches = rollouts(workers)
    run(workers, batches, [1])
    batches.save(file, 2)
    other = rollouts(Workers())
    other.load(file, 3)
    assert other._drawn == {}
    for text in ('{"uid": "p20", "samples": [{}]}', "{", '{"samples": []}'):
        file.write_text(text)
        with pytest.raises(CheckpointError, match="drawn again"):
            other.load(file, 2)
