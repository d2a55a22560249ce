"""What a run says of itself, with the real loop, algorithm, log and report, and workers that answer at once."""

from __future__ import annotations

import io
import json
import re
import time
from pathlib import Path

import pytest

from sdpo.algorithms.registry import build_algorithm
from sdpo.config.compose import compose
from sdpo.data.order import PromptOrder
from sdpo.models.load import load_tokenizer
from sdpo.records import Grade, GradeStatus, Group, Prompt, Sample, StepReport
from sdpo.reporting.live.run import LiveRun
from sdpo.reporting.live.views import state
from sdpo.reporting.report import write_report
from sdpo.reprompt.builder import RepromptBuilder
from sdpo.tokens.chat import ChatRenderer
from sdpo.tracking.console import RunConsole
from sdpo.tracking.run_log import RunLog
from sdpo.training.checkpoint import TrainerState
from sdpo.training.loop import TrainingLoop
from sdpo.workers.rollout import RenderedPrompt

DISTILL = "actor_rollout_ref.actor.self_distillation"


def answer(uid: str, index: int, reward: float | None, feedback: str = "") -> Sample:
    status = GradeStatus.INFRA_ERROR if reward is None else GradeStatus.OK if reward >= 1 else GradeStatus.WRONG
    grade = Grade(status, reward, feedback=feedback, flags=("the sandbox is gone",) if reward is None else ())
    return Sample(uid, index, [5, 6], [7, 8, 9], "return x", "stop", 0, [-1.0] * 3, grade)


class Workers:
    """`rewards(step, held_out)` of every group; a mini-batch with rows takes an optimizer step, if it is finite."""

    def __init__(self, rewards, feedback: str = "", finite: bool = True, validation_s: float = 0.0) -> None:
        self.rewards, self.feedback, self.finite, self.validation_s = rewards, feedback, finite, validation_s
        self.policy_version = 0

    def submit(self, jobs, plan) -> list[Group]:
        held_out = not plan.log_probs
        time.sleep(self.validation_s if held_out else 0.0)
        rewards = self.rewards(plan.step, held_out)
        return [
            Group(j.prompt, [answer(j.prompt.uid, i, r, self.feedback) for i, r in enumerate(rewards)]) for j in jobs
        ]

    def collect(self, ticket: list[Group]) -> list[Group]:
        return ticket

    def update(self, batch) -> StepReport:
        taken = len(batch.mini_batches) if self.finite else 0
        self.policy_version += taken
        return StepReport(self.policy_version, taken, len(batch.mini_batches) - taken)

    def sync_weights(self) -> None:
        pass

    def export(self, folder: str) -> None:
        Path(folder).mkdir()
        (Path(folder) / "weights").write_text(str(self.policy_version))


def run(folder: Path, workers: Workers, *overrides: str, steps: int = 5, root: str = "sdpo", held_out: int = 2) -> str:
    """Runs the loop; returns what the console said."""
    sizes = [
        "data.train_batch_size=2",
        "actor_rollout_ref.actor.ppo_mini_batch_size=2",
        "actor_rollout_ref.rollout.n=4",
    ]
    tidy = ["trainer.save_freq=0", f"trainer.default_local_dir={folder}", "grading.max_infra_error_frac=1"]
    config = compose([*sizes, *tidy, *overrides], root)
    chat = ChatRenderer(load_tokenizer(config.actor_rollout_ref.model), {})
    algorithm = build_algorithm(config, RepromptBuilder(config.actor_rollout_ref.actor.self_distillation, chat))
    jobs = [RenderedPrompt(Prompt(f"p{i}", ({"role": "user", "content": "x"},), "programs"), [5, 6]) for i in range(4)]
    stream = io.StringIO()
    with RunLog(folder, config, console=RunConsole(stream), write_report=write_report) as log:
        order = PromptOrder(4, 2, 0, True)
        start = TrainerState(0, 0, 0)
        TrainingLoop(config, workers, algorithm, log, jobs, jobs[:held_out], order, steps, start).run()
    return stream.getvalue()


def table(said: str) -> dict[str, str]:
    rows = re.findall(r"^│ (.+?) *│ (.+?) *│$", said, re.MULTILINE)
    return dict(rows)


def report(folder: Path) -> str:
    return (folder / "report.html").read_text()


def lines(folder: Path) -> list[dict]:
    return [json.loads(line) for line in (folder / "metrics.jsonl").read_text().splitlines()]


