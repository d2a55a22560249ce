from __future__ import annotations

import json

import pytest

from sdpo.config.schema import Config
from sdpo.records import Grade, GradeStatus, Group, Prompt, Sample


@pytest.fixture
def config(tmp_path) -> Config:
    config = Config()
    config.trainer.default_local_dir = str(tmp_path / "run")
    config.trainer.logger = ["console"]
    return config


@pytest.fixture
def make_group():
    def make(uid: str, rewards: list[float | None], text: str = "return x", feedback: str = "no") -> Group:
        prompt = Prompt(uid, ({"role": "user", "content": f"Problem {uid}"},), "programs", ground_truth="secret")
        samples = []
        for index, reward in enumerate(rewards):
            status = GradeStatus.INFRA_ERROR if reward is None else GradeStatus.OK if reward == 1 else GradeStatus.WRONG
            grade = Grade(status, reward, reward or 0.0, "" if reward == 1 else feedback)
            samples.append(Sample(uid, index, [1, 2], [3] * (index + 1), text, "stop", 7, None, grade))
        return Group(prompt, samples)

    return make


@pytest.fixture
def read_jsonl():
    """Reads a file as strictly as a browser does: bare NaN or Infinity is an error."""

    def read(path) -> list[dict]:
        def refuse(constant: str):
            raise ValueError(f"{constant} is not JSON")

        return [
            json.loads(line, parse_constant=refuse) for line in path.read_text(encoding="utf-8").split("\n") if line
        ]

    return read
