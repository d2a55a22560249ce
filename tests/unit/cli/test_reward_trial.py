"""A reward function of one's own is tried before a run: what is wrong with it is named, with the line that is."""

from __future__ import annotations

import asyncio
import json
from pathlib import Path
from typing import Any

import pytest

from sdpo.cli import data, grade
from sdpo.cli.data_check import inspect
from sdpo.cli.data_report import print_inspection
from sdpo.config.compose import compose
from sdpo.config.schema import Config
from sdpo.errors import ConfigError
from sdpo.records import Prompt
from sdpo.workers.grader import ThreadGraderPool

VERL = "def score(data_source, solution_str, ground_truth, extra_info):"
ROW = {
    "data_source": "lengths",
    "prompt": [{"role": "user", "content": "How long?"}],
    "reward_model": {"ground_truth": "4"},
    "extra_info": {"parts": ["1", "3"], "level": 2},
}

# name -> (code, the line that is at fault, what is said of it)
FAULTY: dict[str, tuple[str, str, str]] = {
    "raises": (f"{VERL}\n    whole = 0\n    return 1 / whole\n", "return 1 / whole", "ZeroDivisionError"),
    "raises deep inside": (
        f"{VERL}\n    return part(extra_info)\ndef part(info):\n    return info['missing']\n",
        "return info['missing']", "KeyError: 'missing'",
    ),
    "forgets to return": (f"{VERL}\n    reward = 1.0\n", "reward = 1.0", "returned None"),
    "returns None on some": (
        f"{VERL}\n    if solution_str == '':\n        return\n    return 1.0\n", "return`", "returned None",
    ),
    "returns NaN": (f"{VERL}\n    return float('nan')\n", "return float('nan')", "returned nan"),
    "returns text": (f"{VERL}\n    return '1.0'\n", "return '1.0'", "returned '1.0'"),
    "returns a dict without score": (
        f"{VERL}\n    return {{'acc': 1.0}}\n", "return {'acc': 1.0}", "allowed: a finite number",
    ),
    "returns feedback that is no text": (f"{VERL}\n    return 0.0, 7\n", "return 0.0, 7", "feedback is int"),
    "returns a list": (f"{VERL}\n    return [1.0]\n", "return [1.0]", "returned [1.0]"),
    "yields": (f"{VERL}\n    yield 1.0\n", VERL, "it yields"),
    "exits": (f"import sys\n{VERL}\n    sys.exit(0)\n", "sys.exit(0)", "it calls sys.exit(0)"),
    "exits at its head": (f"import sys\nsys.exit(0)\n{VERL}\n    return 1.0\n", "sys.exit(0)", "it calls sys.exit(0)"),
    "stops the keyboard's way": (
        f"{VERL}\n    raise KeyboardInterrupt\n", "raise KeyboardInterrupt", "`: KeyboardInterrupt",
    ),
    "asks for more": (
        "def score(solution_str, ground_truth, tokenizer):\n    return 1.0\n",
        "def score(solution_str, ground_truth, tokenizer):", "takes tokenizer too",
    ),
    "takes something else": ("def score(a, b):\n    return 1.0\n", "def score(a, b):", "takes a, b; allowed: verl's"),
    "takes nothing": ("def score():\n    return 1.0\n", "def score():", "takes nothing"),
    "imports what is not there": (
        f"import nowhere_at_all\n{VERL}\n    return 1\n", "import nowhere_at_all", "No module",
    ),
    "is no Python": (f"{VERL}\n    return 1 +\n", "return 1 +", "SyntaxError"),
    "is a class": (
        "class score:\n    def __init__(self, **_): self.reward = 1.0\n", "score is a class", "name a function",
    ),
    "is not there": ("def compute_score(solution_str):\n    return 1.0\n", "got 'score'", "allowed: compute_score"),
    "hangs": (f"{VERL}\n    while True: pass\n", "while True: pass", "still here after 0.3 s"),
    "waits": (f"import time\n{VERL}\n    time.sleep(50)\n", "time.sleep(50)", "still here after 0.3 s"),
    "awaits for ever": (
        f"import asyncio as a\nasync {VERL}\n    await a.sleep(50)\n", "await a.sleep(50)", "still here after 0.3 s",
    ),
    "raises when awaited": (f"async {VERL}\n    return {{}}['a']\n", "return {}['a']", "KeyError: 'a'"),
    "exits when awaited": (f"import sys\nasync {VERL}\n    sys.exit(0)\n", "sys.exit(0)", "it calls sys.exit(0)"),
    "is late by itself": (f"async {VERL}\n    raise TimeoutError('x')\n", "raise TimeoutError('x')", "TimeoutError: x"),
    "changes its row": (
        f"{VERL}\n    extra_info['parts'].pop()\n    return 1.0\n", "extra_info['parts'].pop()", "changes its argument",
    ),
    "uses a signal": (
        f"import signal\n{VERL}\n    signal.signal(signal.SIGALRM, print)\n    return 1.0\n",
        "signal.signal(signal.SIGALRM, print)", "graders run in threads",
    ),
    "TRL: too many rewards": (
        "def score(completions, **_):\n    return [0.0 for _ in completions] + [1.0]\n",
        "return [0.0 for _ in completions] + [1.0]", "returned 2 rewards",
    ),
    "TRL: one number": ("def score(completions, **_):\n    return 0.5\n", "return 0.5", "returned 0.5 for a list"),
    "TRL: a column that is not there": (
        "def score(completions, answer, **_):\n    return [1.0]\n",
        "def score(completions, answer, **_):", "takes answer, and the row has data_source, ground_truth, level, parts",
    ),
    "TRL: None": ("def score(completions, **_):\n    return [None]\n", "return [None]", "returned None"),
}  # fmt: skip
AT_THE_START = {
    "exits at its head", "asks for more", "takes something else", "takes nothing", "imports what is not there",
    "is no Python", "is a class", "is not there", "TRL: a column that is not there",
}  # fmt: skip
ENDLESS = {"hangs", "waits", "awaits for ever"}
HARMLESS_IN_A_RUN = {"changes its row"}  # it gets a copy


