"""What a run was made from, beyond the names in its settings: files of the same name can hold other things tomorrow."""

from __future__ import annotations

import hashlib
import os
import platform
from pathlib import Path
from typing import Any

from sdpo.config.schema import Config
from sdpo.data.store import PromptStore
from sdpo.grading.source_grader import fingerprint
from sdpo.models.file_names import digest_of
from sdpo.models.load import resolve_model_path
from sdpo.training.jobs import Jobs

PROMPTS = 5000  # of a part, read at most
_GPUS = Path("/proc/driver/nvidia/gpus")


def describe_inputs(config: Config, device: str, train: Jobs, val: Jobs) -> dict[str, Any]:
    """For run.json; comparisons read it."""
    model = config.actor_rollout_ref.model
    return {
        "train": _contents(train.selection.prompts),
        "val": _contents(val.selection.prompts),
        "val_sources": sorted({prompt.data_source for prompt in _some(val.selection.prompts)}),
        "model": digest_of(Path(resolve_model_path(model.path, model.revision))),
        "machine": _machine(device),
    }


def _some(prompts: PromptStore) -> list[Any]:
    return [prompts[place] for place in range(0, len(prompts), max(1, -(-len(prompts) // PROMPTS)))]


def _contents(prompts: PromptStore) -> str:
    digest = hashlib.sha256(b"".join(fingerprint(prompt, "", False) for prompt in _some(prompts)))
    return f"{len(prompts)} problems, {digest.hexdigest()[:12]}"


def _machine(device: str) -> str:
    """Kind of processor, cores that the process may use, and the GPU if it trains on one."""
    parts = [platform.machine(), f"{len(os.sched_getaffinity(0))} cores", device]
    for file in sorted(_GPUS.glob("*/information"))[:1] if device == "cuda" else []:
        parts += [line.partition(":")[2].strip() for line in file.read_text().splitlines() if line.startswith("Model")]
    return ", ".join(parts)
