"""Roots, groups, overrides, and the way to YAML and back."""

from __future__ import annotations

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from sdpo.config import fields, tree
from sdpo.config.compose import compose, from_yaml, to_yaml
from sdpo.config.schema import Config
from sdpo.config.validate import validate
from sdpo.errors import ConfigError

DISTILL = "actor_rollout_ref.actor.self_distillation"


def refused(argv, root="sdpo", folder=None) -> str:
    with pytest.raises(ConfigError) as error:
        compose(argv, root, folder)
    message = str(error.value)
    assert "\n" not in message
    return message


# -- roots and groups


def test_the_default_is_the_embedded_quickstart():
    config = compose([])
    validate(config)
    actor = config.actor_rollout_ref.actor
    assert config.actor_rollout_ref.model.path == "builtin://tiny/hard"
    assert config.data.train_files == ["builtin://programs/hard/train"]
    assert (config.data.train_batch_size, actor.ppo_mini_batch_size, config.actor_rollout_ref.rollout.n) == (16, 16, 8)
    distillation = actor.self_distillation
    assert (actor.optim.lr, distillation.alpha, distillation.distillation_topk) == (5e-4, 0.5, None)
    # Trained on, a teacher that follows its student forgets how to read a reprompt: docs/algorithm.md.
    assert (distillation.teacher_regularization, distillation.teacher_update_rate) == ("trust-region", 0.05)
    assert (config.trainer.total_training_steps, config.trainer.test_freq) == (40, 10)


def test_the_baseline_differs_from_sdpo_only_in_the_algorithm_and_the_name_of_the_run():
    sdpo, grpo = compose([]), compose([], "baseline_grpo")
    different = {key for key in fields.by_key() if fields.get(sdpo, key) != fields.get(grpo, key)}
    assert different - {f"{DISTILL}.environment_feedback_only_without_solution"} == {
        "actor_rollout_ref.actor.policy_loss.loss_mode",
        "trainer.experiment_name",
        "trainer.default_local_dir",
    }


@pytest.mark.parametrize("model", tree.choices("model", [tree.YAML_FOLDER]))
def test_every_model_composes_with_another_task(model):
    config = compose([f"model={model}", "task=sciknoweval"])
    assert config.vars["task"] == "sciknoweval-chemistry"
    assert config.data.train_files == ["datasets/sciknoweval/chemistry/train.parquet"]


@pytest.mark.parametrize("task", tree.choices("task", [tree.YAML_FOLDER]))
def test_every_task_composes(task):
    assert compose([f"task={task}"]).vars["task"].startswith(task)


def test_a_task_reads_its_data_from_the_folder_that_vars_or_the_environment_name(monkeypatch):
    assert compose(["task=gsm8k"]).data.train_files == ["datasets/gsm8k/train.parquet"]
    monkeypatch.setenv("SDPO_DATA_DIR", "/data")
    assert compose(["task=gsm8k"]).data.val_files == ["/data/gsm8k/test.parquet"]
    files = compose(["task=sciknoweval", "vars.subject=physics", "vars.data_dir=/d"]).data.train_files
    assert files == ["/d/sciknoweval/physics/train.parquet"]


def test_yaml_files_hold_only_what_differs_from_the_schema_and_only_keys_of_it():
    for group in ("", *tree.groups([tree.YAML_FOLDER])):
        for name in tree.choices(group, [tree.YAML_FOLDER]):
            assert tree.description(f"{group}/{name}" if group else name), f"{group}/{name} has no description"
    import yaml

    for path in tree.YAML_FOLDER.glob("*.yaml"):  # groups also put back what a root has changed
        content = yaml.safe_load(path.read_text())
        for section in ("data", "actor_rollout_ref", "algorithm", "grading", "trainer"):
            for key, value in _flat(content.get(section, {}), section):
                known = fields.by_key().get(key)
                assert known is None or str(known.default) != str(value), f"{path.name}: {key} is the default"


def _flat(node, prefix):
    for name, value in node.items():
        if isinstance(value, dict):
            yield from _flat(value, f"{prefix}.{name}")
        else:
            yield f"{prefix}.{name}", value


