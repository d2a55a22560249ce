"""Grader processes that die: nothing is lost, nobody else's grade suffers, and nothing is restarted for ever."""

from __future__ import annotations

import asyncio
from concurrent.futures import Future

import pytest
import ray

from sdpo.config.schema import Config
from sdpo.records import Grade, GradeStatus, Prompt
from sdpo.workers.grader import GradingMeter
from sdpo.workers.ray_workers import GIVE_UP, RayGraderPool

GRADE = Grade(GradeStatus.OK, 1.0, 1.0)


class Reference(str):
    """Stands in for what Ray promises: done at once, with what `get` makes of the text."""

    get = None

    def __await__(self):
        yield from ()
        return Reference.get(self)

    def future(self) -> Future:
        future: Future = Future()
        future.set_result(None)
        return future


class Process:
    """Stands in for an actor: `remote` keeps the text, awaiting it decides."""

    def __init__(self) -> None:
        self.grade, self.killed = self, False

    def remote(self, prompt, text, truncated):
        return Reference(text)


@pytest.fixture
def pool(monkeypatch):
    config = Config()
    config.custom_reward_function.path, config.custom_reward_function.name = "reward.py", "score"
    processes = [Process(), Process()]
    made = RayGraderPool(processes, config)
    made.deaths = []

    def get(text):
        if text.startswith("poison") or (text.startswith("unlucky") and text not in made.deaths):
            made.deaths.append(text)
            raise ray.exceptions.ActorDiedError()
        return GRADE

    monkeypatch.setattr(Reference, "get", staticmethod(get))
    monkeypatch.setattr(ray, "kill", lambda process: setattr(process, "killed", True))
    made.processes = processes
    return made


def grades(pool, texts):
    async def all_at_once():
        return await asyncio.gather(*(pool.grade(Prompt("p", (), "exact", "gold"), text, False) for text in texts))

    return asyncio.run(all_at_once())


def test_a_response_whose_process_died_is_graded_again(pool):
    assert grades(pool, ["a", "unlucky 1", "unlucky 2", "b"]) == [GRADE] * 4


def test_a_response_that_ends_every_process_is_a_failure_of_the_grader_and_the_others_are_graded(pool):
    found = grades(pool, ["a", "poison", "b", "c", "poison 2", "d"])
    assert [grade.status for grade in found] == ["ok", "infra_error", "ok", "ok", "infra_error", "ok"]
    assert found[1].reward is None
    assert found[1].flags[0].endswith("on data_source 'exact', custom_reward_function score of reward.py")
    assert not any(process.killed for process in pool.processes)


@pytest.mark.parametrize("retries", [0, 2, 4])
def test_a_few_such_responses_side_by_side_take_nobody_along(pool, retries):
    pool._retries = retries
    found = grades(pool, ["a", *(f"poison {number}" for number in range(GIVE_UP - 1)), "b", "c"])
    assert [grade.status for grade in found] == ["ok", *["infra_error"] * (GIVE_UP - 1), "ok", "ok"]
    assert not any(process.killed for process in pool.processes)


def test_without_retries_too_the_processes_are_given_up(pool):
    pool._retries = 0
    assert {grade.status for grade in grades(pool, [f"poison {n}" for n in range(20)])} == {GradeStatus.INFRA_ERROR}
    assert len(pool.deaths) == GIVE_UP and all(process.killed for process in pool.processes)


def test_after_a_few_deaths_in_a_row_no_process_is_started_again_and_the_reason_is_one_line(pool):
    found = grades(pool, [f"poison {number}" for number in range(100)])
    assert {grade.status for grade in found} == {GradeStatus.INFRA_ERROR}
    assert len(pool.deaths) == GIVE_UP * (Config().grading.retries + 1)
    assert all(process.killed for process in pool.processes)
    (flag,) = found[-1].flags
    assert flag.startswith(f"{GIVE_UP} responses in a row ended the grader process each time, the last on data_source")
    assert "'exact', custom_reward_function score of reward.py" in flag
    assert "\n" not in flag
    assert grades(pool, ["a"])[0].status is GradeStatus.INFRA_ERROR


@pytest.mark.slow
@pytest.mark.timeout(900)
def test_real_processes_that_a_reward_function_ends_are_given_up(tmp_path):
    """A function that ends its process on some answers, then on all."""
    from sdpo.workers.placement import start_ray
    from sdpo.workers.ray_workers import grader_processes

    (tmp_path / "reward.py").write_text(
        "import os\n\ndef score(data_source, solution_str, ground_truth, extra_info):\n"
        "    if 'poison' in solution_str:\n        os._exit(3)\n    return 1.0\n"
    )
    config = Config()
    config.custom_reward_function.path, config.custom_reward_function.name = str(tmp_path / "reward.py"), "score"
    start_ray(config)
    try:
        pool = RayGraderPool(grader_processes(config, {}), config)
        found = grades(pool, ["a", "b", "poison", "c", "d"])
        assert [grade.status for grade in found] == ["ok", "ok", "infra_error", "ok", "ok"]
        assert "died each time" in found[2].flags[0]
        found = grades(pool, [f"poison {number}" for number in range(30)])
        assert {grade.status for grade in found} == {GradeStatus.INFRA_ERROR}
        assert found[-1].flags[0].startswith(f"{GIVE_UP} responses in a row")
        assert "custom_reward_function score" in found[-1].flags[0]
    finally:
        ray.shutdown()


def test_speed_and_depth_of_the_queue_are_measured_from_call_to_call(monkeypatch):
    now = [100.0]
    monkeypatch.setattr("sdpo.workers.grader.time.monotonic", lambda: now[0])
    meter = GradingMeter()
    now[0] += 50  # idle time does not count
    for _ in range(4):
        meter.begin()
    now[0] += 2
    for _ in range(4):
        meter.end()
    now[0] += 50
    assert meter.take() == {"grade/queue_depth": 4.0, "grade/responses_per_s": 2.0}
    assert meter.take() == {"grade/queue_depth": 0.0}
