"""Text stays the text that was written, whatever YAML makes of such letters."""

from __future__ import annotations

import tempfile
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from sdpo.config import fields
from sdpo.config.compose import compose, from_yaml, to_yaml
from sdpo.config.schema import Config
from sdpo.errors import ConfigError

LOOK_LIKE_OTHERS = [
    "off", "on", "yes", "no", "true", "False", "012", "1e3", "12:30", "1_000", "0x10", "0b1", "1.", ".5", "1.0", "-3",
    "2024-01-01", "1e-5", "12e03",
]  # fmt: skip


KEYS = ["trainer.experiment_name", "trainer.project_name", "trainer.group_name", "data.prompt_key", "data.answer_key"]


@pytest.mark.parametrize("texts", [LOOK_LIKE_OTHERS[start : start + 5] for start in range(0, len(LOOK_LIKE_OTHERS), 5)])
def test_text_is_kept_on_the_command_line_in_a_yaml_file_and_in_the_record_of_a_run(texts, tmp_path):
    given = dict(zip(KEYS, texts, strict=False))
    sections = "".join(
        f"{key.split('.')[0]}: {{{key.split('.')[1]}: {text}}}\n" for key, text in list(given.items())[:1]
    )
    sections += "".join(f"data: {{{key.split('.')[1]}: {text}}}\n" for key, text in list(given.items())[3:4])
    (tmp_path / "my.yaml").write_text(f"defaults:\n  - sdpo\n  - _self_\n{sections}")
    typed = [f"{key}={text}" for key, text in given.items() if key not in (KEYS[0], KEYS[3])]
    config = compose([*typed, f"data.val_files={texts[0]}"], "my", str(tmp_path))
    assert {key: fields.get(config, key) for key in given} == given
    assert config.data.val_files == [texts[0]]
    (tmp_path / "resolved.yaml").write_text(to_yaml(config))
    assert from_yaml(tmp_path / "resolved.yaml") == config


@settings(max_examples=10)
@given(
    st.lists(
        st.one_of(
            st.from_regex(r"[-+]?[0-9_.:e]{1,6}", fullmatch=True), st.text(st.characters(codec="utf-8"), max_size=8)
        ),
        min_size=6,
        max_size=30,
    )
)
def test_the_record_of_a_run_is_read_as_it_was_written(texts):
    texts = [text.replace("\\", "").replace("~", "") for text in texts]
    config = Config()
    config.trainer.experiment_name, config.data.prompt_key, config.trainer.group_name, *config.data.train_files = texts
    with tempfile.TemporaryDirectory() as folder:
        (Path(folder) / "a.yaml").write_text(to_yaml(config), encoding="utf-8", newline="")
        assert from_yaml(Path(folder) / "a.yaml") == config


def test_a_list_of_texts_that_yaml_reads_as_numbers_is_refused_and_says_quotes():
    with pytest.raises(ConfigError, match="data.val_files: got .* write its entries in quotes"):
        compose(["data.val_files=[012, 1e3]"])
    assert compose(["data.val_files=['012','1e3']"]).data.val_files == ["012", "1e3"]


def test_numbers_and_truth_values_stay_what_they_are():
    config = compose(["actor_rollout_ref.actor.optim.lr=1e-3", "data.shuffle=off", "data.seed=7"])
    assert (config.actor_rollout_ref.actor.optim.lr, config.data.shuffle, config.data.seed) == (1e-3, False, 7)
