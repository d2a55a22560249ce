"""The trained policy as an ordinary Hugging Face folder that any tool loads."""

from __future__ import annotations

import json
import shutil
from collections import Counter
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any

import torch
from peft import LoraConfig
from safetensors import SafetensorError
from safetensors.torch import save_file
from transformers import AutoConfig, PreTrainedModel

from sdpo.config.adapters import FILES
from sdpo.config.schema import ModelConfig
from sdpo.errors import ModelError, first_line
from sdpo.models.dropout import configured_rates
from sdpo.models.file_names import stored_tensors
from sdpo.models.load import load_tokenizer, resolve_model_path
from sdpo.models.shard import DTYPES


def export_hf(
    lm: PreTrainedModel,
    weights: Iterable[tuple[str, torch.Tensor]],
    config: ModelConfig,
    folder: str,
    dtype: str = "auto",
) -> None:
    """Writes config, tokenizer (with its chat template) and `weights` as safetensors. The folder appears whole or not
    at all; one that is there is replaced. Raises ModelError when the disk refuses.

    weights: full tensors by their names in files (`weights.source`), cast as they come. dtype: auto is that of the
    model that was trained, tensor by tensor.
    """
    with whole_folder(Path(folder)) as temporary:
        write_hf(lm, weights, config, temporary, dtype)


def write_hf(
    lm: PreTrainedModel, weights: Iterable[tuple[str, torch.Tensor]], config: ModelConfig, folder: Path, dtype: str
) -> None:
    """Into a folder of `whole_folder`. See `export_hf`."""
    main, others = (DTYPES[dtype], {}) if dtype != "auto" else input_dtypes(config)
    trained_in = lm.config.dtype
    try:
        with configured_rates(lm):
            state = {name: _cast(tensor, others.get(name, main)) for name, tensor in weights}
            lm.save_pretrained(folder, state_dict=state, save_original_format=False)
        _name_dtype(folder / "config.json", main)
        load_tokenizer(config).save_pretrained(folder)
    finally:
        lm.config.dtype = trained_in  # `save_pretrained` writes into it, and the training may go on


def export_adapter(
    settings: LoraConfig,
    tensors: Iterable[tuple[str, torch.Tensor]],
    config: ModelConfig,
    folder: str,
    dtype: str = "auto",
) -> None:
    """As `export_hf`, of an adapter alone, in PEFT's format; auto is float32, in which it was trained. It names the
    model that it belongs to, on the hub with its commit. The hub is not asked: PEFT's own way of saving would."""
    resolved = Path(resolve_model_path(config.path, config.revision))
    from_hub = resolved.parent.name == "snapshots"
    own = replace(
        settings,
        base_model_name_or_path=config.path if from_hub else str(resolved.resolve()),
        revision=resolved.name if from_hub else None,
        inference_mode=True,
    )
    with whole_folder(Path(folder)) as temporary:
        own.save_pretrained(str(temporary))
        said = json.loads((temporary / FILES[0]).read_text())
        said["target_modules"] = sorted(said["target_modules"])
        (temporary / FILES[0]).write_text(json.dumps(said, indent=2, sort_keys=True) + "\n")  # a set has no order
        cast = {name: _cast(tensor, DTYPES.get(dtype, torch.float32)).contiguous() for name, tensor in tensors}
        save_file(cast, temporary / FILES[1], metadata={"format": "pt"})
        load_tokenizer(config).save_pretrained(temporary)


@contextmanager
def whole_folder(final: Path) -> Iterator[Path]:
    """A folder to write into, which then takes the place of `final`, or of nothing when something fails. Raises
    ModelError when the disk refuses."""
    temporary = final.with_name(f".tmp_{final.name}")
    try:
        shutil.rmtree(temporary, ignore_errors=True)
        temporary.mkdir(parents=True)
        yield temporary
        give_folder_rights(temporary)
        shutil.rmtree(final, ignore_errors=True)
        temporary.rename(final)
    except (OSError, SafetensorError) as error:
        reason = getattr(error, "strerror", None) or first_line(error)
        raise ModelError(f"{final}: the model could not be written ({reason}); make room, then resume") from error
    finally:
        shutil.rmtree(temporary, ignore_errors=True)


def give_folder_rights(folder: Path) -> None:
    """Every file as the umask has it, which the folder shows: safetensors writes for its owner alone."""
    for file in folder.rglob("*"):
        if file.is_file():
            file.chmod(folder.stat().st_mode & 0o666)


def input_dtypes(config: ModelConfig) -> tuple[torch.dtype, dict[str, torch.dtype]]:
    """The dtype of the model that was trained, and of those of its tensors that are kept in float32 beside it. As
    transformers has it: what its configuration says, else what most of its weights are stored in."""
    folder = resolve_model_path(config.path, config.revision)
    stored = {name: tensor.dtype for name, tensor in stored_tensors(folder).items()}
    kinds = Counter(kind for kind in stored.values() if kind)
    most = kinds.most_common(1)[0][0] if kinds else torch.float32
    said = AutoConfig.from_pretrained(folder, trust_remote_code=config.trust_remote_code).dtype
    main = said if said in DTYPES.values() else most
    wider = {name: kind for name, kind in stored.items() if kind is torch.float32} if main is most else {}
    return main, wider


def _cast(tensor: torch.Tensor, dtype: torch.dtype) -> torch.Tensor:
    return tensor.to("cpu", dtype if tensor.is_floating_point() else tensor.dtype)


def _name_dtype(path: Path, dtype: torch.dtype) -> None:
    """`save_pretrained` names the dtype that the model was trained in."""

    def named(value: Any) -> Any:
        if not isinstance(value, dict):
            return value
        name = str(dtype).removeprefix("torch.")
        return {k: name if k in ("dtype", "torch_dtype") and v is not None else named(v) for k, v in value.items()}

    path.write_text(json.dumps(named(json.loads(path.read_text())), indent=2) + "\n")
