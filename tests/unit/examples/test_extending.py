"""Every example of docs/extending.md, taken from the page and run."""

from __future__ import annotations

import asyncio
import json
import re
import shutil
import sys
from pathlib import Path

import pytest

from sdpo.config.compose import compose
from sdpo.environments.episode import Policy
from sdpo.environments.registry import environment_maker
from sdpo.grading.registry import build_grader
from sdpo.records import Grade, GradeStatus, Group, Prompt, Sample
from sdpo.rollout.engine import SamplingSpec
from sdpo.rollout.scripted import ScriptedEngine
from sdpo.tokens.chat import ChatRenderer
from sdpo.training.metrics import train_metrics

SMALL = [
    "cluster=inline",
    "actor_rollout_ref.rollout.name=hf",
    "trainer.total_training_steps=1",
    "trainer.test_freq=0",
    "trainer.val_before_train=false",
    "trainer.save_freq=0",
    "trainer.export_hf=false",
    "data.train_batch_size=4",
    "actor_rollout_ref.rollout.n=4",
]


@pytest.fixture(scope="module")
def blocks() -> dict[str, list[str]]:
    """Section of the page -> its code blocks, in order."""
    page = (Path(__file__).parents[3] / "docs" / "extending.md").read_text(encoding="utf-8")
    sections = re.split(r"^## ", page, flags=re.MULTILINE)[1:]
    return {text.partition("\n")[0]: re.findall(r"```\w+\n(.*?)```", text, re.DOTALL) for text in sections}


def test_a_grader_of_a_file_and_its_further_number_as_a_metric(blocks, tmp_path: Path) -> None:
    (file := tmp_path / "lengths.py").write_text(blocks["A grader"][0])
    grader = build_grader(compose([f"custom_reward_function.path={file}"]))
    prompt = Prompt("p", ({"role": "user", "content": "Be short."},), "lengths", ground_truth="3")
    answers = ("one two", "one two three four")
    grades = [grader.grade(prompt, answer, truncated=False) for answer in answers]
    grader.close()
    assert [grade.reward for grade in grades] == [1.0, 0.0]
    assert grades[1].feedback == "4 words are too many."
    samples = [Sample("p", i, [1], [2], answers[i], "stop", 0, grade=grade) for i, grade in enumerate(grades)]
    metrics = train_metrics([Group(prompt, samples)], threshold=1.0)
    assert metrics["train/extra/words"] == 3.0


def copied_package(folder: Path) -> Path:
    package = folder / "sdpo"
    shutil.copytree(Path(sys.modules["sdpo"].__file__).parent, package, ignore=shutil.ignore_patterns("__pycache__"))
    return package


def insert(file: Path, before: str, text: str) -> None:
    source = file.read_text()
    assert source.count(before) == 1
    file.write_text(source.replace(before, text + before))


def test_an_environment_of_a_file_asks_its_tool_and_ties_feedback_to_a_turn(blocks, tmp_path: Path, chatml_tokenizer):
    (file := tmp_path / "lookup.py").write_text(blocks["An environment"][0])
    field = "actor_rollout_ref.rollout.environment"
    make = environment_maker(
        compose([f"{field}.path={file}", f"{field}.name=Lookup", f"{field}.settings={{limit: 2}}"])
    )
    chat, words = ChatRenderer(chatml_tokenizer), {"blau": "blue"}
    prompt = Prompt("p", ({"role": "user", "content": "?"},), "exact", "blue", extra_info={"words": words})
    said = ["LOOK grau", "Well.\nLOOK blau", "blue"]
    script = {f"p/0{f'/{at}' if at else ''}": chatml_tokenizer.encode(f"{t}<|im_end|>") for at, t in enumerate(said)}
    engine = ScriptedEngine(script, [chatml_tokenizer.eos_token_id])

    def spec(turn: int, room: int) -> SamplingSpec:
        return SamplingSpec(max_tokens=room)

    policy = Policy("p/0", prompt, chat.student_ids(prompt), engine, chat, spec, chat.decode, 500, retries=0)

    async def grade(answer):
        return Grade(GradeStatus.OK, float(answer.text == "blue"))

    episode = asyncio.run(make().run(prompt, policy, grade))
    assert episode.grade.reward == 1.0 and [turn.text for turn in policy.turns] == said
    assert [turn.feedback for turn in policy.turns] == ["There is no 'grau'; look up blau.", "", ""]
    assert [m["content"] for turn in policy.turns for m in turn.said] == ["unknown", "blue"]


def test_an_engine_is_a_file_a_branch_and_a_name(programs, blocks, tmp_path: Path) -> None:
    package = copied_package(tmp_path)
    implementation, branch = blocks["An engine"]
    (tmp_path / implementation.partition("\n")[0].removeprefix("# ")).write_text(implementation)
    insert(package / "rollout/build.py", '    raise ConfigError(problem("actor_rollout_ref.rollout.name"', branch)
    limits = package / "config/limits.py"
    limits.write_text(limits.read_text().replace('("vllm", "hf")', '("vllm", "hf", "uniform")'))
    settings = ["actor_rollout_ref.rollout.name=uniform", "actor_rollout_ref.rollout.max_log_prob_diff=0"]
    command = ["-m", "sdpo.main_sdpo", *SMALL, *settings, "trainer.default_local_dir=run"]
    done = programs.run(*command, cwd=tmp_path, env={"PATH": "/usr/bin:/bin"})
    assert done.returncode == 0, done.stdout + done.stderr
    (line,) = map(json.loads, (tmp_path / "run" / "metrics.jsonl").read_text().splitlines())
    assert line["train/accuracy"] == 0 and line["train/step_samples"] == 16


def test_an_algorithm_is_a_file_a_descriptor_and_a_root_configuration(programs, blocks, tmp_path: Path) -> None:
    package = copied_package(tmp_path)
    implementation, descriptor, root = blocks["An algorithm"]
    for text in (implementation, root):
        (tmp_path / text.partition("\n")[0].removeprefix("# ")).write_text(text)
    registry = package / "algorithms" / "registry.py"
    insert(registry, '        Descriptor("sdpo"', f"        {descriptor.strip()},\n")
    command = ["-m", "sdpo.main_sdpo", "--config-name", "rft", *SMALL, "trainer.default_local_dir=run"]
    done = programs.run(*command, cwd=tmp_path, env={"PATH": "/usr/bin:/bin"})
    assert done.returncode == 0, done.stdout + done.stderr
    assert "RFT, cross-entropy on successes" in done.stdout
    (line,) = map(json.loads, (tmp_path / "run" / "metrics.jsonl").read_text().splitlines())
    assert line["train/imitated_frac"] == line["train/accuracy"] > 0
