"""Adapters of strangers, and settings that do not fit the model: one line before weights are loaded."""

from __future__ import annotations

import json
import shutil
import socket
from pathlib import Path

import pytest
import torch
from peft import PeftModel
from safetensors.torch import load_file, save_file
from transformers import AutoModelForCausalLM, GPT2Config, Phi3Config

import sdpo.models.load as load
from sdpo.config.compose import compose
from sdpo.config.schema import Config
from sdpo.errors import ConfigError
from sdpo.models.adapter_files import check_adapter
from sdpo.models.adapters import STUDENT, active, adapted, adapter_tensors, add_adapters, merged, of_adapter
from sdpo.models.export import export_adapter
from sdpo.models.load import load_policy, resolve_model_path
from sdpo.weights.source import WeightSource
from sdpo.weights.target import load_into

MODEL = "actor_rollout_ref.model"
DISTILL = "actor_rollout_ref.actor.self_distillation"
IDS = torch.tensor([[1, 5, 9, 14, 3]])


def _config(*words: str) -> Config:
    return compose([f"{MODEL}.{word}" if "." not in word.partition("=")[0] else word for word in words], "sdpo")


def _policy(config: Config, scale: float = 0.2):
    lm = load_policy(config, torch.float32)
    add_adapters(lm, config, torch.float32)
    draw = torch.Generator().manual_seed(1)
    with torch.no_grad():
        for name, p in lm.named_parameters():
            if of_adapter(name, STUDENT) and "lora_A" not in name:
                p.add_(scale * torch.randn(p.shape, generator=draw))
    return lm


def _export(lm, config: Config, folder: Path) -> Path:
    export_adapter(lm.peft_config[STUDENT], adapter_tensors(lm), config.actor_rollout_ref.model, str(folder))
    return folder


@pytest.fixture(scope="module")
def folder(tmp_path_factory) -> Path:
    config = _config("lora_rank=4", "lora_alpha=8")
    return _export(_policy(config), config, tmp_path_factory.mktemp("adapter") / "adapter")


@pytest.mark.parametrize(
    "words",
    [
        ["lora_rank=4", "lora_alpha=8"],
        ["lora_rank=4", "lora_alpha=8", "use_rslora=true"],
        ["lora_rank=12", "lora_alpha=5", "target_modules=[q_proj,down_proj]"],
        ["lora_rank=3", "target_modules='.*layers\\.[02]\\..*(v|up)_proj'"],
        ["lora_rank=4", "use_dora=true", f"{DISTILL}.teacher_regularization=frozen"],
    ],
)
def test_every_way_out_has_the_same_update(words, tmp_path):
    """The trainer's forward pass, merged weights, and the folder in PEFT's own hands, which start a run again, too."""
    config = _config(*words)
    check_adapter(config)
    lm = _policy(config)
    trained = lm(IDS).logits.detach()
    base = load.load_causal_lm(config.actor_rollout_ref.model, torch.float32)
    assert (trained - base(IDS).logits).abs().max() > 0.1
    exported = _export(lm, config, tmp_path / "adapter")
    theirs = PeftModel.from_pretrained(base, exported).eval()
    torch.testing.assert_close(theirs(IDS).logits, trained, atol=1e-5, rtol=1e-5)
    again = _config(f"lora_adapter_path={exported}", *[word for word in words if word.startswith(DISTILL)])
    check_adapter(again)
    restarted = load_policy(again, torch.float32)
    add_adapters(restarted, again, torch.float32)
    assert torch.equal(restarted(IDS).logits, trained)
    state = dict(WeightSource(lm))
    plain = load.load_causal_lm(config.actor_rollout_ref.model, torch.float32)
    plain.load_state_dict(state, strict=False)
    torch.testing.assert_close(plain(IDS).logits, trained, atol=1e-5, rtol=1e-5)
    for layer, other in zip(adapted(lm).values(), adapted(theirs).values(), strict=True):
        other.merge()
        torch.testing.assert_close(merged(layer, STUDENT), other.get_base_layer().weight, atol=1e-6, rtol=1e-6)


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (["lora_rank=4", "target_modules=[q_prj]"], "target_modules: got 'q_prj'; allowed: all-linear, or of this mod"),
        (["lora_rank=4", "target_modules=[q_proj,embed_tokens]"], "target_modules: got 'embed_tokens'"),
        (["lora_rank=4", "target_modules=[q_proj,lm_head]"], "target_modules: got 'the output head'"),
        (["lora_rank=4", "target_modules='nothing.*'"], "target_modules: got 'nothing.*'"),
        (["lora_rank=4", "target_modules=q_proj"], "regular expression of whole names; one name is [NAME]"),
        (["lora_rank=4", "target_modules='q_proj('"], "target_modules: got 'q_proj('; allowed: all-linear, a list of"),
        (["lora_rank=4", "target_modules=null"], "target_modules: got None; allowed: all-linear, a list of names"),
        (["lora_rank=4", "target_modules=true"], "target_modules: got True; allowed: all-linear, a list of names"),
        (["lora_rank=4", "target_modules=[]"], "target_modules: got set(); allowed: all-linear, or of this model's"),
        (["lora_rank=129"], f"{MODEL}.lora_rank: got 129; allowed: 1 to 128 with builtin://tiny/hard"),
        (
            ["lora_rank=600", "actor_rollout_ref.rollout.lora=adapter"],
            f"{MODEL}.lora_rank: got 600; allowed: at most 512 with actor_rollout_ref.rollout.lora=adapter",
        ),
        (
            [
                "lora_rank=4",
                "use_dora=true",
                "actor_rollout_ref.rollout.lora=adapter",
                f"{DISTILL}.teacher_regularization=live",
            ],
            "actor_rollout_ref.rollout.lora: got 'adapter'; allowed: merged with DoRA",
        ),
        (["lora_rank=8", f"{DISTILL}.teacher_lora_rank=7"], f"{DISTILL}.teacher_lora_rank: got 7; allowed: at least 8"),
        (["lora_rank=8", "use_dora=true", f"{DISTILL}.teacher_regularization=ema"], f"{MODEL}.use_dora: got True"),
    ],
)
def test_what_the_model_does_not_have_is_one_line_before_its_weights_are_read(words, said, monkeypatch):
    monkeypatch.setattr(load, "load_causal_lm", lambda *_: pytest.fail("weights are loaded"))
    with pytest.raises(ConfigError) as caught:
        check_adapter(_config(f"{DISTILL}.teacher_regularization=ema", *words))
    assert said in str(caught.value) and "\n" not in str(caught.value)