def always(*rewards):
    return lambda step, held_out: rewards


def test_a_run_without_any_signal_says_so_on_the_way_at_the_end_and_in_the_report(tmp_path):
    said = run(tmp_path, Workers(always(0.2, 0.3, 0.2, 0.3)))
    warnings = [line for line in said.splitlines() if line.startswith("warning: ")]
    assert len(warnings) == 2 and warnings[0] == warnings[1]  # after three steps, and below the table
    for word in ("steps 1 to 3", "feedback", "success_reward_threshold=1", "sdpo.cli.screen", "mean reward 0.250"):
        assert word in warnings[0]
    assert table(said)["learned nothing"] == "all 5 steps"
    page = report(tmp_path)
    assert "<span>learned nothing</span><b>5</b>" in page and "steps 1 to 3 changed nothing in the model" in page
    assert "steps 1 to 3 changed nothing in the model" in state(loaded(tmp_path))["tiles"]


def loaded(folder: Path) -> LiveRun:
    live = LiveRun(folder)
    while live.refresh():
        pass
    return live


def test_a_run_shorter_than_the_patience_is_warned_of_as_well(tmp_path):
    said = run(tmp_path, Workers(always(0.0, 0.0)), steps=1)
    assert "warning: step 1 changed nothing in the model" in said
    assert table(said)["learned nothing"] == "all 1 steps"


def test_feedback_that_is_switched_off_is_named(tmp_path):
    said = run(tmp_path, Workers(always(0.0, 0.0), "expected 4"), f"{DISTILL}.include_environment_feedback=false")
    assert f"feedback is switched off ({DISTILL}.include_environment_feedback=false)" in said


def test_grpo_without_a_group_whose_rewards_differ_is_warned_of(tmp_path):
    said = run(tmp_path, Workers(always(0.3, 0.3, 0.3)), root="baseline_grpo")
    assert "steps 1 to 3 changed nothing in the model: in no group do rewards differ" in said
    assert "sdpo.cli.screen" in said and "feedback" in said
    assert table(said)["learned nothing"] == "all 5 steps"


@pytest.mark.parametrize(
    ("workers", "why"),
    [
        (Workers(always(0.0, 1.0), finite=False), "the gradient was not finite"),
        (Workers(always(None, None)), "no answer could be graded"),
        (Workers(always(1.0)), "every answer is right already"),
    ],
)
def test_other_reasons_why_nothing_moves_are_told_apart(tmp_path, workers, why):
    assert f"steps 1 to 3 changed nothing in the model: {why}" in run(tmp_path, workers)


@pytest.mark.parametrize(
    ("workers", "root"),
    [
        (Workers(always(0.0, 1.0)), "sdpo"),
        (Workers(always(0.0, 0.0), "expected 4"), "sdpo"),
        (Workers(always(0.2, 0.3)), "baseline_grpo"),
        (Workers(lambda step, held_out: (0.0, 1.0) if step % 3 == 0 else (0.0, 0.0)), "sdpo"),
    ],
)
def test_a_run_that_learns_now_and_then_is_not_warned_of(tmp_path, workers, root):
    said = run(tmp_path, workers, root=root)
    assert "warning" not in said and "all" not in table(said).get("learned nothing", "")


def test_rewards_between_0_and_1_are_seen_wherever_the_accuracy_is(tmp_path):
    rising = Workers(lambda step, held_out: (0.20 + 0.02 * step,) * 4, "expected 4")
    said = run(tmp_path, rising, "trainer.test_freq=2", steps=4)
    first, second, third, *_ = said.splitlines()
    assert "held-out 0.000 reward 0.200" in first
    assert "train 0.000 reward 0.220  held-out 0.000 reward 0.200 (before training)" in second
    assert "train 0.000 reward 0.240  held-out 0.000 reward 0.200" in third
    found = table(said)
    assert (found["train accuracy"], found["train reward"]) == ("0.000 → 0.000", "0.220 → 0.280")
    assert (found["held-out avg@4"], found["held-out reward"]) == ("0.000 → 0.000", "0.200 → 0.200")
    page = report(tmp_path)
    assert "<b>0.000</b><small>reward 0.220 → 0.280</small>" in page
    assert "reward 0.200, initial weights" in page and "<h3>Mean reward by step</h3>" in page


