"""The command line: help, the composed configuration, one-line errors, exit codes, and what it costs to ask."""

from __future__ import annotations

import errno
import os
import resource
import subprocess
import sys
import types

import pytest
import yaml

from sdpo import errors, main_sdpo
from sdpo.config import fields, help_text, tree
from sdpo.config.environment import ENVIRONMENT

HEAVY = ("torch", "ray", "transformers", "verl", "vllm", "numpy")
MINI = "actor_rollout_ref.actor.ppo_mini_batch_size"


@pytest.fixture
def train(monkeypatch, tmp_path):
    """Stands in for the training run: notes the configuration, and returns or raises what it is told."""
    monkeypatch.chdir(tmp_path)  # run folders are relative: nobody's own may be there
    seen = types.SimpleNamespace(config=None, outcome=0)

    def run(config):
        seen.config = config
        if isinstance(seen.outcome, BaseException):
            raise seen.outcome
        return seen.outcome

    monkeypatch.setattr("sdpo.interrupt._install", lambda handler: None)  # pytest has its own
    monkeypatch.setitem(sys.modules, "sdpo.training.run", types.SimpleNamespace(train=run))
    for name in ENVIRONMENT:
        monkeypatch.setenv(name, "0")
    return seen


def error_line(argv, capsys) -> tuple[int, str]:
    code = main_sdpo.main(argv)
    lines = [line for line in capsys.readouterr().err.splitlines() if line.startswith("error: ")]
    assert len(lines) == 1
    return code, lines[0]


@pytest.mark.parametrize("argv", [["--help"], ["--cfg", "job"], ["--cfg", "job", "--resolve"]])
def test_asking_loads_nothing_heavy_and_takes_less_than_two_seconds(argv):
    code = f"""
import sys
from sdpo.main_sdpo import main
assert main({argv!r}) == 0
print([m for m in {HEAVY!r} if m in sys.modules], file=sys.stderr)
"""
    before = resource.getrusage(resource.RUSAGE_CHILDREN)
    run = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    after = resource.getrusage(resource.RUSAGE_CHILDREN)
    assert run.stderr.strip() == "[]"
    # processor time: the claim is about the program, not about what else runs on the machine
    assert (after.ru_utime - before.ru_utime) + (after.ru_stime - before.ru_stime) < 2.0


def test_it_runs_as_a_module():
    argv = [sys.executable, "-m", "sdpo.main_sdpo", "--cfg", "job", "trainer.seed=5"]
    run = subprocess.run(argv, capture_output=True, text=True, check=True)
    assert yaml.safe_load(run.stdout)["trainer"]["seed"] == 5
    assert run.stderr == ""


def test_help_names_every_root_every_group_and_every_choice(capsys):
    assert main_sdpo.main(["--help"]) == 0
    text = capsys.readouterr().out
    for group in ("", *tree.groups([tree.YAML_FOLDER])):
        for name in tree.choices(group, [tree.YAML_FOLDER]):
            assert f"  {name} " in text
    assert all(key in fields.by_key() for key in help_text.COMMON)
    assert all(len(line) <= 120 for line in text.splitlines())


def test_cfg_job_shows_interpolations_and_resolve_fills_them_in(capsys):
    main_sdpo.main(["--cfg", "job"])
    assert yaml.safe_load(capsys.readouterr().out)["trainer"]["default_local_dir"].startswith("runs/${trainer.")
    main_sdpo.main(["--cfg", "job", "--resolve", "--config-name", "baseline_grpo"])
    folder = yaml.safe_load(capsys.readouterr().out)["trainer"]["default_local_dir"]
    assert folder == "runs/sdpo/grpo-tiny_hard-programs_hard"


def test_a_valid_configuration_is_trained_with_and_its_exit_code_passed_on(train):
    train.outcome = 3
    assert main_sdpo.main(["--config-name", "baseline_grpo", "trainer.seed=9", "cluster=inline"]) == 3
    assert (train.config.trainer.seed, train.config.cluster) == (9, "inline")
    assert train.config.actor_rollout_ref.actor.policy_loss.loss_mode == "vanilla"


