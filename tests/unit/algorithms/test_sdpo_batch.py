from __future__ import annotations

import pytest

from sdpo.algorithms.rows import train_batch
from sdpo.algorithms.sdpo import Sdpo
from sdpo.records import Denominators, Distillation, Grade, GradeStatus, Group, Prompt, Reprompt, Sample


def group_of(uid, *rewards, **changes):
    samples = []
    for index, reward in enumerate(rewards):
        status = GradeStatus.INFRA_ERROR if reward is None else GradeStatus.OK if reward else GradeStatus.WRONG
        sample = Sample(uid, index, [1, 2], [10 + index, 11], "text", "stop", 0, [-0.1, -0.2], Grade(status, reward))
        for name, value in changes.get(f"s{index}", {}).items():
            setattr(sample, name, value)
        samples.append(sample)
    return Group(Prompt(uid, ({"role": "user", "content": "q"},), "test"), samples)


class FirstSuccessTeaches:
    """A stand-in for the reprompt builder: every failure of a group with a success gets a reprompt."""

    def __init__(self):
        self.steps = []

    def build(self, group, step):
        self.steps.append(step)
        winners = [s.index for s in group.samples if s.grade.reward == 1.0]
        built = [
            Reprompt([1, 2, 3, s.index], "shown", winners[0], used_feedback=s.index == 1)
            if winners and s.grade.reward != 1.0
            else None
            for s in group.samples
        ]
        return built, {"trimmed": 2.0, "none": 1.0}


def build(groups, config, prompts_per_step=2):
    config.actor_rollout_ref.actor.ppo_mini_batch_size = prompts_per_step
    routed = Sdpo(config, FirstSuccessTeaches()).route(groups, step=7)
    return train_batch(groups, routed, config.actor_rollout_ref.actor)


def test_rows_are_the_samples_with_a_reprompt_and_carry_what_the_actor_needs(plain_config):
    batch = build([group_of("a", 1.0, 0.0), group_of("b", 0.0, 0.0)], plain_config())
    (mini,) = batch.mini_batches
    (row,) = mini.rows
    assert (row.prompt_uid, row.sample_index, row.token_ids, row.spans) == ("a", 1, [1, 2, 11, 11], ((2, 4),))
    assert row.distillation == (Distillation((2, 4), [1, 2, 3, 1]),) and row.sampler_logprobs == [-0.1, -0.2]
    assert row.policy_gradient is None and row.cross_entropy is None
    assert mini.denominators()["distillation"] == Denominators("distillation", 2, 1)
    assert list(batch.reprompts) == [("a", 1)]


def test_ungraded_aborted_and_empty_samples_are_out_of_everything(plain_config):
    group = group_of("a", 1.0, None, 0.0, 0.0, 0.0, s3={"finish_reason": "abort"}, s4={"response_ids": []})
    batch = build([group], plain_config())
    assert [row.sample_index for row in batch.mini_batches[0].rows] == [2]
    assert batch.metrics["sdpo/signal_frac"] == pytest.approx(1 / 2)


def test_fractions_are_of_usable_samples_and_builder_counts_add_up(plain_config):
    batch = build([group_of("a", 1.0, 0.0, 0.0, 0.0), group_of("b", 0.0, 0.0)], plain_config())
    assert batch.metrics["sdpo/signal_frac"] == pytest.approx(3 / 6)
    assert batch.metrics["sdpo/demonstration_frac"] == pytest.approx(3 / 6)
    assert batch.metrics["sdpo/feedback_frac"] == pytest.approx(1 / 6)
    assert batch.metrics["sdpo/trimmed_frac"] == pytest.approx(4 / 6)
    assert batch.metrics["sdpo/masked_overlong_frac"] == batch.metrics["sdpo/both_frac"] == 0.0


def test_mini_batches_hold_a_fixed_number_of_prompts_and_empty_ones_are_counted(plain_config):
    mixed, hopeless = [group_of(uid, 1.0, 0.0) for uid in "ae"], [group_of(uid, 0.0) for uid in "bcd"]
    groups = [mixed[0], *hopeless, mixed[1]]
    batch = build(groups, plain_config())
    assert [[row.prompt_uid for row in mini.rows] for mini in batch.mini_batches] == [["a"], ["e"]]
    assert batch.metrics["actor/empty_mini_batches"] == 1.0


def test_nothing_usable_gives_no_mini_batch_and_finite_metrics(plain_config):
    batch = build([group_of("a", None, None)], plain_config())
    assert batch.mini_batches == []
    assert batch.metrics["sdpo/signal_frac"] == 0.0


def test_the_step_reaches_the_builder(plain_config):
    source = FirstSuccessTeaches()
    Sdpo(plain_config(), source).route([group_of("a", 1.0, 0.0)], step=7)
    assert source.steps == [7]
