"""README.md of an exported folder, made from the run: what it was trained on and how, and what was measured."""

from __future__ import annotations

import math
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import yaml

from sdpo.config import fields
from sdpo.config.adapters import trains_adapter
from sdpo.config.schema import Config
from sdpo.models.load import BUILTIN, resolve_model_path
from sdpo.tracking.history import RunHistory

HUB_ID = re.compile(r"[\w.-]+/[\w.-]+")
# Where things lie, and what they are called, on the machine of the run.
_PRIVATE = ("trainer.", "data.train_files", "data.val_files", "vars", "cluster", "grading.judge", "grading.service")


def write_card(folder: Path, run_dir: Path, config: Config, step: int, kind: str, merge_diff: float | None) -> None:
    """kind: model, adapter or merged. Paths, hosts and users of the run's machine are left out."""
    history = RunHistory.load(run_dir)
    front = {key: value for key, value in _front(config, kind).items() if value}
    parts = [
        f"---\n{yaml.safe_dump(front, sort_keys=False, allow_unicode=True)}---\n",
        f"# {_title(config)}\n",
        *_what(history, config, step, kind, merge_diff),
        "## Measured\n",
        *_measured(history, step),
        "## Settings\n",
        "Those that differ from the defaults of `sdpo`:\n",
        *_table(("setting", "value"), _settings(config)),
        "## Versions\n",
        *_table(("package", "version"), sorted(history.recorded("versions").items())),
    ]
    (folder / "README.md").write_text("\n".join(parts).rstrip() + "\n", encoding="utf-8")


def _front(config: Config, kind: str) -> dict[str, Any]:
    base, licence = _hub_id(config), _licence(config)
    return {
        "base_model": base,
        "library_name": "peft" if kind == "adapter" else "transformers",
        "pipeline_tag": "text-generation",
        "tags": ["sdpo", *(["lora"] if kind != "model" else [])],
        **licence,
    }


def _hub_id(config: Config) -> str | None:
    path = config.actor_rollout_ref.model.path
    return path if HUB_ID.fullmatch(path) and not Path(path).exists() else None


def _licence(config: Config) -> dict[str, str]:
    """As the base's own card has it; empty when it says nothing."""
    model = config.actor_rollout_ref.model
    card = Path(resolve_model_path(model.path, model.revision)) / "README.md"
    found = (
        re.match(r"---\n(.*?)\n---", card.read_text(encoding="utf-8", errors="replace"), re.S)
        if card.is_file()
        else None
    )
    try:
        said = yaml.safe_load(found[1]) if found else None
    except yaml.YAMLError:
        said = None
    names = ("license", "license_name", "license_link")
    return {name: str(said[name]) for name in names if isinstance(said, dict) and said.get(name)}


def _title(config: Config) -> str:
    return _plain(config.trainer.experiment_name)


def _base(config: Config) -> str:
    model = config.actor_rollout_ref.model
    if (base := _hub_id(config)) is not None:
        resolved = Path(resolve_model_path(model.path, model.revision))
        commit = resolved.name if resolved.parent.name == "snapshots" else model.revision
        return f"[{base}](https://huggingface.co/{base})" + (f" at `{commit}`" if commit else "")
    if model.path.startswith(BUILTIN):
        return f"`{model.path}`, which comes with the package `sdpo`"
    return f"a local model, `{Path(model.path).name}`"


def _what(history: RunHistory, config: Config, step: int, kind: str, merge_diff: float | None) -> Iterator[str]:
    model, total = config.actor_rollout_ref.model, history.summary()
    forms = {"model": "All weights of", "adapter": "An adapter for", "merged": "An adapter, merged into"}
    yield f"{forms[kind]} {_base(config)}, trained with {total.algorithm} for {step} steps.\n"
    if trains_adapter(model):
        yield (
            "LoRA: "
            + ", ".join(
                f"{name} {getattr(model, name)}" for name in ("lora_rank", "lora_alpha", "use_rslora", "use_dora")
            )
            + f", target_modules {model.target_modules}.\n"
        )
    if merge_diff is not None:
        yield f"Merged weights differ from the adapter form by at most {merge_diff:.2g} nats in a log-prob.\n"
    inputs = history.recorded("inputs")
    for part, files in (("train", config.data.train_files), ("val", config.data.val_files)):
        names = ", ".join(f"`{_data_name(name)}`" for name in files) or "none"
        yield f"Data ({part}): {names}; {inputs.get(part, 'contents not recorded')}.\n"
    if config.data.apply_chat_template_kwargs:
        yield f"Options of the chat template: `{config.data.apply_chat_template_kwargs}`; use the same.\n"
    if "license" not in _licence(config):
        yield "The licence of the base is not stated in its files.\n"


def _measured(history: RunHistory, step: int) -> Iterator[str]:
    """The error is an upper bound: responses to one problem are alike, so problems are counted, not responses."""
    rows, name = [], history.validation_name
    for metric in history.names():
        for at, value in history.series(metric) if metric.startswith("val/") else ():
            if at in (0, step) and math.isfinite(value) and ("@" in metric or metric == "val/reward"):
                rows.append((metric, at, f"{value:.4f}", _error(history, metric, at, value)))
    if not rows:
        yield "Nothing was measured at this step.\n"
        return
    rows.sort(key=lambda row: (row[0] != name, row[0], row[1]))
    yield from _table(("held-out metric", "step", "value", "standard error, at most"), rows)


def _error(history: RunHistory, metric: str, step: int, value: float) -> str:
    samples, name = dict(history.series("val/samples")).get(step), history.validation_name
    if "@" not in metric or metric.count("/") > 1 or name is None or not samples:
        return "not known"
    problems = samples / int(name.rpartition("@")[2])
    return f"{math.sqrt(value * (1 - value) / problems):.4f} ({problems:.0f} problems)"


def _settings(config: Config) -> Iterator[tuple[str, str]]:
    for key, item in fields.by_key().items():
        value = fields.get(config, key)
        if value != item.default and not key.startswith(_PRIVATE) and not _is_place(value):
            yield f"`{key}`", f"`{_plain(str(value))}`"


def _is_place(value: Any) -> bool:
    return isinstance(value, str) and ("://" in value or value.startswith(("/", "~", "."))) and BUILTIN not in value


def _data_name(name: str) -> str:
    return name if "://" in name else Path(name).name


def _plain(text: str) -> str:
    return " ".join(text.replace("|", "/").replace("`", "'").split())


def _table(head: tuple[str, ...], rows: Any) -> Iterator[str]:
    yield f"| {' | '.join(head)} |\n| {' | '.join('---' for _ in head)} |"
    for row in rows:
        yield f"| {' | '.join(map(str, row))} |"
    yield ""