def _settings(**changes):
    def change(folder: Path) -> None:
        path = folder / "adapter_config.json"
        path.write_text(json.dumps(json.loads(path.read_text()) | changes))

    return change


def _tensors(change):
    def apply(folder: Path) -> None:
        path = folder / "adapter_model.safetensors"
        save_file({new: t for name, t in load_file(path).items() if (new := change(name))}, path)

    return apply


def _truncate(folder: Path) -> None:
    (folder / "adapter_model.safetensors").write_bytes(b"half")


def _other_weights(folder: Path) -> None:
    _settings(base_model_name_or_path=resolve_model_path("builtin://tiny/rare"))(folder)


@pytest.mark.parametrize(
    ("change", "said"),
    [
        (_settings(peft_type="IA3"), "got 'IA3'; allowed: LORA"),
        (_settings(r=8), "is (4, 128) there, (8, 128) for this model"),
        (_settings(bias="lora_only"), "lora_adapter_path: bias: got 'lora_only'; allowed: none"),
        (_settings(modules_to_save=["lm_head"]), "lora_adapter_path: modules_to_save: got ['lm_head']"),
        (_settings(alpha_pattern={"q_proj": 32}), "lora_adapter_path: alpha_pattern"),
        (_settings(rank_pattern={"q_proj": 2}), "lora_adapter_path: rank_pattern"),
        (_settings(invented_later=3), "lora_adapter_path: invented_later"),
        *((_settings(init_lora_weights=way), None) for way in (None, True, False, "gaussian", "orthogonal", "mica")),
        *(
            (_settings(init_lora_weights=way), f"lora_adapter_path: init_lora_weights: got {way!r}; allowed: one that")
            for way in ("pissa", "pissa_niter_4", "olora", "corda", "loftq", "lora_ga", ["gaussian"])
        ),
        (_settings(base_model_name_or_path="some/model", revision="abc"), None),  # a folder may be that model's
        (_settings(target_modules=["query"]), "target_modules: got 'query'"),
        (_settings(target_modules="q_proj)"), "target_modules: got 'q_proj)'; allowed: all-linear, a list of names"),
        (_settings(target_modules=None), "target_modules: got None; allowed: all-linear, a list of names"),
        (_other_weights, f"{MODEL}.path: got 'builtin://tiny/hard'; allowed: "),
        (_tensors(lambda name: name.replace(".weight", ".default.weight") if "layers.1" in name else name),
         "14 missing, first base_model.model.model.layers.1.mlp.down_proj.lora_A.weight; 14 unknown"),
        (_tensors(lambda name: "layers.1." not in name and name), "14 missing, first base_model.model.model.layers.1"),
        (_tensors(lambda name: name.replace("base_model.model.", "")), "42 missing"),
        *((_settings(r=rank), f"lora_adapter_path: r: got {rank!r}; allowed: a number") for rank in (None, "8", [8])),
        (_settings(lora_alpha="16"), "lora_adapter_path: lora_alpha: got '16'; allowed: a number"),
        (_settings(lora_dropout=None), "lora_adapter_path: lora_dropout: got None; allowed: a number"),
        (_settings(base_model_name_or_path=3), "lora_adapter_path: base_model_name_or_path: got 3; allowed: text"),
        (_settings(layers_pattern="layers"), "settings that PEFT takes; When `layers_pattern` is specified"),
        (_truncate, "a readable folder"),
        (lambda folder: (folder / "adapter_config.json").write_text("{"), "a readable adapter_config.json"),
    ],
)  # fmt: skip
def test_a_strange_folder_is_one_line_and_never_fresh_values(folder, tmp_path, change, said):
    shutil.copytree(folder, tmp_path / "copy")
    change(tmp_path / "copy")
    config = _config(f"lora_adapter_path={tmp_path / 'copy'}")
    if said is None:
        check_adapter(config)
        return
    with pytest.raises(ConfigError) as caught:
        check_adapter(config)
    assert said in str(caught.value) and "\n" not in str(caught.value)