@pytest.fixture
def settings(tmp_path: Path):
    """Writes the function and a row; returns the settings that name it."""

    def write(code: str) -> list[str]:
        (tmp_path / "reward.py").write_text(code)
        (tmp_path / "rows.jsonl").write_text(json.dumps(ROW) + "\n")
        return [f"custom_reward_function.path={tmp_path}/reward.py", "custom_reward_function.name=score"]

    return write


@pytest.fixture
def config(settings, tmp_path: Path):
    """Likewise, without the command line, which takes longer than all the rest."""

    def made(name: str) -> Config:
        settings(FAULTY[name][0] if name in FAULTY else SOUND[name])
        found = Config()
        found.custom_reward_function.path, found.custom_reward_function.name = f"{tmp_path}/reward.py", "score"
        found.custom_reward_function.max_seconds = 0.3 if name in ENDLESS else 60.0
        return found

    return made


def number_of(code: str, line: str) -> str:
    """The line number in `code`, as messages write it."""
    return next((f"reward.py line {n}: `" for n, text in enumerate(code.split("\n"), 1) if text.strip() == line), "")


@pytest.mark.parametrize("name", FAULTY)
def test_check_names_a_faulty_reward_function_with_its_line(name: str, config, tmp_path: Path, capsys) -> None:
    code, line, said = FAULTY[name]
    try:
        settings = config(name)
        found = inspect(str(tmp_path / "rows.jsonl"), settings, grade=True)
    except ConfigError as error:  # exit code 2
        assert name in AT_THE_START
        told = str(error)
    else:
        assert found.faulty and name not in AT_THE_START  # exit code 1
        print_inspection("rows.jsonl", found, settings)
        (told,) = [text for text in capsys.readouterr().out.splitlines() if said in text]
    assert said in told and line in told and number_of(code, line) in told and "\n" not in told


