"""Reads what `torch.distributed.checkpoint` has written without running what somebody else may have written.

Its index is a pickle, and so is every entry that is no tensor: programs, when taken at their word. Here the index may
name the classes of an index and no others, and entries hold what `torch.load(weights_only=True)` reads.
"""

from __future__ import annotations

import io
import pickle
import re
from pathlib import PosixPath
from typing import Any

import torch
from torch.distributed.checkpoint import DefaultLoadPlanner, FileSystemReader, filesystem, metadata
from torch.distributed.checkpoint._nested_dict import set_element
from torch.distributed.checkpoint.planner import ReadItem
from torch.serialization import _get_layout

_ALLOWED = {
    (item.__module__, item.__qualname__): item
    for item in (
        metadata.Metadata,
        metadata.MetadataIndex,
        metadata.TensorStorageMetadata,
        metadata.ChunkStorageMetadata,
        metadata.BytesStorageMetadata,
        metadata.TensorProperties,
        metadata.StorageMeta,
        metadata._MEM_FORMAT_ENCODING,
        filesystem._StorageInfo,
        torch.Size,
        _get_layout,
    )
} | {("pathlib", "PosixPath"): PosixPath}


class _IndexUnpickler(pickle.Unpickler):
    def find_class(self, module: str, name: str) -> Any:
        found = _ALLOWED.get((module, name)) or (getattr(torch, name, None) if module == "torch" else None)
        if (module, name) in _ALLOWED or isinstance(found, torch.dtype):
            return found
        raise pickle.UnpicklingError(f"it names {module}.{name}, which no index of a checkpoint does")


class CheckpointReader(FileSystemReader):
    """Raises UnpicklingError or ValueError for an index that this program cannot have written."""

    def read_metadata(self, *args: Any, **kwargs: Any) -> metadata.Metadata:
        with open(self._get_metadata_path(kwargs.get("rank")), "rb") as file:
            index = _IndexUnpickler(file).load()
        if not isinstance(index, metadata.Metadata):
            raise ValueError("it is not an index")
        for item in index.storage_data.values():
            if not re.fullmatch(r"__\d+_\d+\.distcp", item.relative_path):
                raise ValueError(f"it names {item.relative_path!r}, which is none of its files")
        index.storage_meta = metadata.StorageMeta(load_id=self.load_id)
        return index


class EntryPlanner(DefaultLoadPlanner):
    """Raises UnpicklingError for an entry that holds more than numbers, texts, tensors and collections of them."""

    def load_bytes(self, read_item: ReadItem, value: io.BytesIO) -> None:
        loaded = torch.load(value, weights_only=True)
        set_element(self.original_state_dict, self.mappings[read_item.dest_index.fqn], loaded)
