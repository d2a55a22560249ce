from __future__ import annotations

import io

import pytest

from sdpo.tracking.console import RunConsole
from sdpo.tracking.history import Summary, duration

METRICS = {
    "train/accuracy": 0.5,
    "sdpo/signal_frac": 0.72,
    "train/response_length": 18.2,
    "timing/step_s": 3.9,
    "timing/rollout_s": 1.6,
    "timing/update_s": 1.9,
    "timing/sync_s": 0.0,
}
SUMMARY = Summary(
    title="sdpo / run",
    algorithm="SDPO",
    model="builtin://tiny/hard",
    status="finished",
    validation_name="val/avg@4",
    before=0.094,
    after=0.812,
    after_step=40,
    best=0.828,
    best_step=30,
    steps=40,
    total_steps=40,
    samples=5120.0,
    elapsed_s=161.0,
    phase_seconds={"rollout": 66.0, "update": 33.0, "sync": 1.0},
)


class Terminal(io.StringIO):
    def isatty(self) -> bool:
        return True


class AsciiStream(io.TextIOWrapper):
    def __init__(self) -> None:
        super().__init__(io.BytesIO(), encoding="ascii", write_through=True)

    def text(self) -> str:
        return self.buffer.getvalue().decode("ascii")


def test_without_a_terminal_a_step_is_one_plain_line_with_the_numbers_a_person_watches():
    stream = io.StringIO()
    console = RunConsole(stream)
    console.begin(0, 40)
    console.phase("rollout")
    console.step(7, METRICS, None)
    console.stop()
    (line,) = stream.getvalue().splitlines()
    assert line == "step  7/40  train 0.500  signal 72%  length 18  3.9 s (rollout 1.6, update 1.9)"


def test_the_held_out_accuracy_stays_in_view_until_the_next_validation():
    stream = io.StringIO()
    console = RunConsole(stream)
    console.step(10, METRICS | {"val/avg@4": 0.625}, "val/avg@4")
    console.step(11, METRICS, None)
    assert all("held-out 0.625" in line for line in stream.getvalue().splitlines())


def test_grpo_shows_the_share_of_groups_with_an_advantage_as_its_signal():
    stream = io.StringIO()
    RunConsole(stream).step(1, {"grpo/zero_advantage_group_frac": 0.75}, None)
    assert "signal 25%" in stream.getvalue()


def test_numbers_that_are_missing_or_not_finite_are_left_out():
    stream = io.StringIO()
    RunConsole(stream).step(1, {"train/accuracy": None, "timing/step_s": None}, None)
    assert stream.getvalue().strip() == "step 1"


def test_a_terminal_gets_a_bar_and_keeps_one_line_per_validation():
    stream = Terminal()
    console = RunConsole(stream)
    console.begin(0, 40)
    for step in range(1, 11):
        console.step(step, METRICS | ({"val/avg@4": 0.5} if step == 10 else {}), "val/avg@4" if step == 10 else None)
    console.stop()
    shown = stream.getvalue()
    assert "\x1b[" in shown
    assert "10/40" in shown
    assert shown.count("step 10/40") == 1
    assert "step  9/40" not in shown


def test_the_final_table_holds_results_time_split_and_paths_on_one_line():
    stream = io.StringIO()
    path = "runs/" + "long/" * 30 + "report.html"
    places = {"run folder": "runs/sdpo/run", "report": path}
    RunConsole(stream).finish(SUMMARY, places, ["wandb        wandb sync somewhere"])
    shown = stream.getvalue()
    for part in ("0.094 → 0.812", "0.828 at step 30", "40 steps · 5,120 samples", "2 min 41 s", "66%", "wandb sync"):
        assert part in shown
    assert path in shown


def test_an_output_that_knows_only_ascii_gets_the_whole_table():
    stream = AsciiStream()
    console = RunConsole(stream)
    console.step(1, METRICS | {"val/avg@4": 0.5}, "val/avg@4")
    console.finish(SUMMARY, {"run folder": "runs/ü", "report": "runs/ü/report.html"}, [])
    assert "0.094 -> 0.812" in stream.text()


def test_square_brackets_in_a_note_are_text_and_no_markup():
    stream = io.StringIO()
    RunConsole(stream).note("step folder [/red] [bold]")
    assert stream.getvalue() == "step folder [/red] [bold]\n"


@pytest.mark.parametrize(
    ("seconds", "text"),
    [(4.24, "4.2 s"), (59.4, "59 s"), (125, "2 min 05 s"), (3599.8, "1 h 00 min"), (11_220, "3 h 07 min")],
)
def test_durations_read_like_people_say_them(seconds, text):
    assert duration(seconds) == text