def test_a_contradiction_names_both_sides(folder):
    with pytest.raises(ConfigError, match=r"lora_rank: got 16; allowed: 4 with that .*lora_adapter_path"):
        check_adapter(_config(f"lora_adapter_path={folder}", "lora_rank=16"))


def test_an_adapter_of_a_model_on_the_hub_names_its_commit_and_is_held_to_it(tmp_path, monkeypatch):
    """No connection is tried, whatever the client would like to look up."""
    commit = "0123456789abcdef0123456789abcdef01234567"
    cached = tmp_path / "snapshots" / commit
    shutil.copytree(resolve_model_path("builtin://tiny/hard"), cached)
    for module in ("sdpo.models.load", "sdpo.models.export", "sdpo.models.adapter_files"):
        monkeypatch.setattr(f"{module}.resolve_model_path", lambda *_: str(cached))
    monkeypatch.setattr(socket.socket, "connect", lambda *_: pytest.fail("a connection is tried"))
    monkeypatch.setenv("HF_HUB_OFFLINE", "0")
    config = _config("lora_rank=2", "path=some/model")
    adapter = _export(_policy(config), config, tmp_path / "adapter")
    said = json.loads((adapter / "adapter_config.json").read_text())
    assert (said["base_model_name_or_path"], said["revision"]) == ("some/model", commit)
    check_adapter(_config(f"lora_adapter_path={adapter}", "path=some/model"))
    with pytest.raises(ConfigError, match=f"{MODEL}.path: got 'other/model'; allowed: some/model"):
        check_adapter(_config(f"lora_adapter_path={adapter}", "path=other/model"))
    _settings(revision="f" * 40)(adapter)
    with pytest.raises(ConfigError, match=f"{MODEL}.revision: got None; allowed: {'f' * 40}"):
        check_adapter(_config(f"lora_adapter_path={adapter}", "path=some/model"))


def test_exported_files_have_ordinary_modes_and_equal_runs_equal_bytes(folder, tmp_path):
    config = _config("lora_rank=4", "lora_alpha=8")
    again = _export(_policy(config), config, tmp_path / "adapter")
    for file in folder.iterdir():
        assert file.stat().st_mode & 0o777 == folder.stat().st_mode & 0o666
        assert file.read_bytes() == (again / file.name).read_bytes(), file.name


def test_a_model_with_an_adapter_loads_by_its_folder_alone(folder):
    lm = AutoModelForCausalLM.from_pretrained(folder)
    assert len(adapted(lm)) == 21


@pytest.mark.parametrize("dora", [False, True])
@pytest.mark.parametrize(
    "family",
    [
        GPT2Config(vocab_size=64, n_embd=32, n_layer=1, n_head=2, bos_token_id=1, eos_token_id=2),  # weights [in, out]
        Phi3Config(  # fused projections
            vocab_size=64, hidden_size=32, intermediate_size=48, num_hidden_layers=1, num_attention_heads=2,
            num_key_value_heads=1, bos_token_id=1, eos_token_id=2, pad_token_id=0,
        ),
    ],
)  # fmt: skip
def test_weights_are_merged_as_each_family_keeps_them(family, dora, tmp_path):
    AutoModelForCausalLM.from_config(family).save_pretrained(tmp_path)
    config = Config()
    config.actor_rollout_ref.actor.policy_loss.loss_mode = "vanilla"
    model = config.actor_rollout_ref.model
    model.path, model.lora_rank, model.use_dora = str(tmp_path), 4, dora
    check_adapter(config)
    lm = _policy(config).eval()
    plain = load.load_causal_lm(model, torch.float32).eval()
    load_into(plain, WeightSource(lm, torch.float32).gathered())
    torch.testing.assert_close(plain(IDS).logits, lm(IDS).logits, atol=1e-5, rtol=1e-5)
    with active(lm, None):
        assert (plain(IDS).logits - lm(IDS).logits).abs().max() > 0.05
