"""Where models come from, and what is said when they do not."""

from __future__ import annotations

import pytest

from sdpo.config.files import BUILTIN_MODELS
from sdpo.config.schema import ModelConfig
from sdpo.errors import ModelError
from sdpo.models.load import WEIGHTS, load_causal_lm, load_tokenizer, resolve_model_path


def test_builtin_models_are_folders_of_the_package():
    assert resolve_model_path("builtin://tiny/hard").endswith("sdpo/embedded/weights/hard")
    with pytest.raises(ModelError, match="builtin://tiny/hard"):
        resolve_model_path("builtin://tiny/enormous")


def test_the_configuration_knows_every_model_that_ships():
    assert sorted(BUILTIN_MODELS) == sorted(f"builtin://tiny/{folder.name}" for folder in WEIGHTS.iterdir())


@pytest.mark.parametrize("path", ["/nowhere/at/all", "./nowhere", "~/nowhere-at-all"])
def test_a_missing_folder_is_named(path):
    with pytest.raises(ModelError, match="existing folder"):
        resolve_model_path(path)


def test_a_hub_id_that_cannot_be_had_is_one_line():
    with pytest.raises(ModelError, match="no-such-org/no-such-model") as caught:
        resolve_model_path("no-such-org/no-such-model")  # the tests run offline
    assert "\n" not in str(caught.value)


def test_a_folder_without_a_model_is_a_model_error(tmp_path):
    with pytest.raises(ModelError, match="tokenizer"):
        load_tokenizer(ModelConfig(path=str(tmp_path)))
    import torch

    with pytest.raises(ModelError, match="causal language model"):
        load_causal_lm(ModelConfig(path=str(tmp_path)), torch.float32)


def test_damaged_weights_are_a_model_error(tmp_path):
    import shutil

    import torch

    shutil.copytree(resolve_model_path("builtin://tiny/hard"), tmp_path / "model")
    (tmp_path / "model" / "model.safetensors").write_bytes(b"not weights")
    with pytest.raises(ModelError, match="causal language model"):
        load_causal_lm(ModelConfig(path=str(tmp_path / "model")), torch.float32)
