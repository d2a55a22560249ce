"""GRPO with what is taken off rewards and with groups drawn again: which groups are trained on, and after a resume."""

from __future__ import annotations

import json
import shutil

import pytest

from sdpo.algorithms.grpo import advantages_of
from sdpo.algorithms.shaping import overlong_penalty, shaped_reward
from sdpo.config.compose import compose
from sdpo.config.validate import validate
from sdpo.errors import ConfigError
from sdpo.records import Grade, GradeStatus, Group, Prompt, Sample
from sdpo.training.rollouts import Rollouts, differs
from sdpo.training.run import train
from sdpo.training.shaping import shaping_metrics

FILTER = "algorithm.filter_groups"
BUFFER = "reward_model.overlong_buffer"


def sample(index: int, reward: float | None, tokens: int = 2) -> Sample:
    grade = Grade(GradeStatus.INFRA_ERROR if reward is None else GradeStatus.OK, reward)
    return Sample("p", index, [1], [2] * tokens, "", "stop", 0, None, grade)


def group(*rewards: float | None) -> Group:
    return Group(Prompt("p", (), "x"), [sample(i, reward) for i, reward in enumerate(rewards)])


def grpo(*overrides: str):
    return compose([*overrides], "baseline_grpo")


@pytest.mark.parametrize(("tokens", "penalty"), [(1, 0.0), (4, 0.0), (6, 0.5), (8, 1.0), (20, 1.0)])
def test_the_last_tokens_of_a_long_response_cost_more_and_more_and_never_more_than_the_factor(tokens, penalty):
    on = [f"{BUFFER}.enable=true", f"{BUFFER}.len=4", "data.max_response_length=8"]
    assert overlong_penalty(tokens, grpo(*on)) == penalty
    assert overlong_penalty(tokens, grpo(*on, f"{BUFFER}.penalty_factor=0.5")) == penalty / 2
    assert overlong_penalty(tokens, grpo(*on[1:])) == 0.0


def test_what_is_taken_off_changes_advantages_and_nothing_else():
    kl = ["algorithm.use_kl_in_reward=true", "algorithm.kl_ctrl.kl_coef=0.1"]
    config = grpo(f"{BUFFER}.enable=true", f"{BUFFER}.len=4", "data.max_response_length=8", *kl)
    rows = Group(Prompt("p", (), "x"), [sample(0, 1.0, 2), sample(1, 1.0, 8), sample(2, 0.0, 2)])
    rows.samples[0].kl, rows.samples[2].kl = 0.3, -0.2  # an estimate may be below 0
    assert [shaped_reward(s, config) for s in rows.samples] == pytest.approx([0.97, 0.0, 0.02])
    (advantages,) = advantages_of([rows], config)
    assert advantages == pytest.approx({0: 0.64, 1: -0.33, 2: -0.31}) and sum(advantages.values()) == pytest.approx(0)
    assert [s.reward for s in rows.samples] == [1.0, 1.0, 0.0]
    found = shaping_metrics([rows], [rows], config)
    assert found["train/overlong_penalty"] == pytest.approx(1 / 3)
    assert found["actor/reward_kl_penalty"] == pytest.approx((0.15 - 0.1) / 3)


def test_a_group_differs_in_successes_or_in_rewards_and_lost_grades_say_nothing():
    acc, reward = grpo(), grpo(f"{FILTER}.metric=seq_reward")
    table = [((1.0, 0.0), 1, 1), ((0.2, 0.4), 0, 1), ((1.0, 1.0), 0, 0), ((None, 1.0), 0, 0), ((None, None), 0, 0)]
    for rewards, by_success, by_reward in table:
        assert (differs(group(*rewards), acc), differs(group(*rewards), reward)) == (by_success, by_reward)


class Draws:
    """Batches of groups by number; says which were asked for."""

    def __init__(self, batches: dict[int, list[Group]]) -> None:
        self.batches, self.asked = batches, []

    def submit(self, jobs, plan):
        self.asked.append((jobs, plan.step))
        return self.batches[plan.step]

    def collect(self, ticket):
        return ticket


MIXED, DEAD = group(1.0, 0.0), group(1.0, 1.0)


