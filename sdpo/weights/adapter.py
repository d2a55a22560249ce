"""The student's adapter alone, on its way to an engine that has the base and multiplies with both (`rollout.lora`)."""

from __future__ import annotations

import json
import shutil
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import torch
from safetensors.torch import save_file
from transformers import PreTrainedModel

from sdpo.config.adapters import FILES
from sdpo.models.adapters import adapter_tensors
from sdpo.weights.source import Group
from sdpo.weights.transport import transport_of


class AdapterSource:
    """As `WeightSource`, by the names of PEFT's files."""

    tied: tuple[str, ...] = ()

    def __init__(self, lm: PreTrainedModel, dtype: torch.dtype) -> None:
        self._lm, self._dtype = lm, dtype

    def gathered(self) -> Iterator[Group]:
        yield {name: tensor.to(self._dtype) for name, tensor in adapter_tensors(self._lm)}

    def join_in(self) -> None:
        for _ in self.gathered():
            pass


def unpack(place: str, version: int, settings: Mapping[str, Any], folder: Path) -> Path:
    """Writes what was sent as `folder`/v<version>, for an engine that reads PEFT's format; `folder` holds no other
    version afterwards. Raises RolloutError for another version than asked for."""
    tensors = {
        name: t.contiguous() for group in transport_of(place).receive(place, version) for name, t in group.items()
    }
    for old in folder.iterdir():
        shutil.rmtree(old)
    final = folder / f"v{version}"
    final.mkdir()
    (final / FILES[0]).write_text(json.dumps(dict(settings)))
    save_file(tensors, final / FILES[1])
    return final
