"""The rollout batches of a run, in order; with `rollout.max_staleness` each is drawn while the one before it trains."""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import asdict, replace
from pathlib import Path
from typing import Any

from sdpo.algorithms.registry import descriptor_of
from sdpo.algorithms.rows import REWARD_TOLERANCE, is_success, usable
from sdpo.config.schema import Config
from sdpo.errors import CheckpointError
from sdpo.records import Grade, GradeStatus, Group, Sample, TestOutcome, Turn
from sdpo.workers.group import Ticket, Workers
from sdpo.workers.rollout import RenderedPrompt, training_plan

DRAWN_AHEAD = "drawn_ahead.jsonl"  # of a checkpoint: samples that weights drew which nobody has any more


class Rollouts:
    """`jobs`: the prompts of a batch by its number; `drawn`: batches so far. That is the step, unless groups are
    drawn again."""

    def __init__(
        self,
        config: Config,
        workers: Workers,
        jobs: Callable[[int], list[RenderedPrompt]],
        last_step: int,
        drawn: int = 0,
    ) -> None:
        self.config, self.workers, self.jobs, self.last_step = config, workers, jobs, last_step
        self.drawn = drawn
        self._asked: dict[int, Ticket] = {}
        self._drawn: dict[int, list[Group]] = {}  # that of the step under way too: it may be broken off

    def take(self, step: int) -> list[Group]:
        """The graded groups of a step. Has those of the next drawn from now on, before the weights move."""
        self._drawn = {number: groups for number, groups in self._drawn.items() if number >= step}
        if step not in self._drawn and step not in self._asked:
            self._asked[step] = self._submit(step)
        groups = self._collected(step)
        if self.config.actor_rollout_ref.rollout.max_staleness and step < self.last_step:
            self._asked[step + 1] = self._submit(step + 1)
        return groups

    def take_enough(self, step: int) -> tuple[list[Group], list[Group]]:
        """The graded groups of a step, and those of them to be trained on: all, or with `algorithm.filter_groups` as
        many as a step takes whose samples differ. More prompts are drawn until there are."""
        settings, wanted = self.config.algorithm.filter_groups, self.config.data.train_batch_size
        if not settings.enable:
            groups = self.take(step)
            return groups, groups
        groups = []
        kept: list[Group] = []
        count = 0
        while len(kept) < wanted and (count < settings.max_num_gen_batches or not settings.max_num_gen_batches):
            self.drawn += 1
            count += 1
            new = self.workers.collect(self._submit(self.drawn))
            groups += new
            kept += [group for group in new if differs(group, self.config)]
        return groups, kept[:wanted]

    def save(self, file: Path, step: int) -> None:
        """What is drawn for a step beside earlier weights, so that a resumed run trains on the same samples."""
        stale = self.config.actor_rollout_ref.rollout.max_staleness > 0
        if stale and (step in self._asked or step in self._drawn):
            groups = self._collected(step)
            drawn = [{"uid": group.prompt.uid, "samples": [*map(asdict, group.samples)]} for group in groups]
            file.write_text("".join(json.dumps(g, default=list) + "\n" for g in drawn), encoding="utf-8")

    def load(self, file: Path, step: int) -> None:
        """Takes up what a checkpoint holds, if it is for the prompts of this step."""
        if not file.is_file() or not self.config.actor_rollout_ref.rollout.max_staleness or step > self.last_step:
            return
        try:
            found = [json.loads(line) for line in file.read_text(encoding="utf-8").splitlines()]
            samples = {group["uid"]: [*map(sample_from, group["samples"])] for group in found}
        except (OSError, ValueError, TypeError, KeyError) as error:
            raise CheckpointError(f"{file}: cannot be read ({error}); deleted, it is drawn again") from error
        jobs = self.jobs(step)
        if [job.prompt.uid for job in jobs] == list(samples):
            self._drawn[step] = [Group(job.prompt, samples[job.prompt.uid]) for job in jobs]

    def _submit(self, batch: int) -> Ticket:
        plan = replace(training_plan(self.config, batch), reprompts=descriptor_of(self.config).needs_teacher)
        return self.workers.submit(self.jobs(batch), plan)

    def _collected(self, step: int) -> list[Group]:
        if step in self._asked:
            self._drawn[step] = self.workers.collect(self._asked[step])
            del self._asked[step]
        return self._drawn[step]


def differs(group: Group, config: Config) -> bool:
    """Whether the group's usable samples differ in what `algorithm.filter_groups.metric` names."""
    threshold = config.actor_rollout_ref.actor.self_distillation.success_reward_threshold
    samples = [sample for sample in group.samples if usable(sample)]
    if config.algorithm.filter_groups.metric == "acc":
        return len({is_success(sample, threshold) for sample in samples}) > 1
    rewards = [sample.reward for sample in samples if sample.reward is not None]
    return bool(rewards) and max(rewards) - min(rewards) > REWARD_TOLERANCE


def sample_from(data: dict[str, Any]) -> Sample:
    """A sample from `asdict` of one, through JSON."""
    turns = [Turn(**{**turn, "span": tuple(turn["span"])}) for turn in data["turns"]]
    for turn in turns:
        turn.said = None if turn.said is None else tuple(turn.said)
    grade = data["grade"]
    if grade is not None:
        tests = tuple(TestOutcome(**{**test, "status": GradeStatus(test["status"])}) for test in grade["tests"])
        status, flags = GradeStatus(grade["status"]), tuple(grade["flags"])
        grade = Grade(**{**grade, "status": status, "tests": tests, "flags": flags})
    return Sample(**{**data, "turns": turns, "grade": grade})
