"""model_best: the weights of the first step that no other was better than, whatever has happened in between."""

from __future__ import annotations

import copy
import json
import shutil
from contextlib import suppress
from pathlib import Path
from unittest import mock

import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from sdpo.config.compose import compose
from sdpo.training import best, checkpoint, run_folder
from sdpo.training.best import BestModel
from sdpo.training.checkpoint import TrainerState

CONFIG = compose([])


class Killed(BaseException):
    """`kill -9`: nothing is tidied up."""


class Process:
    """One process of a run whose weights are the number of their step; it dies at the `dies`-th thing it does."""

    def __init__(self, folder: Path, values: list[float | None], save_freq: int, dies: int | None = None) -> None:
        self.folder, self.values, self.save_freq, self.left, self.step = folder, values, save_freq, dies, 0
        self.config = copy.deepcopy(CONFIG)
        self.config.trainer.default_local_dir = str(folder)
        self.notes: list[str] = []

    def run(self, restart: bool = False) -> BestModel:
        """To the last step, from the newest checkpoint."""
        rename, rmtree, root = Path.rename, shutil.rmtree, run_folder.checkpoints_of(self.config)
        resume = checkpoint.latest(root)
        state = checkpoint.read_state(resume) if resume and not restart else TrainerState(0, 0, 0)
        with (
            mock.patch.object(best.Path, "rename", lambda path, new: (self._act(), rename(path, new))),
            mock.patch.object(best.shutil, "rmtree", lambda *args, **options: (self._act(), rmtree(*args, **options))),
        ):
            keeper = BestModel(self.config, self._export, state.best, self.notes.append)
            for step in range(state.step + 1, len(self.values) + 1):
                self.step = step
                value = self.values[step - 1]
                keeper.offer(step, {"val/samples": 8.0} | ({} if value is None else {"val/avg@4": value}))
                if step % self.save_freq == 0:
                    now = TrainerState(step, step, step, keeper.best)
                    checkpoint.save(root, now, lambda folder: Path(folder).mkdir(), 2)
                    keeper.prune()
        return keeper

    def _export(self, folder: str) -> None:
        self._act()
        Path(folder).mkdir()
        (Path(folder) / "weights").write_text(str(self.step))
        self._act()

    def _act(self) -> None:
        if self.left is not None:
            self.left -= 1
            if self.left < 0:
                raise Killed


def first_best(values: list[float | None]) -> tuple[int, float] | None:
    known = [(step, value) for step, value in enumerate(values, 1) if value is not None]
    return max(known, key=lambda pair: pair[1], default=None)


def held(folder: Path) -> tuple[int, float] | None:
    if not (folder / "model_best").exists():
        return None
    facts = json.loads((folder / "model_best/best.json").read_text())
    assert int((folder / "model_best/weights").read_text()) == facts["step"]
    assert facts["metric"] == "val/avg@4"
    return facts["step"], facts["value"]


@settings(max_examples=50)
@given(
    values=st.lists(st.sampled_from([None, 0.0, 0.25, 0.5, 0.75]), min_size=1, max_size=10),
    save_freq=st.integers(1, 4),
    deaths=st.lists(st.integers(0, 25), max_size=3),
)
@example(values=[0.5, 0.75, 0.25, 0.9], save_freq=3, deaths=[7])
@example(values=[0.25, 0.5, 0.75, 0.75, 0.5], save_freq=2, deaths=[10, 10])
def test_after_any_kill_and_resume_the_best_is_that_of_an_unbroken_run(tmp_path_factory, values, save_freq, deaths):
    folder = tmp_path_factory.mktemp("run")
    for dies in deaths:
        with suppress(Killed):
            Process(folder, values, save_freq, dies).run()
    process = Process(folder, values, save_freq)
    keeper = process.run()
    # Killed before its first checkpoint, or after its last step, a run has nothing left that could be remembered.
    assert held(folder) == first_best(values)
    assert process.notes == [] or "was not measured" in process.notes[0]
    if keeper.best:
        assert (keeper.best["step"], keeper.best["value"]) == held(folder)
    waiting = {path.name for path in (folder / "checkpoints").glob("best_step_*")}
    states = [checkpoint.read_state(path) for path in checkpoint.complete(folder / "checkpoints")]
    assert waiting <= {f"best_step_{state.best['step']}" for state in states if state.best}
    assert not list(folder.glob(".new_*"))


def test_going_back_to_an_older_checkpoint_brings_back_the_best_of_then(tmp_path):
    Process(tmp_path, [0.5, 0.25, 0.75], 1).run()
    shutil.rmtree(tmp_path / "checkpoints/step_3")
    keeper = Process(tmp_path, [0.5, 0.25], 1).run()
    assert held(tmp_path) == (1, 0.5) and keeper.best["step"] == 1
    keeper = Process(tmp_path, [0.5, 0.25, 0.4], 1).run()
    assert held(tmp_path) == (1, 0.5)


def test_a_best_step_whose_weights_are_gone_is_said_and_forgotten(tmp_path):
    Process(tmp_path, [0.5], 1).run()
    shutil.rmtree(tmp_path / "model_best")
    process = Process(tmp_path, [0.5, 0.25], 1)
    process.run()
    assert held(tmp_path) == (2, 0.25)
    assert process.notes == [
        f"the best step so far, 1, is not in {tmp_path}/model_best: the best of the coming steps will be"
    ]


@pytest.mark.parametrize("setting", ["trainer.best_metric=null", "trainer.export_hf=false", "trainer.val_only=true"])
def test_without_a_wish_for_it_there_is_no_best_folder_and_one_that_is_there_is_left_alone(tmp_path, setting):
    (tmp_path / "model_best").mkdir()
    config = compose([f"trainer.default_local_dir={tmp_path}", setting])
    keeper = BestModel(config, lambda folder: pytest.fail("exported"), None, pytest.fail)
    keeper.offer(1, {"val/avg@4": 1.0})
    assert keeper.best is None and (tmp_path / "model_best").exists()


def test_another_metric_makes_another_best(tmp_path):
    config = compose([f"trainer.default_local_dir={tmp_path}", "trainer.best_metric=val/reward"])
    keeper = BestModel(
        config, lambda folder: Path(folder).mkdir(), {"metric": "val/avg@4", "step": 9, "value": 1.0}, print
    )
    for step, reward in enumerate([0.2, 0.3, 0.3], 1):
        keeper.offer(step, {"val/avg@4": 1.0 - reward, "val/reward": reward})
    assert keeper.best == {"metric": "val/reward", "step": 2, "value": 0.3}


def test_a_metric_that_no_validation_measures_is_named_once(tmp_path):
    config = compose([f"trainer.default_local_dir={tmp_path}", "trainer.best_metric=val/math/avg@n"])
    notes: list[str] = []
    keeper = BestModel(config, lambda folder: None, None, notes.append)
    for step in (1, 2):
        keeper.offer(step, {"val/avg@4": 1.0, "val/reward": 1.0})
    assert notes == ["warning: trainer.best_metric: val/math/avg@4 was not measured (measured: val/avg@4)"]


def test_a_checkpoint_of_before_there_was_a_best_step_is_read(tmp_path):
    (tmp_path / checkpoint.MARKER).touch()
    (tmp_path / checkpoint.STATE).write_text('{"step": 3, "policy_version": 3, "samples": 8}')
    assert checkpoint.read_state(tmp_path).best is None