@pytest.mark.parametrize("model", ["tiny_easy", "tiny_rare", "tiny_unseen"])
def test_the_embedded_models_differ_in_nothing_but_weights_and_names(model):
    one, other = compose(["model=tiny_hard"]), compose([f"model={model}"])
    different = {key for key in fields.by_key() if fields.get(one, key) != fields.get(other, key)}
    assert different == {"vars", "actor_rollout_ref.model.path", "trainer.experiment_name", "trainer.default_local_dir"}


# -- the embedded settings give way


def test_another_model_path_drops_the_embedded_models_learning_rate_lengths_and_steps():
    config = compose(["actor_rollout_ref.model.path=Qwen/Qwen3-8B"])
    assert config.actor_rollout_ref.model.path == "Qwen/Qwen3-8B"
    assert config.actor_rollout_ref.actor.optim.lr == 1e-5
    assert config.actor_rollout_ref.actor.self_distillation.distillation_topk == 100
    assert (config.data.max_response_length, config.trainer.total_training_steps) == (8192, None)
    assert config.trainer.experiment_name == "sdpo-Qwen3-8B-programs_hard"


@pytest.mark.parametrize("root_model", ["tiny_hard", "tiny_easy", "tiny_rare", "tiny_unseen"])
def test_so_they_do_when_a_root_of_the_users_chose_any_of_the_embedded_models(tmp_path, root_model):
    text = f"defaults:\n  - sdpo\n  - override model: {root_model}\n  - _self_\n"
    (tmp_path / "mine.yaml").write_text(text)
    config = compose(["actor_rollout_ref.model.path=Qwen/Qwen3-8B"], "mine", str(tmp_path))
    assert (config.data.max_response_length, config.trainer.total_training_steps) == (8192, None)


def test_the_teacher_of_the_embedded_models_does_not_stay_with_another_model():
    distillation = compose(["actor_rollout_ref.model.path=Qwen/Qwen3-8B"]).actor_rollout_ref.actor.self_distillation
    assert distillation.teacher_regularization == "ema"


def test_other_train_files_drop_the_embedded_task_with_its_validation_problems():
    data = compose(["data.train_files=mine.parquet"]).data
    assert (data.train_files, data.val_files) == (["mine.parquet"], [])


def test_naming_the_group_keeps_its_settings_with_another_path():
    config = compose(["model=tiny_hard", "actor_rollout_ref.model.path=/my/tiny"])
    assert (config.actor_rollout_ref.model.path, config.actor_rollout_ref.actor.optim.lr) == ("/my/tiny", 5e-4)


def test_a_built_in_path_is_no_reason_to_leave_the_group():
    config = compose(["actor_rollout_ref.model.path=builtin://tiny/easy"])
    assert config.actor_rollout_ref.actor.optim.lr == 5e-4


# -- overrides


@pytest.mark.parametrize("prefix", ["", "+", "++"])
def test_every_prefix_sets_a_key(prefix):
    assert compose([f"{prefix}trainer.seed=7"]).trainer.seed == 7
    assert compose([f"{prefix}data.apply_chat_template_kwargs.foo=1"]).data.apply_chat_template_kwargs["foo"] == 1


def test_trust_in_the_tokenizers_code_is_trust_in_the_models():
    config = compose(["data.trust_remote_code=True"])
    assert config.actor_rollout_ref.model.trust_remote_code and config.data.trust_remote_code


def test_the_last_of_two_overrides_wins():
    assert compose(["trainer.seed=1", "+trainer.seed=2"]).trainer.seed == 2


def test_tilde_puts_a_key_back_to_the_schemas_default_and_leaves_a_group_out():
    assert compose(["~trainer.total_training_steps"]).trainer.total_training_steps is None
    assert compose(["~data.apply_chat_template_kwargs"]).data.apply_chat_template_kwargs == {}
    assert compose(["~model"]).actor_rollout_ref.actor.optim.lr == 1e-5


def test_one_text_is_a_list_of_one_and_short_dtype_names_are_spelt_out():
    config = compose(["trainer.logger=wandb", "actor_rollout_ref.rollout.dtype=bf16", "data.train_files='~/a.json'"])
    assert config.trainer.logger == ["wandb"]
    assert config.actor_rollout_ref.rollout.dtype == "bfloat16"
    assert config.data.train_files[0].startswith("/") and config.data.train_files[0].endswith("/a.json")


