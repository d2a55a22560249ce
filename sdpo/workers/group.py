"""What the training loop sees of the workers. Two implementations: `ray_group` and `inline_group`."""

from __future__ import annotations

from typing import Protocol

from sdpo.records import Group, StepReport, TrainBatch
from sdpo.workers.rollout import RenderedPrompt, SamplingPlan


class Workers(Protocol):
    """Actor, rollout and graders of one run. Weights move only by `sync_weights`; the version says which are where."""

    policy_version: int

    def generate(self, jobs: list[RenderedPrompt], plan: SamplingPlan) -> list[Group]:
        """One graded group per job, in order. Raises RolloutError when an engine holds another policy version."""

    def update(self, batch: TrainBatch) -> StepReport:
        """All optimizer steps of one rollout batch."""

    def sync_weights(self) -> None:
        """Gives the student's current weights to every rollout engine."""

    def save(self, folder: str) -> None: ...

    def load(self, folder: str) -> None: ...

    def export(self, folder: str) -> None:
        """Writes the student as a Hugging Face folder."""

    def close(self) -> None: ...
