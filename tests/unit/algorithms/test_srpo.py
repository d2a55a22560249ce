from __future__ import annotations

from sdpo.algorithms.rows import train_batch, weighted
from sdpo.algorithms.srpo import Srpo
from sdpo.records import Denominators, Grade, GradeStatus, Group, Prompt, Reprompt, Sample


def group_of(uid, *rewards):
    samples = []
    for index, reward in enumerate(rewards):
        status = GradeStatus.INFRA_ERROR if reward is None else GradeStatus.OK if reward else GradeStatus.WRONG
        samples.append(Sample(uid, index, [1, 2], [10 + index, 11], "", "stop", 0, [-0.1] * 2, Grade(status, reward)))
    return Group(Prompt(uid, ({"role": "user", "content": "q"},), "test"), samples)


class TellsAll:
    """Everybody has a reprompt but the sample at `silent`."""

    def __init__(self, silent=None):
        self.silent = silent

    def build(self, group, step):
        built = [None if s.index == self.silent else Reprompt([9, s.index], "", None, True) for s in group.samples]
        return built, {}


def route(groups, config, silent=None):
    return Srpo(config, TellsAll(silent)).route(groups, step=3)


def kinds(rows):
    """Of the rows that have any weight."""
    return [(r.sample_index, "pull" if r.distillation else r.policy_gradient.advantage) for r in rows if weighted(r)]


def test_failures_with_a_signal_are_distilled_and_the_rest_is_pushed(plain_config):
    routed = route([group_of("a", 1.0, 0.0, 0.0, 0.0)], plain_config(), silent=3)
    assert kinds(routed.rows[0]) == [(0, 0.75), (1, "pull"), (2, "pull"), (3, -0.25)]
    assert routed.metrics["srpo/distilled_frac"] == 0.5


def test_a_group_without_a_success_still_teaches_and_one_without_a_failure_is_left_out(plain_config):
    routed = route([group_of("a", 0.0, 0.0), group_of("b", 1.0, 1.0)], plain_config(), silent=1)
    assert [kinds(rows) for rows in routed.rows] == [[(0, "pull")], []]


def test_ungraded_samples_are_out_of_both(plain_config):
    assert kinds(route([group_of("a", None, 1.0, 0.0)], plain_config()).rows[0]) == [(1, 0.5), (2, "pull")]


def test_one_normalisation_is_over_all_routed_tokens(plain_config):
    config, groups = plain_config(), [group_of("a", 1.0, 0.0, 0.0)]
    (mini,) = train_batch(groups, route(groups, config), config.actor_rollout_ref.actor).mini_batches
    assert set(map(str, mini.denominators(together=True).values())) == {str(Denominators("all", 6, 3))}
