from __future__ import annotations

import io
import json
import re
from html.parser import HTMLParser

import pytest

from sdpo.errors import DataError
from sdpo.records import Reprompt
from sdpo.reporting.report import write_report
from sdpo.reporting.report_samples import MAX_TEXT, pairs, pick_samples, shown
from sdpo.tracking import RunLog
from sdpo.tracking.console import RunConsole

VOID = {"meta", "line", "circle", "rect", "path", "i/", "br"}


class Balance(HTMLParser):
    """Fails on an element that is not closed, and collects what a page would fetch."""

    def __init__(self) -> None:
        super().__init__()
        self.open: list[str] = []
        self.fetched: list[str] = []
        self.scripts = 0

    def handle_starttag(self, tag, attrs):
        self.scripts += tag == "script"
        self.fetched += [value for name, value in attrs if name in ("src", "href")]
        if tag != "meta":
            self.open.append(tag)

    def handle_startendtag(self, tag, attrs):
        pass

    def handle_endtag(self, tag):
        assert self.open.pop() == tag


def parse(path) -> Balance:
    balance = Balance()
    balance.feed(path.read_text(encoding="utf-8"))
    balance.close()
    assert balance.open == []
    return balance


@pytest.fixture
def run(config, tmp_path, make_group):
    """A run of `steps` steps; `closed=False` leaves it as a killed process does."""

    def make(steps: int, closed: bool = True, text: str = "return x", feedback: str = "no"):
        run_dir = tmp_path / "run"
        log = RunLog(run_dir, config, console=RunConsole(io.StringIO()), write_report=write_report)
        log.begin(steps)
        log.samples(0, [make_group("v1", [0.0, 1.0], text, feedback)], phase="val_before")
        log.metrics(0, {"val/avg@1": 0.5})
        for step in range(1, steps + 1):
            reprompts = {("t1", 0): Reprompt([1], f"TEACHER {text}", 1, True)}
            log.samples(step, [make_group("t1", [0.0, 1.0], text, feedback)], reprompts)
            log.metrics(step, {"train/accuracy": 0.5, "actor/grad_norm": float("nan"), "timing/rollout_s": 1.0})
        if closed:
            log.samples(steps, [make_group("v1", [1.0, 1.0], text, feedback)], phase="val_after")
            log.close()
        return run_dir

    return make


def test_one_step_is_enough_for_a_report(run):
    path = write_report(run(1))
    page = path.read_text(encoding="utf-8")
    parse(path)
    for part in ("Accuracy by step", "Accuracy by wall clock", "1 learned, 1 kept", "TEACHER return x", "finished"):
        assert part in page


def test_a_run_that_was_broken_off_in_a_line_gets_a_report_that_says_so(run):
    run_dir = run(3, closed=False)
    with (run_dir / "metrics.jsonl").open("a") as file:
        file.write('{"step": 4, "train/acc')
    page = write_report(run_dir).read_text(encoding="utf-8")
    assert "running or broken off" in page
    assert "No held-out problem was logged at both ends" in page


def test_metrics_alone_are_enough(tmp_path):
    (tmp_path / "metrics.jsonl").write_text('{"step": 1, "train/accuracy": 0.5}\n')
    assert parse(write_report(tmp_path)).open == []


def test_an_empty_metrics_file_gives_a_page_without_curves(tmp_path):
    (tmp_path / "metrics.jsonl").write_text("")
    assert "<svg" not in write_report(tmp_path).read_text()


def test_a_folder_that_is_no_run_is_an_error(tmp_path):
    with pytest.raises(DataError, match="metrics.jsonl"):
        write_report(tmp_path)


@pytest.mark.parametrize(
    "attack", ["<script>alert(1)</script>", "</pre></details><img src=x onerror=alert(1)>", "\x00\x1b[2J"]
)
def test_text_of_models_and_graders_is_shown_and_never_run(run, attack):
    path = write_report(run(2, text=attack, feedback=attack))
    balance = parse(path)
    assert balance.scripts == 1
    assert balance.fetched == []
    page = path.read_text(encoding="utf-8")
    assert "\x00" not in page
    assert "\x1b" not in page


def test_no_control_sign_reaches_the_page_wherever_it_came_from(config, tmp_path, make_group):
    signs = "\x00\x07\x1b[2J\x7f\x9b\u202e"
    config.trainer.experiment_name = f"name {signs}"
    log = RunLog(tmp_path, config, console=RunConsole(io.StringIO()), write_report=write_report)
    log.begin(1)
    group = make_group(f"uid {signs}", [0.0, 1.0], f"response {signs}", f"feedback {signs}")
    reprompt = {(group.prompt.uid, 0): Reprompt([1], f"teacher {signs}", 1, True)}
    log.samples(1, [group], reprompt)
    log.metrics(1, {f"odd/{signs}": 1.0})
    log.close()
    page = (tmp_path / "report.html").read_text(encoding="utf-8")
    assert [c for c in page if (ord(c) < 32 and c not in "\t\n") or 0x7F <= ord(c) < 0xA0 or c == "\u202e"] == []
    for place in ("uid", "response", "feedback", "teacher"):
        assert rf"{place} \x00\x07\x1b[2J\x7f\x9b\u202e" in page


def test_the_page_fetches_nothing_and_allows_only_its_own_script(run):
    path = write_report(run(1))
    page = path.read_text(encoding="utf-8")
    assert parse(path).fetched == []
    assert not re.search(r"url\(|@import|https?://(?!www\.w3\.org/2000/svg)", page)
    assert "default-src &#x27;none&#x27;" in page


def test_a_lone_surrogate_in_a_response_does_not_break_the_page(run):
    assert parse(write_report(run(1, text="half \ud83d emoji"))).open == []


def test_very_long_texts_are_cut_and_the_cut_is_said():
    text = shown("x" * (MAX_TEXT + 1234))
    assert "1,234 more characters" in text
    assert len(text) < MAX_TEXT + 100


def test_before_and_after_are_the_same_problem_and_response_number(tmp_path):
    lines = [
        {"step": 0, "phase": "val_before", "uid": "a", "index": 0},
        {"step": 0, "phase": "val_before", "uid": "b", "index": 0},
        {"step": 5, "phase": "val", "uid": "b", "index": 0},
        {"step": 9, "phase": "val_after", "uid": "c", "index": 0},
        {"step": 9, "phase": "val_after", "uid": "b", "index": 0},
    ]
    (tmp_path / "samples.jsonl").write_text("".join(json.dumps(line) + "\n" for line in lines))
    ((first, last),) = pairs(pick_samples(tmp_path / "samples.jsonl", 9))
    assert (first["uid"], first["step"], last["uid"], last["step"]) == ("b", 0, "b", 9)


def test_of_a_long_run_the_first_middle_and_last_training_steps_are_shown(tmp_path):
    lines = [{"step": step, "phase": "train", "uid": "a", "index": i} for step in range(1, 101) for i in range(2)]
    (tmp_path / "samples.jsonl").write_text("".join(json.dumps(line) + "\n" for line in lines))
    picked = pick_samples(tmp_path / "samples.jsonl", 100)
    assert {step: len(records) for step, records in picked.train.items()} == {1: 2, 50: 2, 100: 2}
