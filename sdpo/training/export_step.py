"""The weights of any step that a run still has, as a folder that other tools load."""

from __future__ import annotations

import copy
import math
from dataclasses import dataclass
from pathlib import Path

import torch
from transformers import PreTrainedModel

from sdpo.config.adapters import trains_adapter
from sdpo.config.compose import from_yaml
from sdpo.config.schema import Config
from sdpo.errors import ConfigError, ModelError, problem
from sdpo.models.adapters import STUDENT, adapter_tensors, add_adapters
from sdpo.models.export import export_adapter, whole_folder, write_hf
from sdpo.models.forward import PolicyModule
from sdpo.models.load import load_causal_lm
from sdpo.tracking.history import CONFIG_FILE, MODEL_BEST, read_best
from sdpo.training import checkpoint
from sdpo.training.run_folder import CHECKPOINTS
from sdpo.weights.source import WeightSource
from sdpo.workers.actor_state import read_student

ROWS, TOKENS = 4, 64  # that merged weights are compared on
LIKELY = 1e-4  # probability of a next token from which it is compared: those that are ever drawn


@dataclass(frozen=True)
class Exported:
    folder: Path
    config: Config
    step: int
    kind: str  # model | adapter | merged
    merge_diff: float | None = None  # nats: the largest difference of a log-prob between merged weights and adapter


def export_step(run_dir: Path, step: str, merged: bool, dtype: str, out: Path | None, max_diff: float) -> Exported:
    """step: a number, last, or best. out: None is a folder of its own in `run_dir`/export.

    Raises ConfigError for a step that the run does not have, CheckpointError and ModelError for one that cannot be
    read or written, and ModelError when merging rounds away more than `max_diff` nats of some log-prob."""
    config, lm, number = _load(run_dir, step)
    adapter = trains_adapter(config.actor_rollout_ref.model)
    if merged and not adapter:
        raise ConfigError(problem("--merged", str(run_dir), "a run that trained an adapter", "leave it out"))
    kind = "merged" if merged else "adapter" if adapter else "model"
    final = out or run_dir / "export" / f"step_{number}{'_merged' if merged else ''}"
    model = config.actor_rollout_ref.model
    if kind == "adapter":
        export_adapter(lm.peft_config[STUDENT], adapter_tensors(lm), model, str(final), dtype)
        return Exported(final, config, number, kind)
    with whole_folder(final) as draft:
        write_hf(lm, WeightSource(lm), model, draft, dtype)
        diff = _largest_difference(lm, draft) if merged else None
        if diff is not None and diff > max_diff:
            fix = "merging rounds that much of the adapter away: export with --dtype float32, or the adapter itself"
            raise ModelError(problem("--max-diff", f"{diff:.2g} nats", f"at most {max_diff}", fix))
    return Exported(final, config, number, kind, diff)


def _load(run_dir: Path, step: str) -> tuple[Config, PreTrainedModel, int]:
    """The policy in float32, by the settings that it was trained with."""
    complete = {checkpoint.number(folder): folder for folder in checkpoint.complete(run_dir / CHECKPOINTS)}
    best = read_best(run_dir / MODEL_BEST).get("step")
    number = max(complete, default=None) if step == "last" else best if step == "best" else int(step)
    if number in complete:
        folder = complete[number]
        config = from_yaml(folder / checkpoint.CONFIG)
        lm = _policy(config)
        read_student(PolicyModule(lm, vocab_size=1), str(folder / "actor"))
        return config, lm, number
    if number is not None and number == best:  # its checkpoint is gone, its weights are not
        config = from_yaml(run_dir / CONFIG_FILE)
        stored = copy.deepcopy(config)
        model = stored.actor_rollout_ref.model
        if trains_adapter(model):
            model.lora_adapter_path = str(run_dir / MODEL_BEST)
        else:
            model.path, model.revision = str(run_dir / MODEL_BEST), None
        return config, _policy(stored), number
    there = ", ".join(map(str, sorted(complete))) or "none"
    fix = f"checkpoints there are of steps: {there}" + (f"; best: {best}" if best is not None else "; no best step")
    raise ConfigError(problem("--step", step, "a step that the run has kept, best or last", fix))


def _policy(config: Config) -> PreTrainedModel:
    lm = load_causal_lm(config.actor_rollout_ref.model, torch.float32).eval()
    if trains_adapter(config.actor_rollout_ref.model):
        add_adapters(lm, config, torch.float32)
    return lm


@torch.no_grad()
def _largest_difference(lm: PreTrainedModel, folder: Path) -> float:
    """Of the log-prob of any likely next token, in nats, between the policy and the folder's weights, on contexts drawn
    with a fixed seed."""
    draw = torch.Generator().manual_seed(0)
    ids = torch.randint(lm.config.get_text_config().vocab_size, (ROWS, TOKENS), generator=draw)
    other = type(lm).from_pretrained(folder, dtype=torch.float32).eval()
    own, theirs = (each(input_ids=ids, use_cache=False).logits.log_softmax(-1) for each in (lm, other))
    return float((own - theirs).abs()[own > math.log(LIKELY)].max())