@pytest.mark.parametrize("name", [name for name in FAULTY if name not in AT_THE_START | HARMLESS_IN_A_RUN])
def test_a_run_names_it_as_well(name: str, config) -> None:
    code, line, said = FAULTY[name]
    prompt = Prompt("p", tuple(ROW["prompt"]), "lengths", "4", extra_info=dict(ROW["extra_info"]))
    pool = ThreadGraderPool(config(name))
    made = asyncio.run(pool.grade(prompt, "", False))
    pool.close()
    assert made.status == "infra_error" and said in made.flags[0]
    assert line in made.flags[0] and number_of(code, line) in made.flags[0]


@pytest.mark.parametrize("where", ["", "    "])
def test_a_function_that_leaves_the_process_is_named_and_the_command_goes_on(where, settings, tmp_path, capsys) -> None:
    overrides = settings(f"import os\n{VERL}\n    os._exit(0)\n" if where else f"import os\nos._exit(0)\n{VERL} 1\n")
    assert data.main(["check", str(tmp_path / "rows.jsonl"), "--grade", *overrides]) == (1 if where else 2)
    assert f"line {3 if where else 2}: `os._exit(0)`: it calls sys.exit(0)" in "".join(capsys.readouterr())


@pytest.mark.parametrize("name", ["raises", "is no Python", "sound"])
def test_the_commands_end_in_another_code_than_0_and_without_a_traceback(name, settings, tmp_path, capfd) -> None:
    code, _, said = FAULTY.get(name, (SOUND["verl"], "", ""))
    overrides = settings(code)
    (tmp_path / "answers.jsonl").write_text("".join(json.dumps(ROW | {"response": ""}) + "\n" for _ in range(5)))
    codes = data.main(["check", str(tmp_path / "rows.jsonl"), "--grade", *overrides])
    assert codes == {"raises": 1, "is no Python": 2, "sound": 0}[name]
    capfd.readouterr()
    codes = grade.main([str(tmp_path / "answers.jsonl"), *overrides])
    out, err = capfd.readouterr()
    assert codes == {"raises": 6, "is no Python": 2, "sound": 0}[name]
    assert "Traceback" not in err and said in err
    if name == "raises":  # once, and once more with the count
        assert err.count(said) == 2 and "as line 1: 4 more (2, 3, 4, 5): " in err and len(out.splitlines()) == 5


SOUND = {
    "verl": f"{VERL}\n    return float(solution_str == ground_truth)\n",
    "verl, part of it": "def score(solution_str, ground_truth):\n    return float(solution_str == ground_truth)\n",
    "verl, whatever comes": "def score(**given):\n    return float(given['solution_str'] == given['ground_truth'])\n",
    "verl, lists": (
        "def score(data_sources, solution_strs, ground_truths, extra_infos):\n"
        "    return [float(one == other) for one, other in zip(solution_strs, ground_truths)]\n"
    ),
    "verl, async": f"async {VERL}\n    return float(solution_str == ground_truth)\n",
    "TRL": (
        "def score(prompts, completions, ground_truth, level, **kwargs):\n    assert level == [2], level\n"
        "    assert prompts[0][-1]['content'] == 'How long?'\n"
        "    return [float(c[0]['content'] == t) for c, t in zip(completions, ground_truth)]\n"
    ),
    "TRL, async": (
        "import asyncio\nasync def score(completions, ground_truth, **kwargs):\n    await asyncio.sleep(0)\n"
        "    return [float(c[0]['content'] == t) for c, t in zip(completions, ground_truth)]\n"
    ),
    "an object": (
        "class Scorer:\n    def __call__(self, solution_str, ground_truth, **_):\n"
        "        return float(solution_str == ground_truth)\nscore = Scorer()\n"
    ),
    "a method": (
        "class Scorer:\n    def judge(self, solution_str, ground_truth, **_):\n"
        "        return float(solution_str == ground_truth)\nscore = Scorer().judge\n"
    ),
    "an application in part": (
        "from functools import partial\ndef one(solution_str, ground_truth, right):\n"
        "    return right if solution_str == ground_truth else 0.0\nscore = partial(one, right=1.0)\n"
    ),
    "decorated": (
        "import functools\ndef logged(f):\n    @functools.wraps(f)\n    def inner(*a, **k): return f(*a, **k)\n"
        f"    return inner\n@logged\n{VERL}\n    return float(solution_str == ground_truth)\n"
    ),
    "changes nothing but its copy": (
        f"{VERL}\n    mine = dict(extra_info, level=3)\n    return float(solution_str == ground_truth)\n"
    ),
}


