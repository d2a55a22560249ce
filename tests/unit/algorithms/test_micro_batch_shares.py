"""`loss_normalization=micro_batch`: the reference's loss, written out with its masks."""

from __future__ import annotations

import random

import pytest
import torch

from sdpo.algorithms.rows import train_batch
from sdpo.algorithms.sdpo import Sdpo
from sdpo.losses.reduce import AGG_MODES, LENGTH_EPSILON, token_weights
from sdpo.records import Grade, GradeStatus, Group, MiniBatch, Prompt, Reprompt, Sample
from sdpo.tokens.loss_batch import loss_batch

LIMIT = 9  # tokens of a response


class Chosen:
    """A stand-in for the reprompt builder: these (uid, index) have a signal."""

    def __init__(self, signal: set[tuple[str, int]]) -> None:
        self.signal = signal

    def build(self, group, step):
        chosen = [(group.prompt.uid, s.index) in self.signal for s in group.samples]
        return [Reprompt([1], "shown", None, True) if yes else None for yes in chosen], {}


def groups_of(lengths: list[list[int]]) -> list[Group]:
    made = []
    for number, group in enumerate(lengths):
        prompt = Prompt(f"p{number}", ({"role": "user", "content": "q"},), "test")
        grade = Grade(GradeStatus.WRONG, 0.0)
        samples = [
            Sample(f"p{number}", i, [1, 2], [100 * number + i] * n, "", "stop", 0, None, grade)
            for i, n in enumerate(group)
        ]
        made.append(Group(prompt, samples))
    return made


def build(config, signal: set[tuple[str, int]], groups: list[Group]):
    routed = Sdpo(config, Chosen(signal)).route(groups, 0)
    return train_batch(groups, routed, config.actor_rollout_ref.actor)


def by_the_reference(lengths: list[int], signal: list[bool], losses: list[list[float]], size: int, mode: str) -> float:
    """Sum over micro-batches of `size` responses of (mean over those with a signal) * size / responses."""
    total = 0.0
    for start in range(0, len(lengths), size):
        part = [i for i in range(start, min(start + size, len(lengths))) if signal[i]]
        if not part:
            continue
        if mode == "token-mean":
            value = sum(sum(losses[i]) for i in part) / sum(lengths[i] for i in part)
        elif mode == "seq-mean-token-mean":
            value = sum(sum(losses[i]) / (lengths[i] + LENGTH_EPSILON) for i in part) / len(part)
        elif mode == "seq-mean-token-sum":
            value = sum(sum(losses[i]) for i in part) / len(part)
        else:
            value = sum(sum(losses[i]) for i in part) / LIMIT
        total += value * min(size, len(lengths) - start) / len(lengths)
    return total


def total(rows, losses: dict[int, list[float]], mode: str) -> float:
    """Through the batch of all `rows` in one forward."""
    batch = loss_batch(rows, MiniBatch(rows).denominators(), LIMIT).distillation
    values = [value for row in rows for value in losses[row.policy_ids[0]]]
    weights = token_weights(batch, mode, "micro_batch", torch.float64)
    return float((weights * torch.tensor(values, dtype=torch.float64)).sum())


def test_three_responses_of_eight_with_a_signal_weigh_three_eighths_at_micro_batch_1(plain_config):
    config = plain_config(loss_normalization="micro_batch")
    actor = config.actor_rollout_ref.actor
    actor.ppo_mini_batch_size, actor.ppo_micro_batch_size_per_gpu = 2, 1
    signal = {("p0", 1), ("p0", 2), ("p1", 3)}
    (mini,) = build(config, signal, groups_of([[2, 3, 4, 5]] * 2)).mini_batches
    losses = {row.policy_ids[0]: [1.0] * len(row.policy_ids) for row in mini.rows}
    assert total(mini.rows, losses, "token-mean") == pytest.approx(0.375)
    config.actor_rollout_ref.actor.self_distillation.loss_normalization = "component"
    (mini,) = build(config, signal, groups_of([[2, 3, 4, 5]] * 2)).mini_batches
    assert all(row.micro_batch is None for row in mini.rows)


@pytest.mark.parametrize("mode", AGG_MODES)
@pytest.mark.parametrize("size", [1, 2, 3, 4, 8, 100])
def test_the_loss_is_the_references_however_rows_run_together(plain_config, mode, size):
    rng = random.Random(size)
    config = plain_config(loss_normalization="micro_batch")
    actor = config.actor_rollout_ref.actor
    actor.ppo_mini_batch_size, actor.ppo_micro_batch_size_per_gpu = 3, size
    for _ in range(10):
        lengths = [[rng.randint(1, LIMIT) for _ in range(4)] for _ in range(6)]  # two mini-batches of three groups
        signal = {(f"p{g}", i) for g in range(6) for i in range(4) if rng.random() < 0.5}
        losses = {100 * g + i: [rng.uniform(-1, 3) for _ in range(lengths[g][i])] for g in range(6) for i in range(4)}
        batch = build(config, signal, groups_of(lengths))
        for mini in batch.mini_batches:
            own = range(3) if mini.rows[0].prompt_uid in ("p0", "p1", "p2") else range(3, 6)
            wanted = by_the_reference(
                [n for g in own for n in lengths[g]],
                [(f"p{g}", i) in signal for g in own for i in range(4)],
                [losses[100 * g + i] for g in own for i in range(4)],
                size,
                mode,
            )
            assert total(mini.rows, losses, mode) == pytest.approx(wanted, rel=1e-12)
            rng.shuffle(mini.rows)
            cut = rng.randint(0, len(mini.rows))  # forwards of our own
            split = [part for part in (mini.rows[:cut], mini.rows[cut:]) if part]
            assert sum(total(part, losses, mode) for part in split) == pytest.approx(wanted, rel=1e-12)


def test_micro_batches_cut_by_tokens_are_as_many_as_verl_makes(plain_config):
    config = plain_config(loss_normalization="micro_batch")
    actor = config.actor_rollout_ref.actor
    actor.ppo_mini_batch_size, actor.ppo_max_token_len_per_gpu = 2, 20  # prompts of two tokens
    signal = {(f"p{g}", i) for g in range(2) for i in range(4)}
    (mini,) = build(config, signal, groups_of([[8, 8, 3, 3], [3, 3, 8, 8]])).mini_batches
    shares = [row.micro_batch for row in mini.rows]
    assert sum(share.share / share.sequences for share in shares) == pytest.approx(1.0)
    assert sorted(share.sequences for share in shares) == [2, 2, 3, 3, 3, 3, 3, 3]  # 60 tokens at 20: three
