from __future__ import annotations

from collections.abc import Callable, Sequence

import pytest

from sdpo.records import UNGRADED, Grade, GradeStatus, Group, Prompt, Sample


def _status(reward: float | None) -> GradeStatus:
    if reward is None:
        return GradeStatus.INFRA_ERROR
    return GradeStatus.OK if reward >= 0.99 else GradeStatus.WRONG


@pytest.fixture(scope="session")
def make_group() -> Callable[..., Group]:
    """A group from rewards; None is a failure of the grader. Lists give one value per sample."""

    def make(
        rewards: Sequence[float | None],
        feedback: Sequence[str] | None = None,
        texts: Sequence[str] | None = None,
        truncated: Sequence[int] = (),
        prompt: Prompt | None = None,
    ) -> Group:
        prompt = prompt or Prompt("p-1", ({"role": "user", "content": "PROBLEM-7"},), "x")
        samples = []
        for i, reward in enumerate(rewards):
            status = _status(reward)
            assert (status in UNGRADED) == (reward is None)
            grade = Grade(status, reward, feedback=feedback[i] if feedback else "")
            text = texts[i] if texts else f"answer {i}"
            finish = "length" if i in truncated else "stop"
            samples.append(Sample(prompt.uid, i, [1], list(range(len(text))), text, finish, 0, grade=grade))
        return Group(prompt, samples)

    return make