@pytest.mark.parametrize("name", SOUND)
def test_sound_functions_of_every_signature_pass_and_tell_right_from_wrong(name, config, tmp_path, capsys) -> None:
    settings = config(name)
    found = inspect(str(tmp_path / "rows.jsonl"), settings, grade=True)
    print_inspection("rows.jsonl", found, settings)
    text = capsys.readouterr().out
    assert not found.faulty
    assert "4 answers" in text and "rewards: 0 (3), 1 (1)" in text and "no unexpected grades" in text


def test_a_row_of_plain_text_is_plain_text_for_a_function_of_trls_signature(settings, tmp_path, capsys) -> None:
    code = (
        "def score(prompts, completions, **_):\n    return [float(prompts[0] == 'How long?') + len(completions[0])]\n"
    )
    overrides = settings(code)
    (tmp_path / "rows.jsonl").write_text(json.dumps({**ROW, "prompt": "How long?", "response": "12"}))
    assert grade.main([str(tmp_path / "rows.jsonl"), *overrides]) == 0
    assert json.loads(capsys.readouterr().out)["reward"] == 3.0


def test_a_function_that_never_tells_right_from_wrong_is_noted(settings, tmp_path, capsys) -> None:
    assert data.main(["check", str(tmp_path / "rows.jsonl"), "--grade", *settings(f"{VERL}\n    return 0.0\n")]) == 0
    assert "no row's own answer got a higher reward than a wrong one" in capsys.readouterr().out


def test_a_function_that_a_step_would_wait_for_is_too_slow(settings, tmp_path, capsys) -> None:
    overrides = [
        *settings(f"import time\n{VERL}\n    time.sleep(0.02)\n    return 1.0\n"),
        "data.train_batch_size=4096",
    ]
    assert data.main(["check", str(tmp_path / "rows.jsonl"), "--grade", *overrides]) == 1
    (told,) = [line for line in capsys.readouterr().out.splitlines() if "s an answer" in line]
    assert "the 32768 of a step take" in told and "reward.py" in told


def test_what_a_function_prints_is_no_result_and_its_line_is_named(settings, tmp_path, capsys) -> None:
    overrides = settings(f"print('at the head')\n{VERL}\n    print('inside')\n    return 1.0\n")
    assert data.main(["check", str(tmp_path / "rows.jsonl"), "--grade", *overrides]) == 0
    out, err = capsys.readouterr()
    assert "reward.py line 3: `print('inside')`: prints (4 times)" in out and err.count("inside") == 4
    (tmp_path / "answers.jsonl").write_text(json.dumps(ROW | {"response": "4"}) + "\n")
    assert grade.main([str(tmp_path / "answers.jsonl"), *overrides]) == 0
    out, err = capsys.readouterr()
    assert json.loads(out)["reward"] == 1.0 and "inside" in err


def test_one_reason_for_many_rows_is_printed_once_with_its_count(settings, tmp_path, capsys) -> None:
    overrides = settings(FAULTY["raises"][0])
    (tmp_path / "rows.jsonl").write_text("".join(json.dumps({**ROW, "prompt": f"{n}?"}) + "\n" for n in range(40)))
    assert data.main(["check", str(tmp_path / "rows.jsonl"), "--grade", *overrides]) == 1
    (told,) = [line for line in capsys.readouterr().out.splitlines() if "ZeroDivisionError" in line]
    assert told.startswith("  row 1 and 39 more (2, 3, 4, ...): reward function: ")


