"""Every recipe composes with the settings of the paper, its launch file starts what it says, and a step of it runs."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import yaml

from sdpo import main_sdpo
from sdpo.config import fields
from sdpo.config.compose import compose
from sdpo.config.schema import Config
from sdpo.config.validate import validate

ACTOR, ROLLOUT = "actor_rollout_ref.actor", "actor_rollout_ref.rollout"
DISTILL = f"{ACTOR}.self_distillation"
MAX_LINES = 25

# What the paper and its reference code set, whether the recipe says it or the defaults do.
PAPER: dict[str, Any] = {
    "actor_rollout_ref.model.path": "Qwen/Qwen3-8B",
    "data.apply_chat_template_kwargs": {"enable_thinking": False},
    "data.train_batch_size": 32,
    "data.max_prompt_length": 2048,
    "data.max_response_length": 8192,
    f"{ROLLOUT}.n": 8,
    f"{ROLLOUT}.temperature": 1.0,
    f"{ROLLOUT}.val_kwargs.temperature": 0.6,
    f"{ROLLOUT}.val_kwargs.top_p": 0.95,
    "algorithm.rollout_correction.rollout_is": "token",
    "algorithm.rollout_correction.rollout_is_threshold": 2.0,
    f"{ACTOR}.loss_agg_mode": "token-mean",
    "trainer.n_gpus_per_node": 4,
    "trainer.total_epochs": 30,
    "trainer.test_freq": 5,
    "trainer.max_actor_ckpt_to_keep": 1,
}
DISTILLED = {
    f"{ACTOR}.policy_loss.loss_mode": "sdpo",
    f"{DISTILL}.full_logit_distillation": True,
    f"{DISTILL}.distillation_add_tail": True,
    f"{DISTILL}.is_clip": 2.0,
    f"{DISTILL}.success_reward_threshold": 1.0,
    f"{DISTILL}.remove_thinking_from_demonstration": True,
    f"{DISTILL}.environment_feedback_only_without_solution": True,
    f"{DISTILL}.reprompt_truncation": "right",
    f"{DISTILL}.teacher_regularization": "ema",
    f"{DISTILL}.dont_reprompt_on_self_success": True,
    f"{DISTILL}.max_reprompt_len": 10240,
}
OWN: dict[str, dict[str, Any]] = {
    "no_rich_feedback": PAPER
    | DISTILLED
    | {
        f"{DISTILL}.alpha": 0.5,
        f"{DISTILL}.distillation_topk": 100,
        f"{DISTILL}.teacher_update_rate": 0.05,
        f"{DISTILL}.include_environment_feedback": False,
        f"{ACTOR}.optim.lr": 1e-5,
        f"{ACTOR}.optim.lr_warmup_steps": 10,
        f"{ACTOR}.ppo_mini_batch_size": 32,
        f"{ROLLOUT}.val_kwargs.n": 16,
    },
    "rich_feedback": PAPER
    | DISTILLED
    | {
        f"{DISTILL}.alpha": 1.0,
        f"{DISTILL}.distillation_topk": 20,
        f"{DISTILL}.teacher_update_rate": 0.01,
        f"{DISTILL}.include_environment_feedback": True,
        f"{ACTOR}.optim.lr": 1e-6,
        f"{ACTOR}.optim.lr_warmup_steps": -1,
        f"{ACTOR}.optim.lr_warmup_steps_ratio": 0.0,
        f"{ACTOR}.ppo_mini_batch_size": 1,
        f"{ROLLOUT}.val_kwargs.n": 4,
    },
    "grpo_baseline": PAPER
    | {
        f"{ACTOR}.policy_loss.loss_mode": "vanilla",
        f"{ACTOR}.optim.lr": 1e-6,
        f"{ACTOR}.optim.lr_warmup_steps": 10,
        f"{ACTOR}.ppo_mini_batch_size": 8,
        f"{ACTOR}.clip_ratio_high": 0.28,
        "algorithm.norm_adv_by_std_in_grpo": False,
        f"{ROLLOUT}.val_kwargs.n": 16,
    },
    # These two are ours: what their pages say.
    "single_gpu_24gb": DISTILLED
    | {
        "actor_rollout_ref.model.path": "Qwen/Qwen3-0.6B",
        "trainer.n_gpus_per_node": 1,
        "data.train_batch_size": 16,
        "data.max_prompt_length": 1024,
        "data.max_response_length": 2048,
        f"{DISTILL}.max_reprompt_len": 4096,
        f"{DISTILL}.alpha": 0.5,
        f"{DISTILL}.distillation_topk": 100,
        f"{DISTILL}.teacher_update_rate": 0.05,
        f"{DISTILL}.include_environment_feedback": True,
        f"{ACTOR}.optim.lr": 1e-5,
        f"{ACTOR}.ppo_mini_batch_size": 16,
        f"{ACTOR}.ppo_max_token_len_per_gpu": 8192,
        f"{ROLLOUT}.n": 8,
        f"{ROLLOUT}.gpu_memory_utilization": 0.35,
    },
    "smollm2_cpu": {
        "actor_rollout_ref.model.path": "models/smollm2-135m",
        "data.train_batch_size": 4,
        "data.max_response_length": 128,
        f"{ACTOR}.policy_loss.loss_mode": "sdpo",
        f"{ACTOR}.ppo_mini_batch_size": 4,
        f"{ROLLOUT}.n": 4,
        "trainer.total_training_steps": 3,
    },
}
ALGORITHM = (DISTILL, f"{ACTOR}.optim", f"{ACTOR}.policy_loss", f"{ACTOR}.clip", "algorithm")
# What a smoke's other model brings with it; its own lines may change sizes only.
BY_MODEL = {"tiny": set(), "smollm2": {f"{ACTOR}.ppo_max_token_len_per_gpu"}}
# TASKS of the launch file -> (train file below the data folder)
TASKS = {
    ("no_rich_feedback", "physics"): "sciknoweval/physics/train.parquet",
    ("no_rich_feedback", "tooluse"): "tooluse/train.parquet",
    ("rich_feedback", ""): "livecodebench/train.parquet",
    ("grpo_baseline", "livecodebench"): "livecodebench/train.parquet",
    ("grpo_baseline", "biology"): "sciknoweval/biology/train.parquet",
    ("single_gpu_24gb", ""): "gsm8k/train.parquet",
}


def composed(name: str, repository: Path, *overrides: str) -> Config:
    return compose(list(overrides), name, str(repository / "recipes" / name))


def own_data(name: str) -> list[str]:
    """The files that a launch file names, where the recipe does not."""
    files = "data.train_files=[datasets/x/train.parquet]", "data.val_files=[datasets/x/test.parquet]"
    return list(files) if name == "smollm2_cpu" else []


def with_data(config: Config) -> Config:
    """Makes the files that the configuration names."""
    for name in (*config.data.train_files, *config.data.val_files):
        Path(name).parent.mkdir(parents=True, exist_ok=True)
        Path(name).write_text("rows\n")
    return config


@pytest.mark.parametrize("name", OWN)
def test_a_recipe_composes_validates_and_has_the_papers_settings(
    name: str, repository: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.delenv("SDPO_DATA_DIR", raising=False)
    Path("models/smollm2-135m").mkdir(parents=True)
    Path("models/smollm2-135m/config.json").write_text("{}")
    config = with_data(composed(name, repository, *own_data(name)))
    validate(config)
    assert {key: fields.get(config, key) for key in OWN[name]} == OWN[name]


@pytest.mark.parametrize("name", OWN)
def test_a_recipe_is_a_page_a_launch_file_and_few_lines_of_settings(name: str, repository: Path) -> None:
    folder = repository / "recipes" / name
    lines = (folder / f"{name}.yaml").read_text(encoding="utf-8").splitlines()
    assert len([line for line in lines if line.strip() and not line.startswith("#")]) <= MAX_LINES
    assert os.access(folder / "run.sh", os.X_OK)
    assert subprocess.run(["bash", "-n", str(folder / "run.sh")], check=False).returncode == 0
    page = (folder / "README.md").read_text(encoding="utf-8")
    assert f"recipes/{name}/run.sh" in page and ("Expected" in page or "Seen" in page)
    assert {p.suffix for p in folder.iterdir() if p.is_file()} <= {".md", ".yaml", ".sh", ".png"}  # no code


@pytest.mark.parametrize(("name", "task"), TASKS)
def test_the_launch_file_starts_the_recipe_on_the_task(name: str, task: str, repository: Path, tmp_path: Path) -> None:
    environment = {**os.environ, "PYTHON": sys.executable, "SDPO_DATA_DIR": "data"} | ({"TASKS": task} if task else {})
    argv = [str(repository / "recipes" / name / "run.sh"), "--cfg", "job", "--resolve", "trainer.seed=7"]
    run = subprocess.run(argv, env=environment, cwd=tmp_path, capture_output=True, text=True, check=True)
    started = yaml.safe_load(run.stdout.split("\n", 1)[1] if run.stdout.startswith("==") else run.stdout)
    assert started["data"]["train_files"] == [f"{tmp_path}/data/{TASKS[name, task]}"]
    assert started["trainer"]["seed"] == 7 and started["trainer"]["project_name"] == name
    rich = "livecodebench" in TASKS[name, task]
    answers, optim = 4 if rich or name == "single_gpu_24gb" else 16, started["actor_rollout_ref"]["actor"]["optim"]
    assert started["actor_rollout_ref"]["rollout"]["val_kwargs"]["n"] == answers
    assert (optim["lr_warmup_steps"] > 0) == (name in ("no_rich_feedback", "grpo_baseline") and not rich)


@pytest.mark.parametrize("folder", ["benchmarks/grpo_vs_sdpo", "cpu_quickstart", *OWN])
def test_a_launch_file_takes_the_python_of_the_path_where_there_is_no_environment_of_ours(
    folder: str, repository: Path, tmp_path: Path
) -> None:
    """As in a container."""
    shutil.copytree(repository / "recipes" / folder, tmp_path / "recipes" / folder)
    for name, script in (("make", "true"), ("python", 'echo "python $@"')):
        (tmp_path / name).write_text(f"#!/bin/sh\n{script}\n")
        (tmp_path / name).chmod(0o755)
    environment = {**os.environ, "PATH": f"{tmp_path}:{os.environ['PATH']}"}
    environment.pop("PYTHON", None)
    setting = "hard" if folder == "cpu_quickstart" else str(tmp_path)  # or a folder with sources, or an override
    argv = [str(tmp_path / "recipes" / folder / "run.sh"), setting]
    run = subprocess.run(argv, env=environment, capture_output=True, text=True, check=True)
    started = [line for line in run.stdout.splitlines() if line.startswith("python -m sdpo.")]
    assert started and not run.stderr


def test_the_launch_file_of_smollm2_takes_a_folder_as_seen_from_where_it_is_called(
    repository: Path, tmp_path: Path
) -> None:
    for name, script in (("make", "true"), ("python", 'echo "$@"')):
        (tmp_path / name).write_text(f"#!/bin/sh\n{script}\n")
        (tmp_path / name).chmod(0o755)
    (tmp_path / "sources").mkdir()
    environment = {**os.environ, "PYTHON": f"{tmp_path}/python", "PATH": f"{tmp_path}:{os.environ['PATH']}"}
    argv = [str(repository / "recipes/smollm2_cpu/run.sh"), "sources", "trainer.seed=7"]
    run = subprocess.run(argv, env=environment, cwd=tmp_path, capture_output=True, text=True, check=True)
    prepared = [line.split()[4] for line in run.stdout.splitlines() if "sdpo.cli.data prepare" in line]
    started = [line.split() for line in run.stdout.splitlines() if "sdpo.main_sdpo" in line]
    assert prepared == [f"{tmp_path}/sources/sciknoweval/chemistry", f"{tmp_path}/sources/gsm8k"]
    assert [words[-1] for words in started] == ["trainer.seed=7"] * 2


@pytest.mark.parametrize(
    ("size", "name"),
    [(size, name) for size in ("tiny", "smollm2") for name in OWN if (size, name) != ("smollm2", "smollm2_cpu")],
)
def test_the_smoke_sizes_validate_and_leave_the_algorithm_alone(
    size: str, name: str, repository: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("SDPO_DATA_DIR", str(tmp_path))
    overrides = (repository / "recipes/smoke" / f"{size}.txt").read_text(encoding="utf-8").split()
    if size == "smollm2":
        overrides.append("actor_rollout_ref.model.path=HuggingFaceTB/SmolLM2-135M-Instruct")
    small = composed(name, repository, *overrides)
    if size == "smollm2":
        with_data(small)
    validate(small)
    sizes = {word.partition("=")[0] for word in overrides} | BY_MODEL[size]
    kept = OWN[name].keys() - sizes
    assert {key: fields.get(small, key) for key in kept} == {key: OWN[name][key] for key in kept}
    assert not [key for key in sizes if key.startswith(ALGORITHM) and not key.endswith("max_reprompt_len")]
    assert small.trainer.total_training_steps == 1


@pytest.mark.parametrize(
    "name", [pytest.param(name, marks=[] if name == "no_rich_feedback" else pytest.mark.slow) for name in OWN]
)
def test_a_step_of_the_recipe_runs_on_the_cpu(name: str, repository: Path, tmp_path: Path) -> None:
    overrides = (repository / "recipes/smoke/tiny.txt").read_text(encoding="utf-8").split()
    argv = ["--config-dir", str(repository / "recipes" / name), "--config-name", name, *overrides]
    assert main_sdpo.main([*argv, f"trainer.default_local_dir={tmp_path}/run", "trainer.val_before_train=false"]) == 0
    (line,) = [json.loads(text) for text in (tmp_path / "run/metrics.jsonl").read_text().splitlines()]
    prompts, n = OWN[name]["data.train_batch_size"], OWN[name][f"{ROLLOUT}.n"]
    assert line["step"] == 1 and line["train/samples"] == prompts * n
    assert line["actor/optimizer_steps"] == prompts // OWN[name][f"{ACTOR}.ppo_mini_batch_size"]
