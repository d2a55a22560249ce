"""What the training loop sees of the workers. Two implementations: `ray_group` and `inline_group`."""

from __future__ import annotations

from collections import deque
from collections.abc import Sequence
from typing import Any, Protocol

from sdpo.errors import RolloutError
from sdpo.records import Group, MiniBatch, StepReport, TrainBatch
from sdpo.workers.rollout import RenderedPrompt, SamplingPlan

Ticket = Any  # belongs to the workers that gave it


class Workers(Protocol):
    """Actor, rollout and graders of one run. Weights move only by `sync_weights`; the version says which are where."""

    machines: str  # which process is where; "": all on this machine

    @property
    def policy_version(self) -> int: ...

    def submit(self, jobs: Sequence[RenderedPrompt], plan: SamplingPlan) -> Ticket:
        """Has one graded group per job drawn, with the weights that the engines have now."""

    def collect(self, ticket: Ticket) -> list[Group]:
        """The groups, in the order of the jobs, once. Raises RolloutError when an engine held weights that are neither
        the actor's nor those of the last `rollout.max_staleness` rollout batches."""

    def reference_kl(self, rows: MiniBatch) -> dict[int, float]:
        """`algorithm.kl_penalty` of the student against the policy that the run started from, summed over the policy
        tokens of the rows of each sample, by `row.sequence`."""

    def update(self, batch: TrainBatch) -> StepReport:
        """All optimizer steps of one rollout batch."""

    def sync_weights(self) -> None:
        """Gives the student's current weights to every rollout engine, when it has drawn what it was given before."""

    def save(self, folder: str) -> None: ...

    def load(self, folder: str) -> None: ...

    def export(self, folder: str) -> None:
        """Writes the student as a Hugging Face folder."""

    def close(self) -> None: ...


class Versions:
    """Which weights a sample may come from."""

    def __init__(self, max_staleness: int) -> None:
        self._earlier: deque[int] = deque(maxlen=max_staleness)  # the actor's before each of the last updates

    def updated(self, before: int) -> None:
        self._earlier.append(before)

    def check(self, groups: list[Group], current: int) -> list[Group]:
        """The groups; each sample knows its staleness. Versions count optimizer steps, staleness rollout batches."""
        allowed = [current, *reversed(self._earlier)]
        for sample in (sample for group in groups for sample in group.samples):
            if sample.policy_version not in allowed:
                found = f"a response comes from policy version {sample.policy_version}, the actor is at {current}"
                raise RolloutError(f"rollout: {found}; allowed: {', '.join(map(str, allowed))}")
            sample.staleness = allowed.index(sample.policy_version)
        return groups
