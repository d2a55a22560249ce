"""The trained policy as an ordinary Hugging Face folder that any tool loads."""

from __future__ import annotations

import json
import shutil
from collections import Counter
from pathlib import Path
from typing import Any

import torch
from safetensors import SafetensorError, safe_open
from transformers import AutoConfig, PreTrainedModel

from sdpo.config.schema import ModelConfig
from sdpo.errors import ModelError, first_line
from sdpo.models.dropout import configured_rates
from sdpo.models.load import load_tokenizer, resolve_model_path
from sdpo.models.shard import DTYPES

_STORED = {"F32": torch.float32, "BF16": torch.bfloat16, "F16": torch.float16}


def export_hf(
    lm: PreTrainedModel, state: dict[str, torch.Tensor], config: ModelConfig, folder: str, dtype: str = "auto"
) -> None:
    """Writes config, tokenizer (with its chat template) and `state` as safetensors. The folder appears whole or not at
    all; one that is there is replaced. Raises ModelError when the disk refuses.

    dtype: of the weights; auto: that of the model that was trained, tensor by tensor. `state` is emptied on the way, so
    that no two copies of it lie in memory.
    """
    final = Path(folder)
    temporary = final.with_name(f".tmp_{final.name}")
    main, others = (DTYPES[dtype], {}) if dtype != "auto" else input_dtypes(config)
    trained_in = lm.config.dtype
    try:
        shutil.rmtree(temporary, ignore_errors=True)
        temporary.mkdir(parents=True)
        with configured_rates(lm):
            lm.save_pretrained(temporary, state_dict=_cast(state, main, others))
        _name_dtype(temporary / "config.json", main)
        load_tokenizer(config).save_pretrained(temporary)
        give_folder_rights(temporary)
        shutil.rmtree(final, ignore_errors=True)
        temporary.rename(final)
    except (OSError, SafetensorError) as error:
        reason = getattr(error, "strerror", None) or first_line(error)
        raise ModelError(f"{final}: the model could not be written ({reason}); make room, then resume") from error
    finally:
        lm.config.dtype = trained_in  # `save_pretrained` writes into it, and the training may go on
        shutil.rmtree(temporary, ignore_errors=True)


def give_folder_rights(folder: Path) -> None:
    """Every file as the umask has it, which the folder shows: safetensors writes for its owner alone."""
    for file in folder.iterdir():
        file.chmod(folder.stat().st_mode & 0o666)


def input_dtypes(config: ModelConfig) -> tuple[torch.dtype, dict[str, torch.dtype]]:
    """The dtype of the model that was trained, and of those of its tensors that are kept in float32 beside it. As
    transformers has it: what its configuration says, else what most of its weights are stored in."""
    folder = resolve_model_path(config.path, config.revision)
    stored: dict[str, torch.dtype] = {}
    for file in sorted(Path(folder).glob("*.safetensors")):
        with safe_open(file, "pt") as weights:
            stored |= {name: _STORED.get(weights.get_slice(name).get_dtype()) for name in weights.keys()}  # noqa: SIM118
    kinds = Counter(kind for kind in stored.values() if kind)
    most = kinds.most_common(1)[0][0] if kinds else torch.float32
    said = AutoConfig.from_pretrained(folder, trust_remote_code=config.trust_remote_code).dtype
    main = said if said in DTYPES.values() else most
    wider = {name: kind for name, kind in stored.items() if kind is torch.float32} if main is most else {}
    return main, wider


def _cast(state: dict[str, torch.Tensor], main: torch.dtype, others: dict[str, torch.dtype]) -> dict[str, torch.Tensor]:
    """Tensors that share memory (tied embeddings) still do afterwards."""
    made: dict[tuple[Any, ...], torch.Tensor] = {}
    cast = {}
    for name in list(state):
        tensor = state.pop(name)
        wanted = others.get(name, main) if tensor.is_floating_point() else tensor.dtype
        place = (tensor.data_ptr(), tensor.shape, tensor.stride(), wanted)
        cast[name] = made.setdefault(place, tensor if tensor.dtype is wanted else tensor.to(wanted))
    return cast


def _name_dtype(path: Path, dtype: torch.dtype) -> None:
    """`save_pretrained` names the dtype that the model was trained in."""

    def named(value: Any) -> Any:
        if not isinstance(value, dict):
            return value
        name = str(dtype).removeprefix("torch.")
        return {k: name if k in ("dtype", "torch_dtype") and v is not None else named(v) for k, v in value.items()}

    path.write_text(json.dumps(named(json.loads(path.read_text())), indent=2) + "\n")