def test_options_may_stand_between_overrides(train):
    assert main_sdpo.main(["trainer.seed=9", "-cn", "baseline_grpo", "~trainer.group_name", "cluster=inline"]) == 0
    assert (train.config.trainer.seed, train.config.cluster) == (9, "inline")


def test_the_environment_is_set_before_training_and_the_users_own_stays(train, monkeypatch):
    monkeypatch.delenv("OMP_WAIT_POLICY")
    monkeypatch.setenv("TOKENIZERS_PARALLELISM", "false")
    main_sdpo.main([])
    assert os.environ["OMP_WAIT_POLICY"] == "passive"
    assert os.environ["TOKENIZERS_PARALLELISM"] == "false"


@pytest.mark.parametrize(
    ("argv", "start"),
    [
        (["actor_rollout_ref.model.path=/no/such"], "error: actor_rollout_ref.model.path: got '/no/such'"),
        (["data.train_files=/dev/null"], "error: data.train_files: got '/dev/null'"),
        (
            ["data.train_batch_size=5", f"{MINI}=4"],
            f"error: {MINI}: got 4; allowed: a divisor of data.train_batch_size=5",
        ),
        (
            ["actor_rollout_ref.actor.self_distillation.alpha=2"],
            "error: actor_rollout_ref.actor.self_distillation.alpha:",
        ),
        (["actor_rollout_ref.ref.placement=near"], "error: actor_rollout_ref.ref.placement: got 'near'"),
        (["task=unknown"], "error: task: got 'unknown'; allowed: custom |"),
        (["trainer.sede=1"], "error: trainer.sede: no such key; nearest: trainer.seed"),
        (["--config-name", "nope"], "error: --config-name: got 'nope'"),
        (["--multirun"], "error: command line: unrecognized arguments: --multirun"),
        (["--cfg", "hydra"], "error: command line: argument -c/--cfg: invalid choice"),
        (
            ["actor_rollout_ref.actor.self_distillation.solution_template=hello"],
            "error: actor_rollout_ref.actor.self_distillation.solution_template: got 'hello'",
        ),
    ],
)
def test_bad_input_is_one_line_and_exit_code_2(argv, start, train, capsys):
    code, line = error_line(argv, capsys)
    assert code == 2 and line.startswith(start)
    assert train.config is None


@pytest.mark.parametrize("kind", [errors.DataError, errors.CheckpointError, errors.RolloutError])
def test_an_error_of_the_run_is_one_line_with_its_own_exit_code(kind, train, capsys):
    train.outcome = kind("row 3:\n  no prompt")
    code, line = error_line([], capsys)
    assert (code, line) == (kind.exit_code, "error: row 3: no prompt")


def test_traceback_shows_where_an_error_came_from(train, capsys):
    train.outcome = errors.DataError("row 3")
    assert main_sdpo.main(["--traceback"]) == 3
    lines = capsys.readouterr().err.splitlines()
    assert lines[0].startswith("Traceback") and "raise seen.outcome" in "".join(lines) and lines[-1] == "error: row 3"


def test_ctrl_c_ends_neatly_and_says_how_to_go_on(train, capsys):
    train.outcome = KeyboardInterrupt()
    assert main_sdpo.main([]) == 130
    assert capsys.readouterr().err == "interrupted; nothing had been trained yet\n"
    train.outcome.add_note("the same command goes on after step 3")
    assert main_sdpo.main([]) == 130
    assert capsys.readouterr().err == "interrupted; the same command goes on after step 3\n"


def test_a_full_disk_is_one_line_that_names_the_file(train, capsys):
    train.outcome = OSError(errno.ENOSPC, "No space left on device", "/runs/metrics.jsonl")
    code, line = error_line([], capsys)
    assert code == 8 and "/runs/metrics.jsonl: No space left on device" in line


@pytest.mark.parametrize("error", [ZeroDivisionError(), FileNotFoundError(errno.ENOENT, "No such file", "x")])
def test_a_programming_error_is_not_hidden(train, error):
    train.outcome = error
    with pytest.raises(type(error)):
        main_sdpo.main([])