def rollouts(batches, *overrides: str, drawn: int = 0) -> Rollouts:
    config = grpo("data.train_batch_size=2", f"{FILTER}.enable=true", *overrides)
    return Rollouts(config, Draws(batches), lambda number: number, 9, drawn)


def test_prompts_are_drawn_until_enough_groups_differ_and_the_next_step_goes_on_behind_them():
    made = rollouts({1: [DEAD, MIXED], 2: [DEAD, DEAD], 3: [MIXED, MIXED], 4: [MIXED, MIXED]})
    drawn, kept = made.take_enough(1)
    assert (len(drawn), kept, made.drawn) == (6, [MIXED, MIXED], 3)
    assert made.workers.asked == [(1, 1), (2, 2), (3, 3)]  # other seeds, also when an epoch brings a prompt again
    assert made.take_enough(2)[1] == [MIXED, MIXED] and made.drawn == 4
    resumed = rollouts({4: [MIXED, MIXED]}, drawn=3)
    assert resumed.take_enough(2)[1] == [MIXED, MIXED]


def test_after_the_last_batch_allowed_what_there_is_is_trained_on():
    made = rollouts(dict.fromkeys(range(1, 9), [DEAD, DEAD]) | {2: [MIXED, DEAD]}, f"{FILTER}.max_num_gen_batches=3")
    drawn, kept = made.take_enough(1)
    assert (len(drawn), kept) == (6, [MIXED])
    assert shaping_metrics(kept, drawn, made.config) == {"train/gen_batches": 3.0, "train/trained_groups": 1.0}


@pytest.mark.parametrize(
    "overrides",
    [
        [f"{BUFFER}.enable=true", f"{BUFFER}.len=10", "data.max_response_length=8"],
        [f"{FILTER}.enable=true", "actor_rollout_ref.rollout.max_staleness=1"],
        [f"{FILTER}.enable=true", "actor_rollout_ref.actor.policy_loss.loss_mode=sdpo"],
        ["algorithm.kl_ctrl.type=adaptive"],
    ],
)
def test_what_cannot_work_is_one_line(overrides):
    with pytest.raises(ConfigError) as refused:
        validate(grpo(*overrides))
    assert "\n" not in str(refused.value) and "allowed" in str(refused.value)


def test_a_resumed_run_with_all_of_it_ends_like_the_unbroken_one(tmp_path):
    """The embedded model; two steps, whose second is taken away and made again."""
    words = [
        "cluster=inline", "actor_rollout_ref.rollout.name=hf", "actor_rollout_ref.rollout.n=6",
        "data.train_max_samples=8",
        "data.train_batch_size=2", "actor_rollout_ref.actor.ppo_mini_batch_size=1", "data.val_files=[]",
        "trainer.save_freq=1", "trainer.total_training_steps=2", f"trainer.default_local_dir={tmp_path}",
        f"{FILTER}.enable=true", f"{FILTER}.max_num_gen_batches=3", f"{BUFFER}.enable=true", f"{BUFFER}.len=40",
        "algorithm.use_kl_in_reward=true", "actor_rollout_ref.actor.use_kl_loss=true", "algorithm.adv_estimator=rloo",
        "actor_rollout_ref.actor.optim.lr=1e-3",
    ]  # fmt: skip
    found = []
    for _ in range(2):
        assert train(grpo(*words)) == 0
        found.append(((tmp_path / "model" / "model.safetensors").read_bytes(), told(tmp_path)))
        shutil.rmtree(tmp_path / "checkpoints" / "step_2")
        shutil.rmtree(tmp_path / "model")
    assert found[0] == found[1]
    first, second = found[0][1]
    assert all(step["train/trained_groups"] for step in (first, second))
    assert first["train/gen_batches"] > 1
    assert first["actor/reward_kl_penalty"] == pytest.approx(0, abs=1e-6) and second["actor/kl_loss"] > 0
    assert min(first["train/overlong_penalty"], second["train/overlong_penalty"]) > 0


def told(folder) -> list[dict[str, float]]:
    """What the run logged of its steps, without what the clock says."""
    lines = map(json.loads, (folder / "metrics.jsonl").read_text().splitlines())
    clock = ("time", "timing/", "perf/", "grade/")
    return [{k: v for k, v in line.items() if not k.startswith(clock)} for line in lines if line["step"]]
