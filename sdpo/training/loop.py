"""The training loop. Reads like the algorithm box: sample, grade, build the batch, update, sync; around it validation,
checkpoints and the log."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path

from sdpo import interrupt
from sdpo.algorithms.registry import Algorithm
from sdpo.algorithms.rows import train_batch
from sdpo.config.compose import to_yaml
from sdpo.config.schema import Config
from sdpo.data.order import PromptOrder
from sdpo.errors import GradingError, OutputLost, SdpoError
from sdpo.records import GradeStatus, Group, TrainBatch
from sdpo.tracking.run_log import Phase, RunLog
from sdpo.tracking.timing import PhaseTimer, tokens_per_s
from sdpo.training import checkpoint
from sdpo.training.agreement import check_agreement
from sdpo.training.alarms import Alarms
from sdpo.training.best import BestModel
from sdpo.training.checkpoint import TrainerState
from sdpo.training.evaluate import validate
from sdpo.training.metrics import train_metrics
from sdpo.training.rollouts import DRAWN_AHEAD, Rollouts
from sdpo.training.run_folder import checkpoints_of
from sdpo.training.shaping import note_kl, shaping_metrics
from sdpo.workers.group import Workers
from sdpo.workers.rollout import RenderedPrompt


class TrainingLoop:
    """`order` is None when the run only validates. `drawn_ahead`: the file of the checkpoint that is resumed."""

    def __init__(
        self,
        config: Config,
        workers: Workers,
        algorithm: Algorithm,
        log: RunLog,
        train_jobs: Sequence[RenderedPrompt],
        val_jobs: Sequence[RenderedPrompt],
        order: PromptOrder | None,
        total_steps: int,
        state: TrainerState,
        drawn_ahead: Path | None = None,
    ) -> None:
        self.config, self.workers, self.algorithm, self.log = config, workers, algorithm, log
        self.train_jobs, self.val_jobs, self.order, self.total_steps = train_jobs, val_jobs, order, total_steps
        self.step, self.samples, self.unvalidated = state.step, state.samples, state.unvalidated
        self._whole = True  # the weights are those of `step`, and the log knows it
        self.timer = PhaseTimer(show=log.phase)
        self.checkpoints = checkpoints_of(config)
        self.best = BestModel(config, workers.export, state.best, log.note)
        self.alarms = Alarms(config, total_steps, log.warn)
        drawn = state.step if state.drawn is None else state.drawn
        self.rollouts = Rollouts(config, workers, self._jobs, total_steps, drawn)
        if drawn_ahead is not None:
            self.rollouts.load(drawn_ahead, state.step + 1)

    def run(self) -> None:
        """Trains to the last step. Raises GradingError when the grader is down; every sample is in the log by then."""
        self.log.begin(self.total_steps)
        self.workers.sync_weights()  # the engines start from the model folder, the student may come from a checkpoint
        trainer = self.config.trainer
        if self.step == 0 and trainer.val_before_train or trainer.val_only:
            with self.timer("validate"):
                metrics = self._validate("val_before")
            self.log.metrics(
                self.step, metrics | {"policy_version": self.workers.policy_version} | self.timer.step_metrics()
            )
        if trainer.val_only:
            return
        try:
            if self.unvalidated:
                self._validate_late()
            while self.step < self.total_steps:
                self._train_step(self.step + 1)
        except interrupt.STOPS:
            self._save_on_signal()
            raise

    def _train_step(self, step: int) -> None:
        with self.timer("rollout"):
            groups, kept = self.rollouts.take_enough(step)
        if self.config.algorithm.use_kl_in_reward:
            with self.timer("update"):
                note_kl(kept, self.workers)
        routed = self.algorithm.route(kept, step)
        batch = train_batch(kept, routed, self.config.actor_rollout_ref.actor)
        batch.metrics |= shaping_metrics(kept, groups, self.config)
        self.log.samples(step, groups, batch.reprompts, phase="train")
        self._stop_if_grading_is_down(groups)
        metrics: dict[str, float] = {}
        due = _due(step, step == self.total_steps, self.config.trainer.test_freq)
        try:
            with interrupt.held(self._hold):
                self._update(step, groups, batch, metrics)
            if due:
                with self.timer("validate"):
                    metrics |= self._validate(self._phase)
        except interrupt.STOPS:
            if self._hold and self.step == step:  # the update is whole
                self.unvalidated = due
                self._record(groups, metrics)
            raise
        with interrupt.held(self._hold):
            if due:
                with self.timer("export"):
                    self.best.offer(step, metrics)
            # The log comes first: a checkpoint never stands for a step that the log does not know.
            self._record(groups, metrics)
            if _due(step, step == self.total_steps, self.config.trainer.save_freq):
                with self.timer("checkpoint"):
                    self._save()

    def _update(self, step: int, groups: list[Group], batch: TrainBatch, metrics: dict[str, float]) -> None:
        """Trains and syncs; fills in `metrics`."""
        self._whole = False
        with self.timer("update"):
            report = self.workers.update(batch)
        self.log.tokens(step, report.tokens)
        check_agreement(report.metrics, self.config, step)
        with self.timer("sync"):
            self.workers.sync_weights()
        self.step = step
        metrics |= train_metrics(groups, self._threshold, self.samples) | batch.metrics | report.metrics
        self.samples = int(metrics["train/samples"])
        metrics |= {
            "policy_version": report.policy_version,
            "actor/optimizer_steps": report.optimizer_steps,
            "actor/skipped_steps": report.skipped_steps,
        }
        self.alarms.trained(step, metrics)

    def _record(self, groups: list[Group], metrics: dict[str, float]) -> None:
        try:
            self.log.metrics(self.step, metrics | self._timing(groups))
        except OutputLost:  # of the console; files come first
            self._whole = True
            raise
        self._whole = True

    @property
    def _hold(self) -> Callable[[str], None] | None:
        """A run that keeps checkpoints brings a step to its end before it stops, so that it can keep the step."""
        return self.log.note if self.config.trainer.save_freq != 0 else None

    @property
    def _phase(self) -> Phase:
        return "val_after" if self.step == self.total_steps else "val"

    def _validate_late(self) -> None:
        """What a signal broke off; a second line of the step in the log."""
        with self.timer("validate"):
            metrics = self._validate(self._phase)
        self.best.offer(self.step, metrics)
        timing = self.timer.step_metrics()
        self.log.metrics(self.step, metrics | {"timing/validate_s": timing["timing/validate_s"]})
        self.unvalidated = False

    def _save_on_signal(self) -> None:
        """What was trained since the newest checkpoint is kept, unless the run keeps none."""
        there = checkpoint.latest(self.checkpoints)
        if self._hold is None or not self._whole or self.step in (0, there and checkpoint.number(there)):
            return
        self.log.note(f"writing a checkpoint of step {self.step}; once more ends at once")
        try:
            with self.timer("checkpoint"):
                self._save()
        except (SdpoError, OSError) as error:
            self.log.warn(str(error))

    def _jobs(self, batch: int) -> list[RenderedPrompt]:
        assert self.order is not None  # the run trains
        return [self.train_jobs[i] for i in self.order.batch(batch)]

    def _timing(self, groups: list[Group]) -> dict[str, float]:
        timing = self.timer.step_metrics()
        tokens = sum(len(s.response_ids) for g in groups for s in g.samples)
        return timing | {"perf/tokens_per_s": tokens_per_s(tokens, timing)}

    @property
    def _threshold(self) -> float:
        return self.config.actor_rollout_ref.actor.self_distillation.success_reward_threshold

    def _validate(self, phase: Phase) -> dict[str, float]:
        if not self.val_jobs:
            return {}
        groups, metrics = validate(self.config, self.workers, self.val_jobs)
        self.log.samples(self.step, groups, {}, phase=phase)
        self.alarms.validated(self.step, metrics)
        self._stop_if_grading_is_down(groups)
        return metrics

    def _stop_if_grading_is_down(self, groups: list[Group]) -> None:
        """A few lost grades are masked and counted; more of them mean that the grader is down, and training would go on
        with whatever is left."""
        grades = [s.grade for g in groups for s in g.samples]
        failed = [g for g in grades if g is not None and g.status is GradeStatus.INFRA_ERROR]
        limit = self.config.grading.max_infra_error_frac
        if len(failed) > limit * len(grades):
            raise GradingError(
                f"grading: {len(failed)} of {len(grades)} responses of step {self.step + 1} could not be graded "
                f"({'; '.join(failed[0].flags)}); the samples are in the log; repair what failed and resume"
            )

    def _save(self) -> None:
        drawn = self.rollouts.drawn if self.config.algorithm.filter_groups.enable else None
        state = TrainerState(
            self.step, self.workers.policy_version, self.samples, self.best.best, self.unvalidated, drawn
        )
        keep = self.config.trainer.max_actor_ckpt_to_keep

        def write(actor: str) -> None:
            self.workers.save(actor)
            self.rollouts.save(Path(actor).with_name(DRAWN_AHEAD), self.step + 1)

        checkpoint.save(self.checkpoints, state, write, keep, to_yaml(self.config))
        self.best.prune()


def _due(step: int, last: bool, every: int) -> bool:
    """Every so many steps and at the end; -1: only at the end; 0: never."""
    return every != 0 and (last or every > 0 and step % every == 0)
