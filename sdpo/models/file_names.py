"""What a model's tensors are called in its own files, where that differs from their names in memory: transformers keeps
the experts of a layer as one tensor, renames parts, and takes files with or without the prefix of the base model."""

from __future__ import annotations

import hashlib
from collections.abc import Mapping
from copy import deepcopy
from pathlib import Path
from typing import NamedTuple

import torch
from safetensors import safe_open
from transformers import PreTrainedModel
from transformers.core_model_loading import (
    WeightConverter,
    WeightRenaming,
    dot_natural_key,
    rename_source_key,
    revert_weight_conversion,
)

_DTYPES = {"F32": torch.float32, "BF16": torch.bfloat16, "F16": torch.float16}


BLOCKS, BLOCK = 64, 4096  # of a weight file that a digest reads at most; bytes of one


class Stored(NamedTuple):
    dtype: torch.dtype | None  # None: not one that models are trained in
    shape: tuple[int, ...]


def stored_tensors(folder: str) -> dict[str, Stored]:
    """What the safetensors files of a folder hold; empty when there are none. Reads headers only."""
    found: dict[str, Stored] = {}
    for path in sorted(Path(folder).glob("*.safetensors")):
        with safe_open(path, framework="pt") as file:
            for name in file.keys():  # noqa: SIM118
                tensor = file.get_slice(name)
                found[name] = Stored(_DTYPES.get(tensor.get_dtype()), tuple(tensor.get_shape()))
    return found


def digest_of(folder: Path) -> str:
    """Of a model's configuration and of parts of its weights: other contents of the same name are seen."""
    digest = hashlib.sha256()
    for path in sorted(p for p in folder.iterdir() if p.name == "config.json" or p.suffix in (".safetensors", ".bin")):
        size = path.stat().st_size
        digest.update(f"{path.name} {size};".encode())
        with path.open("rb") as file:
            for start in (*range(0, size, max(BLOCK, size // BLOCKS)), max(0, size - BLOCK)):
                file.seek(start)
                digest.update(file.read(BLOCK))
    return digest.hexdigest()[:12]


def names_in_files(
    lm: PreTrainedModel, tensors: dict[str, torch.Tensor], files: Mapping[str, Stored]
) -> dict[str, torch.Tensor]:
    """From the names of `lm` to those of its files; the tensors of a layer must be together. Fused tensors come apart
    as views. files: `stored_tensors` of the model's folder, where it has any."""
    if getattr(lm, "_weight_conversions", None) != []:  # [] is what loading leaves where nothing had to be converted
        tensors = revert_weight_conversion(lm, tensors)
    prefix = f"{lm.base_model_prefix}."
    spellings = {name: (name, name.removeprefix(prefix), prefix + name) for name in tensors}
    return {next((s for s in spellings[name] if s in files), name): tensor for name, tensor in tensors.items()}


def names_in_model(
    lm: PreTrainedModel, tensors: Mapping[str, torch.Tensor], own: Mapping[str, torch.Tensor]
) -> dict[str, torch.Tensor]:
    """The reverse of `names_in_files`, for an `lm` that was loaded from files. Unknown names stay as they are.
    own: `lm.state_dict()`, made once for all layers."""
    conversions = getattr(lm, "_weight_conversions", None) or []
    converters = [each for each in conversions if isinstance(each, WeightConverter)]
    renamings = [each for each in conversions if isinstance(each, WeightRenaming)]
    of_pattern = {pattern: each for each in converters for pattern in each.source_patterns}
    made: dict[str, WeightConverter | WeightRenaming] = {}
    for name in sorted(tensors, key=dot_natural_key):  # experts in their order
        target, pattern = rename_source_key(name, renamings, converters, lm.base_model_prefix, own)
        if target not in own and name in own:
            target, pattern = name, None
        if target not in made:
            made[target] = deepcopy(of_pattern[pattern]) if pattern else WeightRenaming(name, target)
        made[target].add_tensor(target, name, pattern or name, tensors[name])
    found: dict[str, torch.Tensor] = {}
    for target, each in made.items():
        for name, tensor in each.convert(target, model=lm, config=lm.config).items():
            found[name] = tensor[0] if isinstance(tensor, list) else tensor
    return found
