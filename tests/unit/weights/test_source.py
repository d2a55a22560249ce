"""The student's weights go under the names, and with the values, that the model's own files have."""

from __future__ import annotations

import importlib
import sys
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file, save_file
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import fully_shard
from torch.distributed.tensor import DTensor
from transformers import AutoModelForCausalLM, PreTrainedModel

from sdpo.models.file_names import stored_tensors
from sdpo.weights import shared_memory
from sdpo.weights.source import WeightSource
from sdpo.weights.target import load_into

sys.path.append(str(Path(__file__).parents[3] / "recipes" / "benchmarks"))
families = importlib.import_module("families")

FAMILIES = ["llama", "gpt2", "gpt_neox", "mixtral", "qwen3_moe", "olmoe", "gpt_oss", "dots1"]
BUILT_ONLY_WITH_MORE = ("gemma3n", "gemma4_assistant", "gemma4_unified_assistant", "musicgen", "musicgen_melody")
READ_BY_ANOTHER_CLASS = ("emu3", "mllama")


def saved(lm: PreTrainedModel, folder: Path) -> PreTrainedModel:
    """The model as it comes back from the files that it has written."""
    lm.save_pretrained(folder)
    return AutoModelForCausalLM.from_pretrained(folder, dtype=torch.float32)


def assert_sent_as_saved(lm: PreTrainedModel, folder: Path) -> None:
    loaded = saved(lm, folder)
    for model in (lm, loaded):
        source = WeightSource(model)
        found = dict(source)
        assert {name: tuple(t.shape) for name, t in found.items()} == {
            name: stored.shape for name, stored in stored_tensors(str(folder)).items()
        }
        assert [(name, t.dtype, tuple(t.shape)) for name, t in found.items()] == source.metadata()
        assert [list(group) for group in source.gathered()] == source.groups()
        assert not found.keys() & set(source.tied)
    other = AutoModelForCausalLM.from_pretrained(folder, dtype=torch.float32)
    with torch.no_grad():
        for tensor in (*other.parameters(), *other.buffers()):
            tensor.zero_()
    load_into(other, WeightSource(loaded).gathered())
    own = other.state_dict()
    assert all(torch.equal(own[name], tensor) for name, tensor in loaded.state_dict().items())


@pytest.mark.parametrize("family", FAMILIES)
def test_names_and_shapes_are_those_of_the_files_and_find_their_way_back(family: str, tmp_path: Path) -> None:
    assert_sent_as_saved(families.build(family), tmp_path)


@pytest.mark.slow
@pytest.mark.parametrize("family", sorted({*families.FAMILIES} - {*BUILT_ONLY_WITH_MORE, *READ_BY_ANOTHER_CLASS}))
def test_so_do_those_of_every_family(family: str, tmp_path: Path) -> None:
    assert_sent_as_saved(families.build(family), tmp_path)


@pytest.mark.parametrize("family", ["llama", "gpt2", "gpt_neox", "qwen3_moe"])
def test_of_tied_tensors_one_is_sent_and_the_others_are_named(family: str, tmp_path: Path) -> None:
    lm = families.build(family)
    lm.config.tie_word_embeddings = True
    source = WeightSource(saved(type(lm)(lm.config), tmp_path))
    assert {name for name, _ in source} == stored_tensors(str(tmp_path)).keys()
    assert [name.split(".")[0] for name in source.tied] == ["embed_out" if family == "gpt_neox" else "lm_head"]


@pytest.mark.parametrize("family", ["gpt2", "qwen3_moe"])
def test_files_without_the_prefix_of_the_base_model_get_names_without_it(family: str, tmp_path: Path) -> None:
    """As GPT-2's own on the hub: saved from the model without its head."""
    lm = families.build(family)
    lm.config.tie_word_embeddings = True
    lm.base_model.save_pretrained(tmp_path)
    loaded = AutoModelForCausalLM.from_pretrained(tmp_path, dtype=torch.float32)
    assert {name for name, _ in WeightSource(loaded)} == stored_tensors(str(tmp_path)).keys()
    other = AutoModelForCausalLM.from_pretrained(tmp_path, dtype=torch.float32)
    load_into(other, WeightSource(loaded).gathered())


