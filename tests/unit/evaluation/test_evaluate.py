"""`sdpo.cli.evaluate` on real weights: a run's own number comes out again, and a wrong request is one line."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from sdpo.cli.evaluate import main
from sdpo.config import fields
from sdpo.config.compose import compose, of_run, to_yaml
from sdpo.errors import ConfigError
from sdpo.evaluation.subjects import find
from sdpo.main_sdpo import main as train
from sdpo.tracking.history import RunHistory

SETTINGS = ["cluster=inline", "actor_rollout_ref.rollout.name=hf", "actor_rollout_ref.rollout.val_kwargs.n=2"]
TEMPLATE = "data.apply_chat_template_kwargs"


@pytest.fixture(scope="module")
def run(tmp_path_factory) -> Path:
    folder = tmp_path_factory.mktemp("evaluated") / "run"
    words = ["trainer.total_training_steps=2", "trainer.test_freq=1", "trainer.save_freq=1", "trainer.logger=file"]
    small = ["data.train_batch_size=4", "data.val_max_samples=12", "actor_rollout_ref.rollout.n=4"]
    assert train([*SETTINGS, *words, *small, f"trainer.default_local_dir={folder}"]) == 0
    return folder


def test_the_weights_of_every_step_give_the_runs_own_held_out_number(run: Path, tmp_path: Path, capsys) -> None:
    names = [str(run), f"{run}@1", f"{run}@best", "builtin://tiny/hard"]
    assert main([*names, "--out", str(tmp_path)]) == 0
    found = json.loads((tmp_path / "results.json").read_text())["sets"]["all"]
    own = {row["step"]: row["val/avg@2"] for row in RunHistory.load(run).rows}
    assert [found[name]["avg@2"]["value"] for name in names] == pytest.approx(
        [own[2], own[1], max(own[1], own[2]), own[0]]
    )
    answers = [json.loads(line) for line in (tmp_path / "answers.jsonl").read_text().splitlines()]
    assert len(answers) == 4 * 12 * 2 and {answer["model"] for answer in answers} == set(names)
    printed = capsys.readouterr().out
    assert "Differences" in printed and "builtin://tiny/hard" in (tmp_path / "index.html").read_text()
    assert printed.count(str(run)) >= 3 and (tmp_path / "table.md").read_text().count("| all |") == 7


@pytest.mark.parametrize(
    ("words", "told"),
    [
        (["RUN@99"], "--step: got '99'; allowed: a step that the run has kept"),
        (["RUN@later"], "RUN@later: got 'later'; allowed: RUN, RUN@best"),
        (["RUN", "RUN"], "each model once"),
        (["RUN", "task=programs_easy"], "task: got 'task=programs_easy'; allowed: settings of a run"),
        (["RUN", "actor_rollout_ref.rollout.tempratur=1"], "temperature"),
        (["RUN", "--data", "nowhere.jsonl"], "nowhere.jsonl"),
        (["no/such/model"], "no/such/model"),
    ],
)
def test_what_is_asked_for_wrongly_is_one_line_before_anything_is_drawn(run, words, told, capsys, monkeypatch) -> None:
    monkeypatch.setattr("sdpo.evaluation.measure.RolloutWorker", None)
    assert main([word.replace("RUN", str(run)) for word in words]) in (2, 3, 4)
    error = capsys.readouterr().err.strip()
    assert error.count("\n") == 0 and told in error.replace(str(run), "RUN")


def test_settings_of_a_run_are_its_own_but_for_what_is_changed(tmp_path: Path) -> None:
    config = compose([*SETTINGS, "data.max_response_length=33"])
    (tmp_path / "resolved_config.yaml").write_text(to_yaml(config))
    changed = of_run(
        tmp_path / "resolved_config.yaml", ["data.max_response_length=44", "~data.seed", "data.val_files=a"]
    )
    assert (changed.data.max_response_length, changed.data.val_files) == (44, ["a"])
    changed.data.max_response_length, changed.data.val_files = 33, config.data.val_files
    assert changed == config


@pytest.mark.parametrize(
    ("word", "key", "value"),
    [
        ("data.apply_chat_template_kwargs.enable_thinking=false", TEMPLATE, {"enable_thinking": False}),
        ("data.apply_chat_template_kwargs.more=1", TEMPLATE, {"enable_thinking": True, "more": 1}),
        ("data.apply_chat_template_kwargs={more: 1}", TEMPLATE, {"enable_thinking": True, "more": 1}),
        ("~data.apply_chat_template_kwargs", TEMPLATE, {}),
        ("data={apply_chat_template_kwargs: {enable_thinking: 0}}", TEMPLATE, {"enable_thinking": 0}),
        ("trainer.experiment_name=1e3", "trainer.experiment_name", "1e3"),
        ("trainer.experiment_name=a_${trainer.seed}", "trainer.experiment_name", "a_0"),
        ("actor_rollout_ref.actor.grad_clip=0.5", "actor_rollout_ref.actor.optim.clip_grad", 0.5),
    ],
)
def test_a_setting_of_a_run_is_changed_also_inside_a_mapping_or_by_a_section(tmp_path, word, key, value) -> None:
    config = compose([*SETTINGS, f"{TEMPLATE}={{enable_thinking: true}}"])
    (tmp_path / "resolved_config.yaml").write_text(to_yaml(config))
    changed = of_run(tmp_path / "resolved_config.yaml", [word])
    assert fields.get(changed, key) == value
    section, _, name = key.rpartition(".")
    setattr(fields.get(config, section), name, value)
    assert changed == config


@pytest.mark.parametrize("word", ["~data.apply_chat_template_kwargs.x", "data={sede: 3}", "~data"])
def test_a_setting_that_a_run_does_not_have_is_one_line(tmp_path, word) -> None:
    (tmp_path / "resolved_config.yaml").write_text(to_yaml(compose(SETTINGS)))
    with pytest.raises(ConfigError, match="no such key; nearest: "):
        of_run(tmp_path / "resolved_config.yaml", [word])


def test_an_adapter_is_merged_and_another_runs_model_keeps_its_own_settings(tmp_path: Path, monkeypatch) -> None:
    config = compose([*SETTINGS, "actor_rollout_ref.model.lora_rank=2"])
    (tmp_path / "resolved_config.yaml").write_text(to_yaml(config))
    with pytest.raises(ConfigError, match="--step: got 'last'"):  # there is no checkpoint to merge
        find(str(tmp_path), compose(SETTINGS))
