"""Every example of docs/extending.md, taken from the page and run."""

from __future__ import annotations

import json
import re
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from sdpo.config.compose import compose
from sdpo.grading.registry import build_grader
from sdpo.records import Group, Prompt, Sample
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


def test_an_algorithm_is_a_file_a_descriptor_and_a_root_configuration(blocks, tmp_path: Path) -> None:
    package = tmp_path / "sdpo"
    shutil.copytree(Path(sys.modules["sdpo"].__file__).parent, package, ignore=shutil.ignore_patterns("__pycache__"))
    implementation, descriptor, root = blocks["An algorithm"]
    for text in (implementation, root):
        (tmp_path / text.partition("\n")[0].removeprefix("# ")).write_text(text)
    registry = package / "algorithms" / "registry.py"
    source = registry.read_text()
    place = "    for descriptor in (\n"
    assert source.count(place) == 1
    registry.write_text(source.replace(place, f"{place}        {descriptor.strip()},\n"))
    command = [sys.executable, "-m", "sdpo.main_sdpo", "--config-name", "rft", *SMALL, "trainer.default_local_dir=run"]
    done = subprocess.run(command, cwd=tmp_path, env={"PATH": "/usr/bin:/bin"}, capture_output=True, text=True)
    assert done.returncode == 0, done.stdout + done.stderr
    assert "RFT, cross-entropy on successes" in done.stdout
    (line,) = map(json.loads, (tmp_path / "run" / "metrics.jsonl").read_text().splitlines())
    assert line["train/imitated_frac"] == line["train/accuracy"] > 0
