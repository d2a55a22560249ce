"""The live page in headless Chromium. Skipped where there is no browser."""

from __future__ import annotations

import json
import os
import threading
from pathlib import Path

import pytest

from sdpo.reporting.live.run import LiveRun
from sdpo.reporting.live.server import WatchServer

ATTACK = "<img src=x onerror=\"document.title='owned'\"><script>document.title='owned'</script>"


def _sample(step: int, index: int, **changes) -> dict:
    return {
        "step": step, "phase": "train", "uid": f"problem-{step}", "index": index, "data_source": "programs",
        "prompt": [{"role": "user", "content": f"Question {step}"}], "response": f"x = {index}\nreturn x",
        "response_tokens": 4, "finish_reason": "stop", "reward": float(index), "status": "ok" if index else "wrong",
        "feedback": "" if index else f"Wrong answer: {ATTACK}", "flags": [],
        "teacher_prompt": f"Question {step}\n\nCorrect solution: {ATTACK}", "demonstration_index": 1,
        "used_feedback": not index, "policy_version": step,
    } | changes  # fmt: skip


def _append(path: Path, *records: dict) -> None:
    with path.open("a") as file:
        file.write("".join(json.dumps(record) + "\n" for record in records))


@pytest.fixture
def run(tmp_path, tab):
    _append(
        tmp_path / "metrics.jsonl", *({"step": s, "train/accuracy": s / 10, "actor/entropy": 1.0} for s in (1, 2, 3))
    )
    _append(tmp_path / "samples.jsonl", *(_sample(step, index) for step in (1, 2, 3) for index in (0, 1)))
    numbers = {
        "tokens": ["x", " = 0", "\n", "return x"],
        "student": [-1, -2, -0.1, -3],
        "teacher": [-1, -5, -0.1, -0.5],
    }
    _append(tmp_path / "tokens.jsonl", {"policy_version": 3, "uid": "problem-3", "index": 0, **numbers})
    (tmp_path / "run.json").write_text('{"status": "running", "total_steps": 9}')
    with WatchServer(LiveRun(tmp_path), 0) as server:
        threading.Thread(target=server.serve_forever, daemon=True).start()
        yield tmp_path, server
        tab.open("about:blank")
        server.shutdown()


def test_the_curves_grow_with_the_run_and_show_values_under_the_pointer(run, tab):
    folder, server = run
    tab.open(server.url)
    tab.until("document.querySelectorAll('#charts svg').length >= 2")
    assert tab.js("document.getElementById('status').textContent") == "running"
    path = "document.querySelector('#charts svg .line').getAttribute('d')"
    before = tab.js(path)
    _append(folder / "metrics.jsonl", {"step": 4, "train/accuracy": 0.9})
    tab.until(f"{path} !== {json.dumps(before)}")
    tab.js(
        "(() => { const svg = document.querySelector('#charts svg'), box = svg.getBoundingClientRect();"
        "svg.dispatchEvent(new PointerEvent('pointermove', {clientX: box.right - 12, clientY: box.top + 40})); })()"
    )
    assert "step 4" in tab.js("document.querySelector('#charts .tip').textContent")
    tab.js("(() => { const f = document.getElementById('metric'); f.value = 'entropy'; f.oninput(); })()")
    tab.until("document.querySelectorAll('#metrics svg').length === 1")


