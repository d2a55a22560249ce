"""The student's accuracy, and the same model's accuracy under each thing that a teacher can be shown.

Everything is the run's own: rollout engine, sampling settings, graders, reprompt builder. Only the student's prompt is
exchanged for the teacher's, and the teacher answers instead of scoring.
"""

from __future__ import annotations

import copy
import math
import random
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from statistics import mean, stdev

from sdpo.config.schema import Config, SelfDistillationConfig
from sdpo.data.load import Part
from sdpo.models.load import load_chat
from sdpo.records import GradeStatus, Group, Reprompt, Sample
from sdpo.reprompt.builder import RepromptBuilder
from sdpo.reprompt.demonstrations import is_success
from sdpo.training.run import check_context, load_jobs, resolve_device
from sdpo.workers.grader import ThreadGraderPool
from sdpo.workers.rollout import RenderedPrompt, RolloutWorker, training_plan

TEACHER_STEP = 1  # the teacher's answers get other seeds than the student's


@dataclass(frozen=True)
class Rate:
    """A mean over problems with its standard error (None for a single problem: nobody knows)."""

    value: float
    error: float | None

    @property
    def spread(self) -> float:
        return math.inf if self.error is None else self.error

    def __str__(self) -> str:
        return f"{self.value:.3f}" if self.error is None else f"{self.value:.3f} ± {self.error:.3f}"


@dataclass(frozen=True)
class Context:
    """One thing that the teacher can be shown. `coverage`: share of the student's graded answers for which there is
    such a context. `teacher` is its accuracy there; `student` that of the *other* answers to the same problems, because
    answers with feedback are wrong ones by selection, and a second draw would do better without being told anything.
    `gap` is over all answers, those without the context counting as no gain.
    """

    name: str
    coverage: float
    student: Rate | None
    teacher: Rate | None
    gap: Rate | None  # None: nothing to compare could be graded
    prompt_tokens: float | None  # mean length of the teacher's prompt
    truncated_frac: float = 0.0  # of the teacher's answers
    ungraded_frac: float = 0.0  # likewise; they are in the coverage, not in the accuracies and the gap
    reward: Rate | None = None  # mean of the teacher's answers


@dataclass(frozen=True)
class Screening:
    """All that was measured. Fractions are of answers, or of problems where named so."""

    problems: int
    answers: int
    student: Rate | None  # None: no answer could be graded
    solved_group_frac: float  # problems with at least one success
    mixed_group_frac: float  # and at least one failure
    truncated_frac: float
    ungraded_frac: float
    infra_error_frac: float
    contexts: list[Context]
    reward: Rate | None = None  # mean of the student's answers


FEEDBACK_ALONE = "feedback"


def contexts_of(settings: SelfDistillationConfig) -> dict[str, SelfDistillationConfig]:
    """The settings that show the teacher one thing alone (`FEEDBACK_ALONE`: without demonstrations), everything, or
    what the run would show."""

    def change(**changes: object) -> SelfDistillationConfig:
        changed = copy.copy(settings)
        for name, value in changes.items():
            setattr(changed, name, value)
        return changed

    both = {"include_environment_feedback": True, "environment_feedback_only_without_solution": False}
    return {
        FEEDBACK_ALONE: change(**both),
        "solution": change(include_environment_feedback=False),
        "both": change(**both),
        "as configured": settings,
    }


def screen(
    config: Config, part: Part, problems: int, per_problem: int, say: Callable[[str], None] = lambda text: None
) -> Screening:
    """Draws `rollout.n` answers to each of `problems` problems, and under every context one teacher's answer for each
    of the first `per_problem` answers of a problem. Raises SdpoError as a run would."""
    config = with_room_for_teacher(config)
    check_context(config)
    chat = load_chat(config)
    jobs = load_jobs(config, chat, part)
    chosen = random.Random(config.data.seed).sample(range(len(jobs)), min(problems, len(jobs)))
    n, settings = config.actor_rollout_ref.rollout.n, config.actor_rollout_ref.actor.self_distillation
    worker = RolloutWorker(config, resolve_device(config.trainer.device), ThreadGraderPool(config))
    try:
        say(f"student: {len(chosen)} problems, {n} answers each")
        groups = worker.generate([jobs[i] for i in sorted(chosen)], replace(training_plan(config, 0), log_probs=False))
        teacher = _Teacher(config, worker, groups, per_problem)
        contexts = []
        for name, shown in contexts_of(settings).items():
            say(f"teacher: {name}")
            builder = RepromptBuilder(shown, chat, config.data.seed, demonstrations=name != FEEDBACK_ALONE)
            contexts.append(context_of(name, teacher.rows(builder)))
    finally:
        worker.close()
    return summarize(groups, contexts, settings.success_reward_threshold)


@dataclass(frozen=True)
class Row:
    """One graded answer of the student. `teacher`: whether the teacher's was right; None: no such context, or it could
    not be graded (`ungraded`)."""

    uid: str
    student: float  # accuracy of the other answers to this problem
    teacher: bool | None
    prompt_tokens: int = 0  # of the teacher's prompt
    truncated: bool = False  # the teacher's answer
    ungraded: bool = False
    reward: float | None = None  # the teacher's

    @property
    def shown(self) -> bool:
        return self.teacher is not None or self.ungraded


