"""The weights of the best step, kept beside the last ones: `model_best/` in the run folder.

The folder is always whole, and always of a step that the log knows, also after `kill -9` and a resume. Which step is
the best is part of a checkpoint. A best step that a checkpoint remembers is not deleted when a better one replaces it:
it waits in `checkpoints/best_step_N` for as long as there is such a checkpoint.
"""

from __future__ import annotations

import json
import math
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

from sdpo.config.schema import Config
from sdpo.tracking.history import BEST_FILE, MODEL_BEST, read_json
from sdpo.training import checkpoint
from sdpo.training.run_folder import checkpoints_of

Best = dict[str, Any]  # {"metric", "step", "value"}, as in a checkpoint and in best.json


class BestModel:
    """`export(folder)` writes the weights of now; `best`: what the checkpoint says that the run goes on from."""

    def __init__(self, config: Config, export: Callable[[str], None], best: Best | None, note: Callable[[str], None]):
        trainer, n = config.trainer, config.actor_rollout_ref.rollout.val_kwargs.n
        wanted = trainer.best_metric if trainer.export_hf and not trainer.val_only else None
        self.metric = wanted.replace("avg@n", f"avg@{n}") if wanted else None
        self.best = best if best and best["metric"] == self.metric else None
        self._export, self._note, self._told = export, note, False
        self._folder, self._checkpoints = Path(trainer.default_local_dir) / MODEL_BEST, checkpoints_of(config)
        if self.metric:
            self._agree_with_checkpoint()

    def offer(self, step: int, metrics: dict[str, float]) -> None:
        """Writes the weights when the step is better than all before. Of equals the earliest stays."""
        if self.metric is None or not any(name.startswith("val/") for name in metrics):
            return
        value = metrics.get(self.metric)
        if value is None or not math.isfinite(value):
            self._tell_once(metrics)
        elif self.best is None or value > self.best["value"]:
            self._write({"metric": self.metric, "step": step, "value": float(value)})

    def prune(self) -> None:
        """Deletes replaced best steps that no checkpoint remembers any more."""
        remembered = self._remembered()
        for folder in self._checkpoints.glob("best_step_*"):
            if folder.name not in remembered:
                shutil.rmtree(folder)

    def _write(self, best: Best) -> None:
        new = self._folder.with_name(f".new_{MODEL_BEST}")
        self._export(str(new))
        (new / BEST_FILE).write_text(json.dumps(best) + "\n")
        if self._folder.exists():
            waiting = self._waiting(self.best) if self.best else None
            if waiting and waiting.name in self._remembered():
                shutil.rmtree(waiting, ignore_errors=True)
                self._folder.rename(waiting)
            else:
                shutil.rmtree(self._folder)
        new.rename(self._folder)
        self.best = best

    def _agree_with_checkpoint(self) -> None:
        """A run that was killed may have written a best step that is done again now."""
        shutil.rmtree(self._folder.with_name(f".new_{MODEL_BEST}"), ignore_errors=True)
        if self._folder.exists() and read_json(self._folder / BEST_FILE) != self.best:
            shutil.rmtree(self._folder)
        if self.best and not self._folder.exists():
            waiting = self._waiting(self.best)
            if waiting.exists():
                waiting.rename(self._folder)
            else:
                lost = f"the best step so far, {self.best['step']}, is not in {self._folder}"
                self._note(f"{lost}: the best of the coming steps will be")
                self.best = None

    def _waiting(self, best: Best) -> Path:
        return self._checkpoints / f"best_step_{best['step']}"

    def _remembered(self) -> set[str]:
        states = map(checkpoint.read_state, checkpoint.complete(self._checkpoints))
        return {self._waiting(state.best).name for state in states if state.best}

    def _tell_once(self, metrics: dict[str, float]) -> None:
        if not self._told:
            self._told = True
            measured = ", ".join(sorted(n for n in metrics if n.startswith("val/") and "@" in n)) or "nothing graded"
            self._note(f"warning: trainer.best_metric: {self.metric} was not measured (measured: {measured})")