def test_a_sample_shows_reward_feedback_and_teacher_prompt_side_by_side_with_coloured_tokens(run, tab, tmp_path):
    folder, server = run
    tab.open(server.url + "#samples")
    tab.until("document.querySelectorAll('#list li').length === 6")
    tab.js("(() => { const f = document.getElementById('filters'); f.elements.tokens.checked = true; f.oninput(); })()")
    tab.until("document.querySelectorAll('#list li').length === 1")
    tab.until("document.querySelectorAll('.tokens .token').length === 4")
    text = tab.js("document.getElementById('detail').innerText")
    for part in ("reward 0", "wrong", "Question 3", "Correct solution", "demonstration: response 1", ATTACK):
        assert part in text
    strengths = (
        "[...document.querySelectorAll('.token')].map(t => [t.className, t.style.getPropertyValue('--strength')])"
    )
    assert tab.js(strengths) == [
        ["token less", "0%"], ["token less", "100%"], ["token less", "0%"], ["token more", "100%"],
    ]  # fmt: skip
    assert "more tokens" not in text
    assert "advantage 2.500 nats" in tab.js("document.querySelectorAll('.token')[3].title")
    paint = "getComputedStyle(document.querySelectorAll('.token')[{}]).backgroundColor"
    assert tab.js(paint.format(1)) != tab.js(paint.format(3)) != tab.js(paint.format(0))
    left, right = (
        tab.js(f"document.querySelectorAll('#detail .body > div')[{i}].getBoundingClientRect().left") for i in (0, 1)
    )
    assert right > left + 200  # side by side
    if target := os.environ.get("SDPO_SCREENSHOTS"):
        tab.screenshot(Path(target) / "watch_test.png")


def test_a_response_longer_than_its_logged_tokens_is_shown_to_its_end(run, tab):
    folder, server = run
    long = _sample(4, 0, response_tokens=3004, response="x = 0\nreturn x" + " and so on" * 300 + " to the END")
    _append(folder / "samples.jsonl", long)
    tab.open(server.url + "#samples")
    tab.until(
        "(() => { document.getElementById('newest').click();"
        "const line = [...document.querySelectorAll('#list button')].find(b => b.textContent.includes('problem-4'));"
        "line?.click(); return Boolean(line); })()"
    )
    tab.until("document.querySelector('#detail .top')?.textContent.includes('problem-4')")
    assert tab.js("document.querySelectorAll('.tokens').length") == 0
    numbers = {"tokens": ["x", " = 0", "\n", "return x"], "student": [-1] * 4, "teacher": [-1] * 4}
    _append(folder / "tokens.jsonl", {"policy_version": 4, "uid": "problem-4", "index": 0, **numbers})
    tab.until("document.querySelectorAll('.tokens .token').length === 4")  # open since before the update
    text = tab.js("document.getElementById('detail').textContent")
    assert "3,000 more tokens" in text and "to the END" in text


def test_text_from_models_is_shown_and_never_run(run, tab):
    _, server = run
    tab.open(server.url + "#samples")
    tab.until("document.querySelectorAll('#detail pre').length >= 3")
    assert tab.js("document.title") != "owned" and tab.js("document.images.length") == 0
    assert tab.js("document.querySelectorAll('script').length") == 1


def test_the_page_says_how_the_run_ended(run, tab):
    folder, server = run
    tab.open(server.url)
    for status in ("running", "finished", "failed"):
        (folder / "new").write_text(json.dumps({"status": status}))
        os.replace(folder / "new", folder / "run.json")
        tab.until(f"document.getElementById('status').className === 'status {status}'")
        assert tab.js("document.getElementById('status').textContent") == status


def test_filters_and_search_narrow_the_list(run, tab):
    _, server = run
    tab.open(server.url + "#samples")
    tab.until("document.querySelectorAll('#list li').length === 6")
    tab.js(
        "(() => { const f = document.getElementById('filters'); f.elements.outcome.value = 'solved'; f.oninput(); })()"
    )
    tab.until("document.querySelectorAll('#list li').length === 3")
    tab.js(
        "(() => { const f = document.getElementById('filters'); f.elements.text.value = 'question 2'; f.oninput(); })()"
    )
    tab.until("document.querySelectorAll('#list li').length === 1")
    assert "problem-2" in tab.js("document.getElementById('list').innerText")
    tab.until("document.querySelector('#detail .top')?.innerText.includes('problem-2')")  # it is fetched


def test_a_resume_that_replaces_the_files_is_followed(run, tab):
    folder, server = run
    tab.open(server.url + "#samples")
    tab.until("document.querySelectorAll('#list li').length === 6")
    _append(folder / "new", _sample(1, 0), _sample(1, 1))
    os.replace(folder / "new", folder / "samples.jsonl")
    tab.until("document.querySelectorAll('#list li').length === 2")
    left = tab.js("document.getElementById('list').innerText")
    assert left.count("problem-1") == 2 and "problem-2" not in left
