from __future__ import annotations

import json
import logging

import pytest

from sdpo.config.compose import compose
from sdpo.errors import DataError
from sdpo.models.load import load_tokenizer
from sdpo.tokens.chat import ChatRenderer
from sdpo.training.jobs import DROPPED_FILE, load_jobs, write_dropped
from sdpo.training.run import train

GOOD = {"data_source": "programs", "prompt": "add 1", "reward_model": {"ground_truth": {"cases": [1]}}}
LONG = {**GOOD, "prompt": "add 1, then " * 200 + "add 1"}
UNGRADABLE = {**GOOD, "reward_model": {"ground_truth": {"cases": []}}}
INLINE = ("cluster=inline", "actor_rollout_ref.rollout.name=hf", "trainer.export_hf=false", "trainer.save_freq=0")


def settings(tmp_path, rows, *overrides):
    path = tmp_path / "a.jsonl"
    path.write_text("\n".join(map(json.dumps, rows)))
    files = [f"data.train_files=[{path}]", f"data.val_files=[{path}]", "data.max_prompt_length=128"]
    return compose([*files, *INLINE, f"trainer.default_local_dir={tmp_path}/run", "model=tiny_hard", *overrides])


def test_jobs_are_rendered_as_the_policy_sees_them_and_drops_are_listed(tmp_path, caplog):
    config = settings(tmp_path, [GOOD, LONG, UNGRADABLE, GOOD])
    chat = ChatRenderer(load_tokenizer(config.actor_rollout_ref.model))
    with caplog.at_level(logging.WARNING):
        jobs = load_jobs(config, chat, "train")
    assert [job.prompt.uid for job in jobs] == ["train/a:1", "train/a:4"] and len(jobs[:1]) == 1
    assert jobs[1].prompt_ids == chat.student_ids(jobs[1].prompt)
    assert "dropped 2 of 4 rows" in caplog.text and "train/a:2" in caplog.text and "train/a:3: no tests" in caplog.text
    write_dropped(tmp_path, jobs)
    listed = [json.loads(line) for line in (tmp_path / DROPPED_FILE).read_text().splitlines()]
    assert [(d["uid"], d["field"]) for d in listed] == [
        ("train/a:2", "prompt"),
        ("train/a:3", "reward_model.ground_truth"),
    ]
    write_dropped(tmp_path)
    assert not (tmp_path / DROPPED_FILE).exists()


def test_a_source_that_nobody_grades_is_an_error_that_names_file_and_row(tmp_path):
    config = settings(tmp_path, [GOOD, {**GOOD, "data_source": "nobodys"}])
    chat = ChatRenderer(load_tokenizer(config.actor_rollout_ref.model))
    with pytest.raises(
        DataError, match="^row train/a:2: data_source: got 'nobodys'; allowed: .*custom_reward_function"
    ):
        load_jobs(config, chat, "train")


def test_a_run_leaves_the_list_of_dropped_rows_in_its_folder(tmp_path):
    from sdpo.data.rows import to_row
    from sdpo.embedded.programs import problems

    rows = [*map(to_row, problems("hard", "test")[:2]), LONG]
    config = settings(
        tmp_path,
        rows,
        "data.train_batch_size=2",
        "trainer.total_training_steps=1",
        "trainer.test_freq=0",
        "trainer.val_before_train=false",
        "actor_rollout_ref.rollout.n=2",
        "data.max_response_length=8",
    )
    assert train(config) == 0
    assert [json.loads(x)["uid"] for x in (tmp_path / "run" / DROPPED_FILE).read_text().splitlines()] == [
        "train/a:3",
        "val/a:3",
    ]