def test_modules_beside_the_file_are_imported_at_its_head_and_later(settings, tmp_path, capsys) -> None:
    (tmp_path / "beside_the_reward.py").write_text("RIGHT = 1.0\n")
    (tmp_path / "later_beside_the_reward.py").write_text("def half():\n    return 1 / len([])\n")
    code = (
        f"from beside_the_reward import RIGHT\n{VERL}\n    import later_beside_the_reward as later\n"
        "    return RIGHT if solution_str == ground_truth else later.half()\n"
    )
    (tmp_path / "x").mkdir()
    assert data.main(["check", str(tmp_path / "rows.jsonl"), "--grade", *settings(code)]) == 1
    out = capsys.readouterr().out
    assert (
        "later_beside_the_reward.py line 2: `return 1 / len([])`: ZeroDivisionError" in out and "rewards: 1 (1)" in out
    )


def test_several_functions_are_added_up_by_weight_and_each_is_a_metric(settings, tmp_path, capsys) -> None:
    code = (
        "def right(solution_str, ground_truth):\n    return solution_str.strip() == ground_truth, 'Count again.'\n"
        "def short(completions, **_):\n    return [1.0 if len(c[0]['content']) < 3 else 0.0 for c in completions]\n"
        "def other(completions, **_):\n    return [None for c in completions]\n"
    )
    overrides = [*settings(code), "custom_reward_function.weights={right: 1, short: 0.5, other: 3}"]
    (tmp_path / "answers.jsonl").write_text(
        "".join(json.dumps(ROW | {"response": text}) + "\n" for text in ("4", "4    ", "5"))
    )
    assert grade.main([str(tmp_path / "answers.jsonl"), *overrides]) == 0
    made = [json.loads(line) for line in capsys.readouterr().out.splitlines()]
    assert [line["reward"] for line in made] == [1.5, 1.0, 0.5]
    assert made[2]["extra"] == {"right": 0.0, "short": 1.0} and made[2]["feedback"] == "Count again."


def test_a_function_stands_beside_the_built_in_graders(settings, tmp_path, capsys) -> None:
    overrides = [*settings(f"{VERL}\n    return 0.25\n"), "custom_reward_function.data_sources=[length*]"]
    rows: list[dict[str, Any]] = [ROW, {**ROW, "data_source": "me/Lengths"}, {**ROW, "data_source": "gsm8k"}]
    (tmp_path / "a.jsonl").write_text("".join(json.dumps(row | {"response": "\\boxed{4}"}) + "\n" for row in rows))
    assert grade.main([str(tmp_path / "a.jsonl"), *overrides]) == 0
    assert [json.loads(line)["reward"] for line in capsys.readouterr().out.splitlines()] == [0.25, 0.25, 1.0]
    assert data.main(["check", str(tmp_path / "a.jsonl"), "--grade", *overrides]) == 0
    assert "graded: 1 right answers with reward 1, 1 wrong ones" in capsys.readouterr().out


def test_further_arguments_come_from_the_settings(settings, tmp_path, capsys) -> None:
    code = "def score(solution_str, ground_truth, right):\n    return right if solution_str == ground_truth else 0.0\n"
    overrides = [*settings(code), "custom_reward_function.reward_kwargs={right: 0.75}"]
    assert data.main(["check", str(tmp_path / "rows.jsonl"), "--grade", *overrides]) == 0
    assert "0.75 (1)" in capsys.readouterr().out


def test_what_else_a_function_says_is_a_metric_where_it_is_a_number_and_a_field_of_the_sample(
    settings, tmp_path
) -> None:
    from sdpo.records import Group, Sample
    from sdpo.tracking.run_log import sample_record
    from sdpo.training.metrics import train_metrics

    code = f"{VERL}\n    return {{'score': 1.0, 'acc': True, 'pred': solution_str, 'parts': [1], 'nothing': None}}\n"
    prompt = Prompt("p", tuple(ROW["prompt"]), "lengths", "4")
    pool = ThreadGraderPool(compose(settings(code)))
    made = asyncio.run(pool.grade(prompt, "four", False))
    pool.close()
    assert made.extra == {"acc": 1.0, "pred": "four", "parts": "[1]"}
    sample = Sample("p", 0, [1], [2], "four", "stop", 0, grade=made)
    metrics = train_metrics([Group(prompt, [sample])], 1.0)
    assert {name for name in metrics if "/extra/" in name} == {"train/extra/acc"}
    assert sample_record(1, "train", prompt, sample, None)["extra"]["pred"] == "four"
