"""Whole runs that are stopped from outside or run out of disk: one line, the right exit code, nothing lost."""

from __future__ import annotations

import json
import shutil
import signal
import subprocess
import sys

import pytest

COMMAND = [
    "-m", "sdpo.main_sdpo", "cluster=inline", "actor_rollout_ref.rollout.name=hf",
    "actor_rollout_ref.rollout.n=2", "data.train_batch_size=2", "actor_rollout_ref.actor.ppo_mini_batch_size=2",
    "data.train_max_samples=4", "data.val_files=[]", "trainer.save_freq=1",
]  # fmt: skip


def _own_lines(stderr: str) -> list[str]:
    return [line for line in stderr.splitlines() if not line.startswith("WARNING")]


def test_sigterm_ends_a_run_like_ctrl_c_and_a_second_run_waits_its_turn(programs, tmp_path):
    command = [*COMMAND, f"trainer.default_local_dir={tmp_path}", "trainer.total_training_steps=10000"]
    run = programs.start(*command)
    run.wait_until_it_prints("step +2/10000 ")
    second = programs.run(*command)
    assert (second.returncode, len(_own_lines(second.stderr))) == (2, 1)
    assert "no other run is using" in second.stderr
    run.send_signal(signal.SIGTERM)
    ended = run.finish()
    assert ended.returncode == 128 + signal.SIGTERM
    (line,) = _own_lines(ended.stderr)
    assert line.startswith("terminated; the same command goes on after step ")
    assert json.loads((tmp_path / "run.json").read_text())["status"] == "interrupted"
    assert (tmp_path / "report.html").exists()
    steps = [json.loads(line)["step"] for line in (tmp_path / "metrics.jsonl").read_text().splitlines()]
    assert steps == list(range(len(steps)))


def test_a_full_disk_is_one_line_and_leaves_the_last_checkpoint(tmp_path):
    """On a file system of 40 MB in a name space of its own: not enough for five checkpoints."""
    folder = tmp_path / "small"
    folder.mkdir()
    mount = f"mount -t tmpfs -o size=40m none {folder}"
    if subprocess.run(["unshare", "-Urm", "sh", "-c", mount], capture_output=True).returncode != 0:
        pytest.skip("no user namespaces with mounts here")
    command = [*COMMAND, f"trainer.default_local_dir={folder}/run", "trainer.total_training_steps=5"]
    command += ["trainer.max_actor_ckpt_to_keep=-1"]
    script = f'{mount} && "$@"; code=$?; ls -A {folder}/run/checkpoints; exit $code'
    words = ["unshare", "-Urm", "sh", "-c", script, "sh", sys.executable, *command]
    done = subprocess.run(words, capture_output=True, text=True, timeout=200)
    lines = [line for line in _own_lines(done.stderr) if "could not be recorded" not in line]
    assert done.returncode in (5, 8), done.stderr
    assert len(lines) == 1 and "No space left on device" in lines[0], done.stderr
    left = done.stdout.split("report")[-1].split()
    assert [name for name in left if name.startswith(".tmp")] == []
    assert any(name.startswith("step_") for name in left)


def test_a_run_that_ended_before_its_model_was_written_writes_it_when_repeated(programs, tmp_path):
    command = [*COMMAND, f"trainer.default_local_dir={tmp_path}", "trainer.total_training_steps=1"]
    assert programs.run(*command).returncode == 0
    model = tmp_path / "model" / "model.safetensors"
    whole, steps = model.read_bytes(), (tmp_path / "metrics.jsonl").read_text()
    shutil.rmtree(model.parent)
    assert programs.run(*command).returncode == 0
    assert model.read_bytes() == whole
    assert (tmp_path / "metrics.jsonl").read_text() == steps
