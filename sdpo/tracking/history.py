"""A run folder read back: what the final table, the report and the dashboards draw from."""

from __future__ import annotations

import json
import re
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path
from typing import Any

import yaml

from sdpo.algorithms.registry import ALGORITHMS
from sdpo.errors import DataError, problem
from sdpo.tracking.jsonl import read_lines

METRICS_FILE = "metrics.jsonl"
SAMPLES_FILE = "samples.jsonl"
TOKENS_FILE = "tokens.jsonl"
DROPPED_FILE = "dropped_rows.jsonl"
CONFIG_FILE = "resolved_config.yaml"
STATE_FILE = "run.json"
REPORT_FILE = "report.html"
MODEL_BEST = "model_best"  # the exported weights of the best step
BEST_FILE = "best.json"  # in it: {"metric", "step", "value"}

_VALIDATION_NAME = re.compile(r"^val/avg@(\d+)$")
_THRESHOLD = "actor_rollout_ref.actor.self_distillation.success_reward_threshold"
_VAL_THRESHOLD = "trainer.val_success_threshold"
_LARGEST = 1e300  # of a number that a chart can scale
_REWARD_TOLERANCE = 1e-9  # as in training: ten tests of weight 0.1 sum to 0.9999999999999999
TRAINED = ("accuracy", "reward")  # of the sampled responses, under train/
# Keys of timing/ that are not a phase.
_TOTALS = frozenset({"timing/step_s", "timing/elapsed_s"})


@dataclass
class RunHistory:
    """Metrics by step (ascending, lines of one step joined), run state and configuration of one run folder."""

    run_dir: Path
    rows: list[dict[str, Any]]
    state: dict[str, Any] = field(default_factory=dict)
    config: dict[str, Any] = field(default_factory=dict)

    @classmethod
    def load(cls, run_dir: Path | str) -> RunHistory:
        """Raises DataError when the folder has no metrics file. A broken last line is left out."""
        run_dir = Path(run_dir)
        if not (run_dir / METRICS_FILE).is_file():
            raise DataError(
                problem(
                    "run folder",
                    str(run_dir),
                    f"a folder with {METRICS_FILE}",
                    "give trainer.default_local_dir of a run",
                )
            )
        by_step: dict[int, dict[str, Any]] = {}
        for line in read_lines(run_dir / METRICS_FILE):
            if isinstance(line.get("step"), int):
                by_step.setdefault(line["step"], {}).update(line)
        rows = [by_step[step] for step in sorted(by_step)]
        return cls(run_dir, rows, read_json(run_dir / STATE_FILE), read_yaml(run_dir / CONFIG_FILE))

    @cached_property
    def columns(self) -> dict[str, list[tuple[int, float]]]:
        """Metric -> (step, value) wherever it is a number, in order of steps."""
        columns: dict[str, list[tuple[int, float]]] = {}
        for row in self.rows:
            add_to_columns(columns, row)
        return columns

    def series(self, name: str) -> list[tuple[int, float]]:
        """(step, value) wherever the metric is a number."""
        return self.columns.get(name, [])

    def last(self, name: str) -> float | None:
        values = self.series(name)
        return values[-1][1] if values else None

    def recorded(self, name: str) -> dict[str, Any]:
        """A mapping that the run has noted in run.json; {} when there is none."""
        return value if isinstance(value := self.state.get(name), dict) else {}

    def names(self) -> list[str]:
        """Every metric that has at least one number, sorted."""
        return sorted(self.columns)

    @cached_property
    def elapsed(self) -> dict[int, float]:
        """Step -> seconds of training behind it, over all resumes."""
        return dict(self.series("timing/elapsed_s"))

    @property
    def validation_name(self) -> str | None:
        """The held-out accuracy: `val/avg@n` with the largest n."""
        found = [(int(match[1]), name) for name in self.names() if (match := _VALIDATION_NAME.match(name))]
        return max(found)[1] if found else None

    def phase_seconds(self) -> dict[str, float]:
        """Seconds of each phase, summed over the steps, largest first."""
        totals = {
            name.removeprefix("timing/").removesuffix("_s"): sum(value for _, value in self.series(name))
            for name in self.names()
            if name.startswith("timing/") and name.endswith("_s") and name not in _TOTALS
        }
        return dict(sorted(totals.items(), key=lambda item: -item[1]))

    def summary(self) -> Summary:
        validation = self.series(self.validation_name) if self.validation_name else []
        best_step, best = max(validation, key=lambda point: point[1], default=(None, None))
        before = validation[0][1] if validation and validation[0][0] == 0 else None
        after = validation[-1] if validation and validation[-1][0] > 0 else None
        rewards = dict(self.series("val/reward"))
        updates = [(step, value) for step, value in self.series("actor/optimizer_steps") if step > 0]
        return Summary(
            title=f"{self._trainer('project_name', 'sdpo')} / {self._trainer('experiment_name', self.run_dir.name)}",
            algorithm=self._algorithm(),
            model=str(setting(self.config, "actor_rollout_ref.model.path") or ""),
            status=str(self.state.get("status", "unknown")),
            validation_name=self.validation_name,
            before=before,
            after=after[1] if after else None,
            after_step=after[0] if after else None,
            best=best if after else None,
            best_step=best_step if after else None,
            steps=self.rows[-1]["step"] if self.rows else 0,
            total_steps=total if isinstance(total := self.state.get("total_steps"), int) else None,
            samples=self.last("train/samples"),
            elapsed_s=self.last("timing/elapsed_s"),
            phase_seconds=self.phase_seconds(),
            reward_before=rewards.get(0),
            reward_after=rewards.get(after[0]) if after else None,
            reward_best=rewards.get(best_step) if after and best_step is not None else None,
            training={name: (v[0][1], v[-1][1]) for name in TRAINED if (v := self.series(f"train/{name}"))},
            graded=self.last("val/graded_samples"),
            held_out=self.last("val/samples"),
            trained_steps=len(updates),
            idle_steps=sum(value == 0 for _, value in updates),
            kept=read_best(self.run_dir / MODEL_BEST),
            warnings=[str(text) for text in listed] if isinstance(listed := self.state.get("warnings"), list) else [],
        )

    def _trainer(self, name: str, default: str) -> str:
        return str(setting(self.config, f"trainer.{name}") or default)

    def _algorithm(self) -> str:
        mode = str(setting(self.config, "actor_rollout_ref.actor.policy_loss.loss_mode") or "")
        return ALGORITHMS[mode].label if mode in ALGORITHMS else mode


