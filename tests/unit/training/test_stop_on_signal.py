"""Ctrl-C and SIGTERM while a run trains: what is kept, and what is said of it. The real loop, log and checkpoints, with
workers that answer at once; `tests/equivalence/test_resume.py` does it to whole processes."""

from __future__ import annotations

import asyncio
import json
import signal
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from sdpo import interrupt
from sdpo.config.compose import compose
from sdpo.errors import CheckpointError, OutputLost
from sdpo.tracking.console import RunConsole
from sdpo.training import checkpoint, run_folder
from tests.unit.training import test_loop


@pytest.fixture(autouse=True)
def handlers() -> Iterator[None]:
    before = {number: signal.getsignal(number) for number in (signal.SIGINT, signal.SIGTERM)}
    interrupt.raise_on_signals()
    yield
    for number, handler in before.items():
        signal.signal(number, handler)


class Workers(test_loop.Workers):
    """Sends the signal in step 3, in `phase`."""

    def __init__(self, phase: str, number: int = signal.SIGINT) -> None:
        super().__init__(lambda step, held_out: [1.0] * max(1, self.updates) + [0.0] * (4 - max(1, self.updates)))
        self.phase, self.number, self.updates, self.disk_full = phase, number, 0, False

    def _reached(self, phase: str) -> None:
        if phase == self.phase and self.updates == (2 if phase == "rollout" else 3):
            signal.raise_signal(self.number)

    def submit(self, jobs, plan):
        self._reached("rollout" if plan.log_probs else "validate")
        return super().submit(jobs, plan)

    def update(self, batch):
        self.updates += 1
        report = super().update(batch)
        self._reached("update")
        return report

    def save(self, folder: str) -> None:
        self._reached("save")
        if self.disk_full:
            raise CheckpointError("no room")
        Path(folder).mkdir()

    def export(self, folder: str) -> None:
        super().export(folder)
        self._reached("export")


def _stopped(folder: Path, workers: Workers, *overrides: str) -> KeyboardInterrupt:
    with pytest.raises(KeyboardInterrupt) as stopped:
        test_loop.run(folder, workers, "trainer.test_freq=1", *overrides)
    return stopped.value


def _kept(folder: Path) -> list[tuple[int, bool]]:
    """Steps with a checkpoint, and whether their validation is still to come."""
    states = map(checkpoint.read_state, checkpoint.complete(folder / "checkpoints"))
    return [(state.step, state.unvalidated) for state in states]


def _logged(folder: Path) -> list[tuple[int, bool]]:
    return [(line["step"], "val/avg@4" in line) for line in test_loop.lines(folder) if line["step"] > 0]


@pytest.mark.parametrize(
    ("phase", "kept"),
    [("rollout", (2, False)), ("update", (3, True)), ("validate", (3, True)), ("export", (3, False))],
)
def test_the_last_whole_step_is_kept(phase, kept, tmp_path):
    """An update is brought to its end. A validation is not: it is made up for when the run goes on."""
    _stopped(tmp_path, Workers(phase), "trainer.save_freq=-1")
    assert _kept(tmp_path) == [kept]
    assert _logged(tmp_path) == [(step, step != 3 or not kept[1]) for step in range(1, kept[0] + 1)]
    assert json.loads((tmp_path / "run.json").read_text())["status"] == "interrupted"


def test_a_signal_while_a_checkpoint_is_written_lets_it_be_written(tmp_path):
    _stopped(tmp_path, Workers("save"), "trainer.save_freq=1")
    assert _kept(tmp_path) == [(2, False), (3, False)]  # the default keeps two


def test_sigterm_is_held_back_as_it_is(tmp_path):
    assert isinstance(
        _stopped(tmp_path, Workers("update", signal.SIGTERM), "trainer.save_freq=-1"), interrupt.Terminated
    )


def test_before_the_first_step_there_is_nothing_to_keep(tmp_path):
    workers = Workers("validate")
    workers.updates = 3
    _stopped(tmp_path, workers, "trainer.save_freq=-1")
    assert _kept(tmp_path) == []


def test_a_run_that_keeps_no_checkpoints_stops_at_once(tmp_path):
    _stopped(tmp_path, Workers("update"), "trainer.save_freq=0")
    assert _kept(tmp_path) == [] and _logged(tmp_path) == [(1, True), (2, True)]


def test_a_checkpoint_that_cannot_be_written_hides_no_signal(tmp_path):
    workers = Workers("rollout")
    workers.disk_full = True
    _stopped(tmp_path, workers, "trainer.save_freq=-1")
    assert _kept(tmp_path) == []
    assert "no room" in json.loads((tmp_path / "run.json").read_text())["warnings"][0]


def test_a_console_that_takes_nothing_more_stops_the_run_like_ctrl_c(tmp_path, monkeypatch):
    def step(console: RunConsole, number: int, *rest: object) -> None:
        if number == 3:
            raise OutputLost("standard output: its reader is gone")

    monkeypatch.setattr(RunConsole, "step", step)
    with pytest.raises(OutputLost):
        test_loop.run(tmp_path, Workers("never"), "trainer.save_freq=-1")
    assert _kept(tmp_path) == [(3, False)] and len(_logged(tmp_path)) == 3


def test_a_second_signal_ends_at_once(monkeypatch, capsys):
    monkeypatch.setattr(interrupt, "PATIENCE_S", 0.0)
    monkeypatch.setattr(interrupt.os, "_exit", lambda code: pytest.fail(f"ended with {code}"))
    with pytest.raises(pytest.fail.Exception, match="ended with 130"), interrupt.held(print):
        signal.raise_signal(signal.SIGINT)
        time.sleep(0.01)
        signal.raise_signal(signal.SIGINT)
    assert "once more ends at once" in capsys.readouterr().out


@pytest.mark.parametrize(
    ("kept", "done", "overrides", "said"),
    [
        (3, 3, (), "the same command goes on after step 3"),
        (0, 0, (), "the same command starts from the beginning"),
        (2, 3, (), "step 3 not kept; the same command goes on after step 2"),
        (
            0,
            4,
            ("trainer.save_freq=0",),
            "steps 1 to 4 not kept (trainer.save_freq=0); the same command starts from the",
        ),
        (3, 3, ("trainer.resume_mode=disable",), "with trainer.resume_mode=auto the same command goes on after step 3"),
        (0, 0, ("trainer.val_only=true",), "the same command validates again"),
    ],
)
def test_what_the_same_command_will_do_is_said_as_it_is(kept, done, overrides, said, tmp_path):
    if kept:
        state = checkpoint.TrainerState(kept, kept, 8)
        checkpoint.save(tmp_path / "checkpoints", state, lambda folder: Path(folder).mkdir(), None)
    config = compose([f"trainer.default_local_dir={tmp_path}", *overrides])
    assert run_folder.way_on(config, done).startswith(said)


def test_a_signal_that_is_held_passes_over_the_event_loops_that_run_meanwhile() -> None:
    """An engine takes the new weights in its event loop, inside a step that is brought to its end."""
    done: list[str] = []

    async def takes_weights() -> None:
        signal.raise_signal(signal.SIGTERM)
        await asyncio.sleep(0)
        done.append("weights")

    with asyncio.Runner() as runner, pytest.raises(interrupt.Terminated), interrupt.held(done.append):
        with interrupt.raised_in(runner.get_loop()):
            runner.run(takes_weights())
        done.append("step")
    assert done == ["terminated: this step is brought to its end first; once more ends at once", "weights", "step"]