def test_speed_leaves_validation_and_its_exports_out(tmp_path):
    run(tmp_path, Workers(always(0.0, 1.0), validation_s=0.05), "trainer.test_freq=2", steps=4)
    for line in lines(tmp_path)[1:]:
        spent = sum(line[f"timing/{phase}_s"] for phase in ("rollout", "update", "sync"))
        assert line["perf/tokens_per_s"] == pytest.approx(line["train/step_tokens"] / spent)
    assert "timing/validate_s" in lines(tmp_path)[2] and "timing/validate_s" not in lines(tmp_path)[1]


def test_a_run_that_validated_before_training_only_does_not_show_that_as_its_result(tmp_path):
    said = run(tmp_path, Workers(always(0.0, 1.0)), "trainer.test_freq=0")
    assert said.count("held-out 0.500 reward 0.500 (before training)") == 5
    assert table(said)["held-out avg@4"] == "0.500 before training"
    assert "best" not in table(said) and not (tmp_path / "model_best").exists()


def test_lost_held_out_responses_are_in_the_table_with_the_denominator_and_warned_of(tmp_path):
    said = run(tmp_path, Workers(lambda step, held_out: (1, 1, None, None) if held_out else (0, 1)))
    assert said.count("warning: 4 of 8 held-out responses of step 0 could not be graded (the grader failed on 4)") == 2
    assert table(said)["held-out avg@4"] == "1.000 → 1.000"
    assert table(said)["graded"] == "4 of 8 held-out responses"
    assert "<span>held-out graded</span><b>4</b><small>of 8 responses</small>" in report(tmp_path)


def test_a_validation_in_which_nothing_was_graded_shows_no_number(tmp_path):
    said = run(tmp_path, Workers(lambda step, held_out: (None, None) if held_out else (0, 1)))
    assert table(said)["held-out accuracy"] == table(said)["held-out reward"] == "– → –"
    assert table(said)["graded"] == "0 of 4 held-out responses"
    assert not (tmp_path / "model_best").exists()


class Cut(Workers):
    """So many of the four answers end at the response length."""

    def __init__(self, cut) -> None:
        super().__init__(always(0.0, 1.0, 0.0, 0.0))
        self.cut = cut

    def submit(self, jobs, plan) -> list[Group]:
        groups = super().submit(jobs, plan)
        for group in groups:
            for sample in group.samples[: self.cut(not plan.log_probs)]:
                sample.finish_reason = "length"
        return groups


@pytest.mark.parametrize(("trained", "held_out", "part"), [(4, 0, "step 1"), (0, 4, "held-out problems of step 0")])
def test_answers_that_are_all_cut_are_warned_of_once_with_the_setting(trained, held_out, part, tmp_path):
    workers = Cut(lambda validating: held_out if validating else trained)
    said = run(tmp_path, workers, "data.max_response_length=48")
    assert said.count("warning: all answers") == 2  # when it is seen, and below the table
    (line, _) = (line for line in said.splitlines() if line.startswith("warning: all answers"))
    assert part in line and "data.max_response_length=48" in line


def test_answers_of_which_some_end_are_not_warned_of(tmp_path):
    assert "are cut" not in run(tmp_path, Cut(lambda validating: 3))
    engine = "actor_rollout_ref.rollout.ignore_eos=true"  # then they are meant to be
    assert "are cut" not in run(tmp_path / "meant", Cut(lambda validating: 4), engine)


def test_without_held_out_problems_there_is_no_word_of_them(tmp_path):
    said = run(tmp_path, Workers(always(0.0, 1.0)), held_out=0)
    assert "held-out" not in said and table(said)["train accuracy"] == "0.500 → 0.500"
    assert "<span>after</span><b>–</b>" in report(tmp_path)


def test_the_best_step_is_kept_and_named(tmp_path):
    values = {0: (0, 0), 2: (0, 1), 4: (0, 0)}
    workers = Workers(lambda step, held_out: (0, 1) if not held_out else next(order))
    order = iter(values.values())
    said = run(tmp_path, workers, "trainer.test_freq=2", steps=4)
    assert (tmp_path / "model_best/weights").read_text() == "2"
    assert table(said)["best"] == "0.500 at step 2" and table(said)["model_best"] == "step 2, avg@4 0.500"
    assert "<span>model_best</span><b>0.500</b><small>avg@4, step 2</small>" in report(tmp_path)
