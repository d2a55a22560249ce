"""Sizes that nobody set follow the batch and the model."""

from __future__ import annotations

import json

import pytest
from hypothesis import given
from hypothesis import strategies as st

from sdpo.config.compose import compose
from sdpo.config.positions import PROMPT, REPROMPT, RESPONSE, fitting, refusals
from sdpo.config.schema import Config
from sdpo.config.validate import validate
from sdpo.errors import ConfigError, Refusals
from sdpo.main_sdpo import main

ACTOR = "actor_rollout_ref.actor"
DEFAULTS = {PROMPT: 2048, RESPONSE: 8192, REPROMPT: 10240}


@pytest.fixture
def model(tmp_path):
    """A folder of a model of one's own, with so many positions."""

    def make(positions: int | None, where: str = "") -> list[str]:
        said = {} if positions is None else {"max_position_embeddings": positions}
        (tmp_path / "config.json").write_text(json.dumps({where: said} if where else said))
        return [f"actor_rollout_ref.model.path={tmp_path}", "data.train_files=[rows.jsonl]", "data.val_files=[]"]

    return make


def lengths(config: Config) -> tuple[int, int, int]:
    distillation = config.actor_rollout_ref.actor.self_distillation
    return config.data.max_prompt_length, config.data.max_response_length, distillation.max_reprompt_len


@pytest.mark.parametrize(("root", "batch"), [("sdpo", 1), ("sdpo", 48), ("baseline_grpo", 4), ("baseline_grpo", 48)])
def test_an_optimizer_step_is_the_whole_batch_or_what_the_root_says_but_never_more(root, batch, model):
    config = compose([*model(None), f"data.train_batch_size={batch}"], root)
    wanted = min(8, batch) if root == "baseline_grpo" else batch
    assert config.actor_rollout_ref.actor.ppo_mini_batch_size == wanted


def test_an_optimizer_step_that_was_set_stays():
    assert compose([f"{ACTOR}.ppo_mini_batch_size=16"]).actor_rollout_ref.actor.ppo_mini_batch_size == 16


def test_lengths_follow_the_positions_of_the_model_where_they_were_not_set(model, caplog):
    config = compose(model(2048))
    assert lengths(config) == (512, 1024, 1024)
    assert "not set, taken from the model's 2048 positions" in caplog.text
    assert lengths(compose(model(4096, "text_config"))) == (1024, 2048, 2048)
    assert lengths(compose([*model(512), "data.max_response_length=100"])) == (206, 100, 412)
    assert lengths(compose([*model(512), "data.max_prompt_length=100"])) == (100, 412, 100)
    assert lengths(compose(model(32768))) == lengths(compose(model(None))) == (2048, 8192, 10240)
    override = "actor_rollout_ref.model.override_config={max_position_embeddings: 2048}"
    assert lengths(compose([*model(32768), override])) == (512, 1024, 1024)
    assert lengths(compose([*model(10240)], "baseline_grpo")) == (2048, 8192, 10240)  # no teacher, no reprompt


@given(
    positions=st.integers(8, 20000),
    given=st.dictionaries(st.sampled_from(list(DEFAULTS)), st.integers(1, 9000), max_size=2),
    needs_teacher=st.booleans(),
)
def test_whatever_was_set_the_rest_fits_where_anything_does(positions, given, needs_teacher):
    values = DEFAULTS | given
    found = values | fitting(values, set(given), positions, needs_teacher)
    assert all(found[key] == value for key, value in given.items())
    response, longest = found[RESPONSE], max(found[PROMPT], found[REPROMPT] if needs_teacher else 0)
    told = max([given[key] for key in (PROMPT, REPROMPT) if key in given], default=0)
    if RESPONSE not in given and told < positions and (needs_teacher or PROMPT in given or not given):
        assert response + longest <= positions and min(found.values()) >= 1
    if given == {} and needs_teacher:
        assert found[PROMPT] < found[REPROMPT] or positions < 18432 and found[PROMPT] <= found[REPROMPT]


def test_what_was_set_and_does_not_fit_is_refused_all_at_once(model, tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "rows.jsonl").write_text("{}")
    argv = [
        *model(1024), "data.max_prompt_length=700", "data.max_response_length=600", "data.train_batch_size=6",
        f"{ACTOR}.self_distillation.max_reprompt_len=800", f"{ACTOR}.ppo_mini_batch_size=4", "trainer.logger=[]",
    ]  # fmt: skip
    assert main(argv) == 2
    lines = [line for line in capsys.readouterr().err.splitlines() if line.startswith("error: ")]
    fields = [line.removeprefix("error: ").partition(":")[0] for line in lines]
    assert fields == [f"{ACTOR}.ppo_mini_batch_size", "trainer.logger", PROMPT, REPROMPT]


def test_values_are_refused_together_and_so_are_keys(capsys):
    assert main(["data.train_batch_size=0", "trainer.device=tpu", f"{ACTOR}.optim.lr=-1"]) == 2
    assert len(capsys.readouterr().err.splitlines()) == 3
    assert main(["data.trian_batch_size=4", "data.seed=x", "nonsense", "trainer.sed=1"]) == 2
    said = capsys.readouterr().err
    assert said.count("error: ") == 3 and "data.trian_batch_size" in said and "trainer.sed" in said


def test_one_refusal_is_an_error_as_ever():
    config = compose(["data.train_batch_size=6", f"{ACTOR}.ppo_mini_batch_size=4"])
    with pytest.raises(ConfigError) as caught:
        validate(config)
    assert not isinstance(caught.value, Refusals)


def test_positions_that_nobody_knows_refuse_nothing():
    assert refusals(Config(), None) == []


def test_cfg_job_checks_values_and_not_files(capsys):
    assert main(["--cfg", "job", "data.train_batch_size=0", "trainer.logger=[]"]) == 2
    out, err = capsys.readouterr()
    assert "train_batch_size: 0" in out and err.count("error: ") == 1
    assert main(["--cfg", "job", "data.train_files=[/no/such.jsonl]", "actor_rollout_ref.model.path=/no/such"]) == 0


@pytest.mark.parametrize(
    ("argv", "command"),
    [
        (["task=gsm8k"], "prepare gsm8k hub {0}/gsm8k"),
        (["task=sciknoweval"], "prepare sciknoweval hub {0}/sciknoweval"),
        (["task=tooluse"], "prepare tooluse DOWNLOADED_FOLDER {0}/tooluse"),
    ],
)
def test_a_prepared_file_that_is_missing_names_the_command_that_makes_it(argv, command, tmp_path, monkeypatch, capsys):
    monkeypatch.setenv("SDPO_DATA_DIR", str(tmp_path))
    assert main(argv) == 2
    assert f"python -m sdpo.cli.data {command.format(tmp_path)}" in capsys.readouterr().err


def test_the_sources_that_can_be_prepared_are_those_of_the_command():
    from sdpo.config.files import PREPARED
    from sdpo.data.prepare.write import SOURCES

    assert {name: source.hub is not None for name, source in SOURCES.items()} == PREPARED
