"""tokens.jsonl: the numbers of the forward passes that the update makes, for a few rows that samples.jsonl has too."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch

from sdpo.models.load import load_causal_lm
from sdpo.records import PolicyGradient, TrainRow
from sdpo.tracking.history import TOKENS_FILE
from sdpo.training.run_folder import LOCK, locked
from sdpo.workers.actor import Actor, split_over_ranks
from sdpo.workers.token_log import traced_rows


def _update(config, *batches) -> list[dict]:
    """The lines of the updates."""
    actor, lines = Actor(config, 0, 1, "cpu", total_steps=10), []
    for batch in batches:
        lines += actor.update(split_over_ranks([batch], config.actor_rollout_ref.actor, 1)[0]).tokens
    return lines


def _direct(config, prompt: list[int], response: list[int]) -> list[float]:
    lm = load_causal_lm(config.actor_rollout_ref.model, torch.float32).eval()
    with torch.no_grad():
        logits = lm(torch.tensor([prompt + response])).logits[0, len(prompt) - 1 : -1]
    logits = logits / config.actor_rollout_ref.rollout.temperature
    return [float(row.log_softmax(-1)[token]) for row, token in zip(logits, response, strict=True)]


@pytest.mark.parametrize("rows_each", [1, None])
def test_the_numbers_are_those_of_a_plain_forward_pass(actor_config, mini_batch, rows_each):
    actor_config.actor_rollout_ref.rollout.temperature = 0.7
    actor_config.actor_rollout_ref.actor.ppo_micro_batch_size_per_gpu = rows_each
    lines = _update(actor_config, mini_batch)
    rows = {(row.prompt_uid, row.sample_index): row for row in mini_batch.rows}
    assert 0 < len(lines) <= 8 and {line["policy_version"] for line in lines} == {0}
    for line in lines:
        row = rows[line["uid"], line["index"]]
        assert len(line["tokens"]) == len(row.policy_ids)
        prompt = row.token_ids[: row.spans[0][0]]
        assert line["student"] == pytest.approx(_direct(actor_config, prompt, row.policy_ids), abs=2e-3)
        teacher = _direct(actor_config, row.distillation[0].context_ids, row.policy_ids)
        assert line["teacher"] == pytest.approx(teacher, abs=2e-3)


def test_of_two_fsdp_ranks_the_first_notes_its_rows_and_neither_waits_for_the_other(
    programs, actor_config, mini_batch, tmp_path
):
    torch.save((actor_config, [[mini_batch]]), tmp_path / "input.pt")
    ranks = [programs.start(Path(__file__).with_name("fsdp_rank.py"), tmp_path, rank, 2) for rank in range(2)]
    assert [rank.finish().returncode for rank in ranks] == [0, 0]
    rows = {(row.prompt_uid, row.sample_index): row for row in mini_batch.rows}
    lines = torch.load(tmp_path / "result.pt", weights_only=False)[0].tokens
    assert 0 < len(lines) < len(rows)
    for line in lines:
        row = rows[line["uid"], line["index"]]
        teacher = _direct(actor_config, row.distillation[0].context_ids, row.policy_ids)
        assert line["teacher"] == pytest.approx(teacher, abs=2e-3)


def test_the_lines_of_an_update_carry_the_version_that_sampled_and_are_told_once(actor_config, mini_batch):
    lines = _update(actor_config, mini_batch, mini_batch)
    assert [line["policy_version"] for line in lines] == sorted([0, 1] * (len(lines) // 2))
    assert len({(line["policy_version"], line["uid"], line["index"]) for line in lines}) == len(lines)


def test_a_second_pass_over_the_batch_notes_no_second_lines(actor_config, mini_batch):
    actor_config.actor_rollout_ref.actor.ppo_epochs = 2
    lines = _update(actor_config, mini_batch)
    assert {line["policy_version"] for line in lines} == {0}
    assert len({(line["uid"], line["index"]) for line in lines}) == len(lines) > 0


def test_without_a_teacher_or_with_no_samples_wanted_there_are_no_lines(actor_config, mini_batch):
    actor_config.trainer.log_samples = 0
    assert not _update(actor_config, mini_batch)
    actor_config.trainer.log_samples = 64
    actor_config.actor_rollout_ref.actor.policy_loss.loss_mode = "vanilla"
    for i, row in enumerate(mini_batch.rows):
        row.policy_gradient, row.distillation = PolicyGradient((-1.0) ** i), ()
    assert not _update(actor_config, mini_batch)


def test_a_worker_never_touches_the_files_of_a_run_folder(actor_config, mini_batch, tmp_path):
    """Another run's, as likely as not: only who holds the folder's lock may write, and that is the controller."""
    actor_config.trainer.default_local_dir = str(tmp_path)
    (tmp_path / TOKENS_FILE).write_text("the user's\n")
    with locked(tmp_path):
        assert _update(actor_config, mini_batch)
    assert (tmp_path / TOKENS_FILE).read_text() == "the user's\n"
    assert sorted(file.name for file in tmp_path.iterdir()) == [LOCK, TOKENS_FILE]


def test_two_rows_of_each_of_the_first_groups_are_chosen_and_only_such_with_a_teacher_here():
    rows = [TrainRow.single_turn(f"p{g}", i, [1], [2], [1] if i != 1 else None) for g in range(9) for i in range(4)]
    assert traced_rows(rows, rows) == {(f"p{g}", i) for g in range(4) for i in (0, 2)}
    assert traced_rows(rows, rows[:4]) == {("p0", 0), ("p0", 2)}