@pytest.mark.parametrize("key", [key for key in fields.by_key() if key.endswith(("path", "_dir"))])
def test_a_tilde_is_the_home_folder_in_every_path(key):
    found = fields.get(compose([f"{key}='~/a'"]), key)
    assert found.startswith("/") and found.endswith("/a")


@pytest.mark.parametrize(
    ("argument", "nearest"),
    [
        ("actor_rollout_ref.actor.self_distilation.alpha=1", f"{DISTILL}.alpha"),
        ("+actor_rollout_ref.actor.self_distillation.aplha=1", f"{DISTILL}.alpha"),
        ("++actor_rollout_ref.actor.optim.weight_deacy=1", "actor_rollout_ref.actor.optim.weight_decay"),
        ("trainer.lr=1e-4", "actor_rollout_ref.actor.optim.lr"),
        ("~traner.seed", "trainer.seed"),
        ("lr=1e-4", "actor_rollout_ref.actor.optim.lr"),
        ("modle=tiny_hard", "model"),
        ("data.train_file=[a.json]", "data.train_files"),
        ("trainer.seed.x=1", "trainer.seed"),
    ],
)
def test_an_unknown_key_names_the_nearest_one(argument, nearest):
    key = argument.lstrip("+").split("=")[0]
    assert refused([argument]).startswith(f"{key}: no such key; nearest: {nearest} (")


@pytest.mark.parametrize(
    ("argument", "message"),
    [
        (f"{DISTILL}.alpha=abc", f"{DISTILL}.alpha: got 'abc'; allowed: a number"),
        (f"{DISTILL}.distillation_topk=abc", f"{DISTILL}.distillation_topk: got 'abc'; allowed: a whole number | null"),
        ("trainer.seed=null", "trainer.seed: got None; allowed: a whole number"),
        (
            "data.val_batch_size=None",
            "data.val_batch_size: got 'None'; allowed: a whole number | null; None is written",
        ),
        ("data.shuffle=maybe", "data.shuffle: got 'maybe'; allowed: true | false"),
        ("data.train_batch_size=3.5", "data.train_batch_size: got 3.5; allowed: a whole number"),
        ("trainer=foo", "trainer: got 'foo'; allowed: a section, not a value"),
        ("task=math", "task: got 'math'; allowed: custom | gsm8k | livecodebench"),
        ("model=", "model: got ''; allowed: custom |"),
        ("model=5", "model: got '5'; allowed: custom |"),
        ("model=null", "model: got 'null'; allowed: custom |"),
        ("=5", "=5: not an override (key=value, ~key): there is no key"),
        ("model=tiny_hrad", "model: got 'tiny_hrad'; allowed: custom |"),
        ("trainer.seed=1,2", "trainer.seed=1,2: got 'several values'; allowed: one value"),
        ("trainer.seed", "trainer.seed: not an override (key=value, ~key): "),
        ("hydra.run.dir=x", "hydra.run.dir: got 'x'; allowed: no settings of Hydra itself"),
        ("trainer.project_name=${vars.nothing}", "trainer.project_name: Interpolation key 'vars.nothing' not found"),
        ("data.train_files=['${vars.nothing}']", "Interpolation key 'vars.nothing' not found"),
    ],
)
def test_a_value_that_cannot_be_is_one_line(argument, message):
    assert refused([argument]).startswith(message)


def test_an_unknown_root_names_the_roots():
    roots = "baseline_grpo | gspo | sdpo | srpo"
    assert refused([], "sdop") == f"--config-name: got 'sdop'; allowed: {roots}; nearest: sdpo"


# -- the user's own folder


def write(folder, name, text):
    path = folder / f"{name}.yaml"
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(text)


def test_an_own_root_builds_on_a_built_in_one_and_the_command_line_wins(tmp_path):
    folder = tmp_path / "it's mine, all"
    write(folder, "mine", "defaults: [baseline_grpo, _self_]\ntrainer: {seed: 3, nnodes: 2}\n")
    config = compose(["trainer.seed=4"], "mine", str(folder))
    assert (config.trainer.seed, config.trainer.nnodes) == (4, 2)
    assert config.actor_rollout_ref.actor.policy_loss.loss_mode == "vanilla"


