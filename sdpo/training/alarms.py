"""What a person should hear while a run goes on, because its end would look like a success: nothing was learned, or
answers were lost."""

from __future__ import annotations

from collections.abc import Callable, Mapping

from sdpo.config.schema import Config

SILENT = 3  # steps in a row that moved nothing
CUT = 0.95  # share of answers that reach the response length
_DISTILL = "actor_rollout_ref.actor.self_distillation"
_SCREEN = "`python -m sdpo.cli.screen` with the same settings measures beforehand whether there is a signal"

Metrics = Mapping[str, float]


class Alarms:
    """`warn(text)` shows a warning and keeps it. Each kind is said once per process."""

    def __init__(self, config: Config, total_steps: int, warn: Callable[[str], None]) -> None:
        self._config, self._warn = config, warn
        self._patience = min(SILENT, total_steps)
        self._silent: list[int] = []
        self._said: set[str] = set()

    def trained(self, step: int, metrics: Metrics) -> None:
        """After every step, with `actor/optimizer_steps` among its metrics."""
        self._cut("train", f"of step {step}", metrics)
        self._silent = [] if metrics["actor/optimizer_steps"] else [*self._silent, step]
        if len(self._silent) == self._patience:
            steps = f"step {step}" if self._patience == 1 else f"steps {self._silent[0]} to {step}"
            self._say("silent", f"{steps} changed nothing in the model: {why_silent(self._config, metrics)}")

    def validated(self, step: int, metrics: Metrics) -> None:
        self._cut("val", f"to held-out problems of step {step}", metrics)
        sampled, graded = metrics.get("val/samples", 0.0), metrics.get("val/graded_samples", 0.0)
        if graded < sampled:
            failed = round(metrics.get("val/infra_error_frac", 0.0) * sampled)
            text = f"{sampled - graded:.0f} of {sampled:.0f} held-out responses of step {step} could not be graded"
            self._say(
                "lost", f"{text} (the grader failed on {failed}); accuracy and reward are over the other {graded:.0f}"
            )

    def _cut(self, part: str, which: str, metrics: Metrics) -> None:
        share = metrics.get(f"{part}/truncated_frac", 0.0)
        if share >= CUT and not self._config.actor_rollout_ref.rollout.ignore_eos:
            longest = f"data.max_response_length={self._config.data.max_response_length}"
            text = f"{'all' if share == 1 else f'{share:.0%} of the'} answers {which} are cut at {longest}"
            self._say("cut", f"{text} tokens: hardly one can be right; raise it, or take a model that answers shorter")

    def _say(self, kind: str, text: str) -> None:
        if kind not in self._said:
            self._said.add(kind)
            self._warn(text)


def why_silent(config: Config, metrics: Metrics) -> str:
    """Why a step took no optimizer step, from its metrics, and what to do."""
    settings, accuracy = config.actor_rollout_ref.actor.self_distillation, metrics.get("train/accuracy")
    if metrics.get("actor/skipped_steps"):
        return "the gradient was not finite; lower actor_rollout_ref.actor.optim.lr and look at actor/grad_norm"
    if accuracy is None:
        return "no answer could be graded (train/ungraded_frac); look at `status` in samples.jsonl"
    if accuracy >= 1.0:
        return "every answer is right already; take harder problems"
    seen = f"accuracy {accuracy:.3f}, mean reward {metrics.get('train/reward', 0.0):.3f}"
    if "sdpo/signal_frac" not in metrics:
        sdpo = "SDPO (--config-name sdpo) would also learn from the grader's feedback"
        fix = f"take problems of another difficulty or raise actor_rollout_ref.rollout.n; {sdpo}; {_SCREEN}"
        return f"in no group do rewards differ, so that nothing can be compared ({seen}); {fix}"
    if metrics.get("sdpo/masked_overlong_frac"):
        return f"what the teacher should be told does not fit ({seen}); raise {_DISTILL}.max_reprompt_len"
    bar = f"{_DISTILL}.success_reward_threshold={settings.success_reward_threshold:g}"
    feedback = (
        "the grader gives no feedback on failures (docs/grading.md says which do; one of your own can return text)"
        if settings.include_environment_feedback
        else f"feedback is switched off ({_DISTILL}.include_environment_feedback=false)"
    )
    fix = f"let the grader give feedback, lower the threshold, or take easier problems; {_SCREEN}"
    return f"no answer had a sibling to learn from, with a reward of at least {bar}, and {feedback} ({seen}); {fix}"