@pytest.mark.parametrize("family", ["llama", "qwen3_moe"])
def test_files_with_a_prefix_that_the_model_does_not_have_get_names_with_it(family: str, tmp_path: Path) -> None:
    """As text models that were cut out of larger ones."""
    families.build(family).save_pretrained(tmp_path)
    file = tmp_path / "model.safetensors"
    save_file({f"model.{name}": tensor for name, tensor in load_file(file).items()}, file, {"format": "pt"})
    loaded, other = (AutoModelForCausalLM.from_pretrained(tmp_path, dtype=torch.float32) for _ in "12")
    assert {name for name, _ in WeightSource(loaded)} == stored_tensors(str(tmp_path)).keys()
    load_into(other, WeightSource(loaded).gathered())


def test_many_experts_keep_their_order(tmp_path: Path) -> None:
    lm = families.build("qwen3_moe")
    lm.config.num_experts = 12  # "10" comes before "9" in the order of letters
    assert_sent_as_saved(type(lm)(lm.config), tmp_path)


def test_a_group_is_a_layer_and_experts_come_one_by_one() -> None:
    before, *layers, behind = WeightSource(families.build("qwen3_moe")).groups()
    assert before == ["model.embed_tokens.weight"] and set(behind) == {"model.norm.weight", "lm_head.weight"}
    for number, names in enumerate(layers):
        assert all(name.startswith(f"model.layers.{number}.") for name in names)
        assert f"model.layers.{number}.mlp.experts.3.down_proj.weight" in names


def test_floating_point_is_cast_but_for_what_the_family_keeps_in_float32() -> None:
    lm = families.build("dots1")
    lm.register_buffer("count", torch.tensor([3]))
    kinds = {name: tensor.dtype for name, tensor in WeightSource(lm, torch.bfloat16)}
    assert kinds.pop("count") == torch.int64
    corrections = {name for name in kinds if name.endswith("e_score_correction_bias")}
    assert corrections and {kinds.pop(name) for name in corrections} == {torch.float32}
    assert set(kinds.values()) == {torch.bfloat16}
    assert WeightSource(lm, torch.bfloat16).metadata() == [
        (name, tensor.dtype, tuple(tensor.shape)) for name, tensor in WeightSource(lm, torch.bfloat16)
    ]


def sharded(lm: PreTrainedModel) -> PreTrainedModel:
    torch.distributed.init_process_group("gloo", store=torch.distributed.HashStore(), rank=0, world_size=1)
    mesh = init_device_mesh("cpu", (1,))
    for layer in lm.model.layers:
        fully_shard(layer, mesh=mesh)
    return fully_shard(lm, mesh=mesh)


def test_shards_are_cast_before_they_are_gathered_and_gathered_layer_by_layer(no_process_group, monkeypatch) -> None:
    wanted = {name: tensor.bfloat16() for name, tensor in WeightSource(families.build("qwen3_moe"))}
    lm = sharded(families.build("qwen3_moe"))
    gathered = []
    whole = DTensor.full_tensor
    monkeypatch.setattr(DTensor, "full_tensor", lambda tensor: gathered.append(tensor.dtype) or whole(tensor))
    source = WeightSource(lm, torch.bfloat16)
    assert [meta.name for meta in source.metadata()] and not gathered
    groups = source.gathered()
    found = next(groups)
    assert len(gathered) == len(found) == 1
    for group in groups:
        found |= group
    assert set(gathered) == {torch.bfloat16}
    assert found.keys() == wanted.keys() and all(torch.equal(found[name], tensor) for name, tensor in wanted.items())


def test_a_sharded_module_takes_its_part_of_what_arrives(no_process_group, tmp_path: Path) -> None:
    source = families.build("qwen3_moe")
    target = saved(source, tmp_path / "model")
    with torch.no_grad():
        for p in source.parameters():
            p.add_(1)
    place = shared_memory.send(WeightSource(source).gathered(), str(tmp_path / "sent"), 1)
    load_into(sharded(target), shared_memory.receive(place, 1))
    assert all(torch.equal(a.full_tensor(), b) for a, b in zip(target.parameters(), source.parameters(), strict=True))