def test_an_own_model_path_in_yaml_drops_the_embedded_settings_too(tmp_path):
    write(tmp_path, "mine", "defaults: [sdpo, _self_]\nactor_rollout_ref: {model: {path: /m}}\n")
    config = compose([], "mine", str(tmp_path))
    assert (config.actor_rollout_ref.model.path, config.actor_rollout_ref.actor.optim.lr) == ("/m", 1e-5)


def test_an_own_choice_of_a_built_in_group_is_found(tmp_path):
    write(tmp_path, "model/mine", "# @package _global_\nactor_rollout_ref: {model: {path: /m}}\n")
    assert compose(["model=mine"], "sdpo", str(tmp_path)).actor_rollout_ref.model.path == "/m"


def test_an_own_group_is_added_with_a_plus(tmp_path):
    write(tmp_path, "cluster_size/big", "# @package _global_\ntrainer: {nnodes: 8}\n")
    assert compose(["+cluster_size=big"], "sdpo", str(tmp_path)).trainer.nnodes == 8


def test_an_unknown_key_in_yaml_names_the_nearest_one(tmp_path):
    write(tmp_path, "mine", "defaults: [sdpo, _self_]\ntrainer: {sede: 3}\n")
    assert refused([], "mine", str(tmp_path)).startswith("trainer.sede: no such key; nearest: trainer.seed")


def test_a_renamed_key_in_yaml_wins_over_the_root_but_not_over_the_command_line(tmp_path):
    text = "defaults: [sdpo, _self_]\nactor_rollout_ref: {actor: {self_distillation: {ema_update_rate: 0.3}}}\n"
    write(tmp_path, "mine", text)
    assert compose([], "mine", str(tmp_path)).actor_rollout_ref.actor.self_distillation.teacher_update_rate == 0.3
    config = compose([f"{DISTILL}.teacher_update_rate=0.1"], "mine", str(tmp_path))
    assert config.actor_rollout_ref.actor.self_distillation.teacher_update_rate == 0.1


def test_broken_yaml_and_a_missing_folder_are_one_line(tmp_path):
    write(tmp_path, "mine", "trainer: {seed: [1}\n")
    assert refused([], "mine", str(tmp_path)).startswith("mine: ")
    assert refused([], "sdpo", "/no/such").startswith("--config-dir: got '/no/such'")


# -- YAML


@pytest.mark.parametrize("root", ["sdpo", "baseline_grpo"])
def test_a_configuration_survives_the_way_to_yaml_and_back(tmp_path, root):
    config = compose(["trainer.logger=[console,file]", "vars.note='a ${trainer.seed}'"], root)
    config.actor_rollout_ref.actor.self_distillation.feedback_template = "costs ${x} \\ {feedback_raw}\n\u00e4"
    path = tmp_path / "resolved_config.yaml"
    path.write_text(to_yaml(config), encoding="utf-8")
    assert from_yaml(path) == config
    assert config.vars["note"] == "a 0"


@settings(max_examples=4, deadline=None)
@given(texts=st.lists(st.text("\\${}a' ", max_size=6) | st.text(st.characters(exclude_categories=["Cs"])), min_size=99))
def test_every_text_survives_the_way_to_yaml_and_back(tmp_path_factory, texts):
    """Whatever looks like an interpolation, or half of one, behind however many backslashes."""
    config = Config()
    config.actor_rollout_ref.actor.self_distillation.feedback_template = texts[0]
    config.custom_reward_function.reward_kwargs = {"texts": texts}
    path = tmp_path_factory.mktemp("saved") / "c.yaml"
    path.write_text(to_yaml(config), encoding="utf-8")
    assert from_yaml(path) == config


def test_defaults_survive_the_way_to_yaml_and_back(tmp_path):
    path = tmp_path / "c.yaml"
    path.write_text(to_yaml(Config()))
    assert from_yaml(path) == Config()


def test_a_saved_configuration_with_an_old_key_is_read_and_with_an_unknown_one_refused(tmp_path, caplog):
    path = tmp_path / "c.yaml"
    path.write_text(to_yaml(Config()).replace("teacher_update_rate:", "ema_update_rate:"))
    assert from_yaml(path) == Config()
    path.write_text("trainer: {sede: 1}\n")
    with pytest.raises(ConfigError, match="nearest: trainer.seed"):
        from_yaml(path)
    with pytest.raises(ConfigError, match="No such file"):
        from_yaml(tmp_path / "none.yaml")