class _Teacher:
    """Answers reprompts, each one once: contexts overlap."""

    def __init__(self, config: Config, worker: RolloutWorker, groups: list[Group], per_problem: int) -> None:
        self._plan, self._worker = replace(training_plan(config, TEACHER_STEP), n=1, log_probs=False), worker
        self._groups, self._per_problem = groups, per_problem
        self._threshold = config.actor_rollout_ref.actor.self_distillation.success_reward_threshold
        self._answers: dict[tuple[str, int, tuple[int, ...]], Sample] = {}

    def rows(self, builder: RepromptBuilder) -> list[Row]:
        shown: list[tuple[Group, Sample, Reprompt | None]] = []
        for group in self._groups:
            pairs = zip(group.samples, builder.build(group)[0], strict=True)
            shown += [(group, *pair) for pair in pairs][: self._per_problem]
        self._answer(shown)
        rows = []
        for group, sample, reprompt in shown:
            if sample.reward is None:
                continue
            row = Row(sample.prompt_uid, others_rate(group, sample, self._threshold), None)
            rows.append(row if reprompt is None else self._taught(row, sample, reprompt))
        return rows

    def _taught(self, row: Row, sample: Sample, reprompt: Reprompt) -> Row:
        answer = self._answers[_key(sample, reprompt)]
        return replace(
            row,
            teacher=None if answer.reward is None else is_success(answer, self._threshold),
            prompt_tokens=len(reprompt.prompt_ids),
            truncated=answer.truncated,
            ungraded=answer.reward is None,
            reward=answer.reward,
        )

    def _answer(self, shown: list[tuple[Group, Sample, Reprompt | None]]) -> None:
        jobs = {
            key: RenderedPrompt(replace(group.prompt, uid=f"{sample.prompt_uid}/{sample.index}"), reprompt.prompt_ids)
            for group, sample, reprompt in shown
            if reprompt is not None and (key := _key(sample, reprompt)) not in self._answers
        }
        for key, group in zip(jobs, self._worker.generate(list(jobs.values()), self._plan), strict=True):
            self._answers[key] = group.samples[0]


def context_of(name: str, rows: Sequence[Row]) -> Context:
    shown = [row for row in rows if row.shown]
    covered = [(row.uid, row.student, row.teacher, row.reward) for row in rows if row.teacher is not None]
    # A teacher's answer that nobody could grade is no gain and no loss: it is not known.
    gaps = [(r.uid, 0.0 if r.teacher is None else r.teacher - r.student) for r in rows if not r.ungraded]
    return Context(
        name=name,
        coverage=len(shown) / len(rows) if rows else 0.0,
        student=by_problem([(uid, student) for uid, student, _, _ in covered]),
        teacher=by_problem([(uid, float(teacher)) for uid, _, teacher, _ in covered]),
        gap=by_problem(gaps),
        prompt_tokens=mean(row.prompt_tokens for row in shown) if shown else None,
        truncated_frac=mean(row.truncated for row in shown) if shown else 0.0,
        ungraded_frac=mean(row.ungraded for row in shown) if shown else 0.0,
        reward=by_problem([(uid, reward) for uid, _, _, reward in covered if reward is not None]),
    )


def others_rate(group: Group, sample: Sample, threshold: float) -> float:
    """Accuracy of the group without `sample`: what another draw would reach. Of itself when it is the only one."""
    others = [s for s in group.samples if s is not sample and s.reward is not None]
    return mean(float(is_success(s, threshold)) for s in others or [sample])


def summarize(groups: list[Group], contexts: list[Context], threshold: float) -> Screening:
    samples = [sample for group in groups for sample in group.samples]
    graded = [(s, s.reward) for s in samples if s.reward is not None]
    counts = [sum(is_success(s, threshold) for s in group.samples) for group in groups]
    whole = [sum(s.reward is not None for s in group.samples) for group in groups]
    failed = sum(s.grade is not None and s.grade.status is GradeStatus.INFRA_ERROR for s in samples)
    return Screening(
        problems=len(groups),
        answers=len(samples),
        student=by_problem([(s.prompt_uid, is_success(s, threshold)) for s, _ in graded]),
        reward=by_problem([(s.prompt_uid, reward) for s, reward in graded]),
        solved_group_frac=mean(count > 0 for count in counts),
        mixed_group_frac=mean(0 < count < n for count, n in zip(counts, whole, strict=True)),
        truncated_frac=mean(s.truncated for s in samples),
        ungraded_frac=1 - len(graded) / len(samples),
        infra_error_frac=failed / len(samples),
        contexts=contexts,
    )


def by_problem(values: Sequence[tuple[str, float]]) -> Rate | None:
    """Mean over all values, None without any; the standard error counts problems, since answers to one problem are
    alike."""
    if not values:
        return None
    groups: dict[str, list[float]] = {}
    for uid, value in values:
        groups.setdefault(uid, []).append(float(value))
    centre = mean(value for _, value in values)
    # Of a ratio of sums: every problem's deviation, weighted by how many answers it has.
    parts = [len(group) * (mean(group) - centre) for group in groups.values()]
    scale = math.sqrt(len(parts)) / len(values)
    return Rate(centre, stdev(parts) * scale if len(parts) > 1 else None)


def with_room_for_teacher(config: Config) -> Config:
    """A copy whose engine takes the teacher's prompts, too, and leaves them a whole response; in training the teacher
    only scores, and the engine is made for the student's prompts."""
    changed = copy.deepcopy(config)
    data, rollout = changed.data, changed.actor_rollout_ref.rollout
    longest = max(data.max_prompt_length, changed.actor_rollout_ref.actor.self_distillation.max_reprompt_len)
    rollout.max_model_len = max(rollout.max_model_len or 0, longest + data.max_response_length)
    return changed


def _key(sample: Sample, reprompt: Reprompt) -> tuple[str, int, tuple[int, ...]]:
    return sample.prompt_uid, sample.index, tuple(reprompt.prompt_ids)
