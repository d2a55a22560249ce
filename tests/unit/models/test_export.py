"""Exported folders: what any tool loads, with the rights and the dtype that the user expects."""

from __future__ import annotations

import json
import os
import stat

import pytest
import torch
from safetensors.torch import load_file, save_file
from transformers import AutoModelForCausalLM

from sdpo.config.schema import ModelConfig
from sdpo.embedded.tokenizer import save_tokenizer
from sdpo.models import export
from sdpo.models.export import export_hf
from sdpo.models.load import load_causal_lm, resolve_model_path
from sdpo.weights.source import WeightSource


def model_folder(folder, stored: torch.dtype, said: str | None, kept: str = ""):
    """The built-in model, stored in a dtype; tensors whose name holds `kept` in float32 beside it."""
    lm = load_causal_lm(ModelConfig("builtin://tiny/easy"), torch.float32)
    lm.save_pretrained(folder)
    save_tokenizer(folder)
    state = {
        name: tensor.to(torch.float32 if kept and kept in name else stored)
        for name, tensor in load_file(folder / "model.safetensors").items()
    }
    save_file(state, folder / "model.safetensors", metadata={"format": "pt"})
    settings = json.loads((folder / "config.json").read_text())
    settings.pop("dtype")
    (folder / "config.json").write_text(json.dumps(settings | ({"dtype": said} if said else {})))
    return ModelConfig(str(folder))


def exported(config: ModelConfig, folder, dtype: str = "auto") -> dict[str, torch.Tensor]:
    lm = load_causal_lm(config, torch.float32)  # as in training
    export_hf(lm, WeightSource(lm), config, str(folder), dtype)
    assert lm.config.dtype is torch.float32
    return load_file(folder / "model.safetensors")


@pytest.mark.parametrize(
    ("stored", "said", "setting", "wanted"),
    [
        (torch.bfloat16, "bfloat16", "auto", torch.bfloat16),
        (torch.float16, "float16", "auto", torch.float16),
        (torch.float32, "float32", "auto", torch.float32),
        (torch.bfloat16, None, "auto", torch.bfloat16),
        (torch.bfloat16, "float32", "auto", torch.float32),  # to be used in float32, says who made it
        (torch.bfloat16, "bfloat16", "float32", torch.float32),
        (torch.float32, "float32", "bfloat16", torch.bfloat16),
    ],
)
def test_weights_have_the_dtype_of_the_model_that_was_trained_or_the_one_asked_for(
    tmp_path, stored, said, setting, wanted
):
    (tmp_path / "in").mkdir()
    config = model_folder(tmp_path / "in", stored, said)
    tensors = exported(config, tmp_path / "out", setting)
    assert {tensor.dtype for tensor in tensors.values()} == {wanted}
    assert json.loads((tmp_path / "out/config.json").read_text())["dtype"] == str(wanted).removeprefix("torch.")
    loaded = AutoModelForCausalLM.from_pretrained(tmp_path / "out", dtype="auto")
    assert loaded.dtype is wanted
    before = load_file(tmp_path / "in/model.safetensors")
    assert tensors.keys() == before.keys()  # tied embeddings are written once
    for name, tensor in loaded.state_dict().items():
        if name in before:
            torch.testing.assert_close(tensor.float(), before[name].float(), rtol=0, atol=0)


def test_what_the_model_keeps_in_float32_beside_its_dtype_stays_so(tmp_path):
    (tmp_path / "in").mkdir()
    config = model_folder(tmp_path / "in", torch.bfloat16, "bfloat16", kept="norm")
    for name, tensor in exported(config, tmp_path / "out").items():
        assert tensor.dtype is (torch.float32 if "norm" in name else torch.bfloat16), name


@pytest.mark.parametrize(("umask", "mode"), [(0o022, 0o644), (0o002, 0o664), (0o077, 0o600)])
def test_every_file_has_the_rights_that_the_umask_leaves(tmp_path, umask, mode):
    before = os.umask(umask)
    try:
        exported(ModelConfig("builtin://tiny/easy"), tmp_path / "out")
    finally:
        os.umask(before)
    found = {file.name: stat.S_IMODE(file.stat().st_mode) for file in (tmp_path / "out").iterdir()}
    assert found.keys() >= {"model.safetensors", "config.json", "tokenizer.json", "generation_config.json"}
    assert set(found.values()) == {mode}, found


def test_a_folder_within_can_still_be_entered(tmp_path, monkeypatch):
    """Named templates lie in one: of a tokenizer with tools, say."""
    tokenizer = export.load_tokenizer(ModelConfig("builtin://tiny/easy"))
    tokenizer.chat_template = {"default": tokenizer.chat_template, "tool_use": "{{ messages }}"}
    monkeypatch.setattr(export, "load_tokenizer", lambda _: tokenizer)
    exported(ModelConfig("builtin://tiny/easy"), tmp_path / "out")
    within, mode = tmp_path / "out/additional_chat_templates", (tmp_path / "out").stat().st_mode
    assert within.stat().st_mode == mode
    assert [stat.S_IMODE(file.stat().st_mode) for file in within.iterdir()] == [mode & 0o666]


def test_the_training_goes_on_with_the_same_weights_after_an_export(tmp_path):
    config = ModelConfig("builtin://tiny/easy")
    lm = load_causal_lm(config, torch.float32)
    before = {name: tensor.clone() for name, tensor in lm.state_dict().items()}
    export_hf(lm, WeightSource(lm), config, str(tmp_path / "out"), "bfloat16")
    assert all(torch.equal(tensor, before[name]) for name, tensor in lm.state_dict().items())
    assert resolve_model_path(str(tmp_path / "out")) == str(tmp_path / "out")