@dataclass(frozen=True)
class Summary:
    """The numbers of a whole run that a person asks for first. None: not measured (yet)."""

    title: str
    algorithm: str
    model: str
    status: str  # running | finished | failed | interrupted | unknown; a killed run still says running
    validation_name: str | None
    before: float | None
    after: float | None
    after_step: int | None
    best: float | None  # of all validations, once there is one after the first step
    best_step: int | None
    steps: int
    total_steps: int | None
    samples: float | None
    elapsed_s: float | None
    phase_seconds: dict[str, float]
    reward_before: float | None = None  # mean of the held-out responses
    reward_after: float | None = None
    reward_best: float | None = None
    training: dict[str, tuple[float, float]] = field(default_factory=dict)  # of `TRAINED`: first step, last step
    graded: float | None = None  # held-out responses of the newest validation that averages are over, of
    held_out: float | None = None  # so many
    trained_steps: int = 0  # that say whether they took an optimizer step
    idle_steps: int = 0  # of these, the ones that did not: nothing was learned
    kept: dict[str, Any] = field(default_factory=dict)  # best.json of model_best/
    warnings: list[str] = field(default_factory=list)


def setting(config: dict[str, Any], path: str) -> Any:
    """The value at `a.b.c`; None where there is none."""
    value: Any = config
    for name in path.split("."):
        value = value.get(name) if isinstance(value, dict) else None
    return value


def success_threshold(config: dict[str, Any], held_out: bool = False) -> float:
    """The reward from which a response counts as solved: the run's own, 1 when its configuration does not say.
    `held_out` responses have a threshold of their own (in old runs, the training's)."""
    for name in (_VAL_THRESHOLD, _THRESHOLD) if held_out else (_THRESHOLD,):
        if _is_number(value := setting(config, name)):
            return float(value)
    return 1.0


def is_solved(reward: float | None, threshold: float) -> bool:
    return reward is not None and reward >= threshold - _REWARD_TOLERANCE


def duration(seconds: float) -> str:
    """For people: '4.2 s', '2 min 05 s', '3 h 07 min'.

    >>> duration(125)
    '2 min 05 s'
    """
    if seconds < 60:
        return f"{seconds:.1f} s" if seconds < 10 else f"{seconds:.0f} s"
    minutes, rest = divmod(round(seconds), 60)
    if minutes < 60:
        return f"{minutes} min {rest:02d} s"
    return f"{minutes // 60} h {minutes % 60:02d} min"


def add_to_columns(columns: dict[str, list[tuple[int, float]]], row: dict[str, Any]) -> None:
    """The numbers of one line, behind those of the steps before."""
    for name, value in row.items():
        if name not in ("step", "time") and _is_number(value):
            columns.setdefault(name, []).append((row["step"], value))


def _is_number(value: Any) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool) and abs(value) < _LARGEST


def read_json(path: Path) -> dict[str, Any]:
    """A JSON object; {} when the file is missing or broken."""
    try:
        state = json.loads(path.read_text(encoding="utf-8"))
    except (FileNotFoundError, UnicodeDecodeError, json.JSONDecodeError, RecursionError):
        return {}
    return state if isinstance(state, dict) else {}


def read_best(folder: Path) -> dict[str, Any]:
    """The facts of an exported best step; {} when there is none."""
    best = read_json(folder / BEST_FILE)
    whole = isinstance(best.get("metric"), str) and isinstance(best.get("step"), int) and _is_number(best.get("value"))
    return best if whole else {}


def read_yaml(path: Path) -> dict[str, Any]:
    """Likewise."""
    try:
        config = yaml.safe_load(path.read_text(encoding="utf-8"))
    except (FileNotFoundError, UnicodeDecodeError, yaml.YAMLError, RecursionError):
        return {}
    return config if isinstance(config, dict) else {}
