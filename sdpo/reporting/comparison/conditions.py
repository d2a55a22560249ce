"""What runs of one table may differ in, and what they must share: decided here alone.

A setting that neither list names must be shared: runs that differ in it get rows of their own, under a warning.
"""

from __future__ import annotations

import hashlib
from collections.abc import Sequence
from dataclasses import dataclass, field
from itertools import combinations
from typing import Any

from sdpo.config import fields
from sdpo.errors import DataError
from sdpo.tracking.history import RunHistory

# Entries are whole keys or sections, or beginnings of keys where they end in "_".
_ACTOR, _ROLLOUT, _GRADING = "actor_rollout_ref.actor", "actor_rollout_ref.rollout", "grading"
_MODEL, _TRAIN, _VAL = "actor_rollout_ref.model.path", "data.train_files", "data.val_files"
# No number of a table depends on these, or the table has them in a column of its own.
FREE = (
    f"{_ACTOR}.optim.lr", "data.seed", "data.val_batch_size", "trainer.seed", "vars", "trainer.logger", "trainer.log_",
    "trainer.project_name", "trainer.experiment_name", "trainer.group_name", "trainer.default_local_dir",
    "trainer.worker_logs", "trainer.save_freq", "trainer.max_actor_ckpt_to_keep", "trainer.best_metric",
    "trainer.resume_", "trainer.export_", "trainer.total_",
)  # fmt: skip
# What a table compares: the algorithm with its settings, and what its teacher is told.
COMPARED = (_ACTOR, "algorithm", f"{_GRADING}.feedback_", f"{_GRADING}.public_only", f"{_GRADING}.reveal_gold")
# Not compared although it is in a section that is: how the machine is used.
_MACHINE = (
    "machine", "versions", "cluster", "actor_rollout_ref.ref", "trainer.device", "trainer.nnodes",
    "trainer.n_gpus_per_node", f"{_ACTOR}.fsdp_config", f"{_ACTOR}.ppo_micro_", f"{_ACTOR}.ppo_max_token_",
    f"{_ACTOR}.use_dynamic_bsz", f"{_ROLLOUT}.name", f"{_ROLLOUT}.dtype", f"{_ROLLOUT}.tensor_", f"{_ROLLOUT}.replicas",
    f"{_ROLLOUT}.gpu_", f"{_ROLLOUT}.cpu_", f"{_ROLLOUT}.max_num_", f"{_ROLLOUT}.enforce_eager",
    f"{_ROLLOUT}.free_cache_engine", f"{_GRADING}.workers", f"{_GRADING}.concurrency", f"{_GRADING}.algebra_processes",
)  # fmt: skip
# What a difference makes of the numbers; the first line that fits counts.
_SPOILS = (
    ("not the same model is trained", ("actor_rollout_ref.model",)),
    ("accuracies are not over the same held-out problems", (_VAL, "data.val_max_samples")),
    (
        "accuracies are not sampled and counted alike",
        ("metric", f"{_ROLLOUT}.val_kwargs", "trainer.val_success_threshold"),
    ),
    ("seconds are not those of the same machine", _MACHINE),
    ("answers are not graded alike", (_GRADING, "custom_reward_function")),
    ("validations are not at the same steps, and the best of more is higher", ("trainer.test_freq", "trainer.val_")),
    ("a step does not draw equally many samples", ("data.train_batch_size", f"{_ROLLOUT}.n")),
    ("prompts and answers are not written alike", ("data.max_", "data.apply_chat_template_kwargs")),
    ("the runs do not train on the same problems in the same way", ("data",)),
    ("the runs were not made alike", ("",)),
)
_LONGEST = 32  # signs of a value in the name of a row


@dataclass(frozen=True)
class Conditions:
    """Of one run: settings by key, and what its files held when it read them ({} where it did not record that)."""

    settings: dict[str, Any] = field(default_factory=dict)
    inputs: dict[str, Any] = field(default_factory=dict)


@dataclass(frozen=True)
class Difference:
    """A setting that the rows of a table should share, and do not."""

    setting: str
    spoils: str
    values: dict[str, str]  # by row

    def __str__(self) -> str:
        rows: dict[str, list[str]] = {}
        for row, value in self.values.items():
            rows.setdefault(value, []).append(row)
        told = "; ".join(f"{value} ({', '.join(names)})" for value, names in rows.items())
        return f"{self.setting} is {told}"


def conditions_of(history: RunHistory, metric: str) -> Conditions:
    """`metric`: the one that is compared."""
    settings, inputs = _flat(history.config, ""), history.recorded("inputs")
    optim = {key.rpartition(".")[2]: value for key, value in settings.items() if key.startswith(f"{_ACTOR}.optim.")}
    to_the_end = optim.get("warmup_style") == "cosine" and optim.get("lr_decay_steps", -1) < 0
    if to_the_end or optim.get("lr_warmup_steps_ratio"):  # else it does not matter how long a run was meant to be
        settings[f"{_ACTOR}.optim.steps_of_schedule"] = history.state.get("total_steps")
    settings |= {f"versions.{name}": text for name, text in history.recorded("versions").items()}
    settings |= {"metric": metric.rpartition("/")[2], "machine": inputs.get("machine")}
    return Conditions({name: value for name, value in settings.items() if not _fits(name, FREE)}, inputs)


def may_differ(setting: str) -> bool:
    return _fits(setting, COMPARED) and not _fits(setting, _MACHINE)


def varying(runs: Sequence[Conditions]) -> dict[str, list[str]]:
    """Setting -> its value in each run, of the settings in which they differ. Files and the model are compared by what
    they held, where every run has recorded that. A setting that a run does not know has today's default."""
    settings = _by_contents(runs)
    found = {}
    for name in sorted({name for own in settings for name in own}):
        values = [_value(own, name) for own in settings]
        recorded = name in fields.by_key()  # what is no setting may be unknown, and that is no difference
        if len({_text(value) for value in values if recorded or value is not None}) > 1:
            found[name] = [_text(value) for value in values]
    return found


def row_names(labels: Sequence[str], runs: Sequence[Conditions]) -> tuple[list[str], list[dict[str, str]]]:
    """The row of every run: its label, and behind it the settings that tell it from others of that label, if any does.
    Seeds are averaged, other settings never are. Also, by run, those of these settings that may differ."""
    names = list(labels)
    compared: list[dict[str, str]] = [{} for _ in labels]
    for label in set(labels):
        places = [place for place, other in enumerate(labels) if other == label]
        values = varying([runs[place] for place in places])
        telling = _telling({name: values[name] for name in sorted(values, key=lambda name: not may_differ(name))})
        for nth, place in enumerate(places):
            compared[place] = {name: values[name][nth] for name in values if may_differ(name)}
            told = ", ".join(f"{name.rpartition('.')[2]}={_short(values[name][nth])}" for name in telling)
            names[place] = f"{label} {told}" if told else label
    return names, compared


def has_settings(run: Conditions, settings: dict[str, str]) -> bool:
    """Whether a run that chose a learning rate did so for the row with these settings."""
    return all(_text(_value(run.settings, name)) == value for name, value in settings.items())


def differences(rows: Sequence[str], runs: Sequence[Conditions]) -> list[Difference]:
    """What the runs of different rows should share and do not. Raises DataError when no number of the table could be
    compared: no two rows have their held-out problems in common, nor model and training problems."""
    values = varying(runs)
    found = [
        Difference(name, spoils(name), dict(zip(rows, values[name], strict=True)))
        for name in values
        if not may_differ(name)
    ]
    first = {row: place for place, row in enumerate(rows)}

    def apart(name: str, a: int, b: int) -> bool:
        return name in values and values[name][a] != values[name][b]

    pairs = list(combinations(first.values(), 2))
    if pairs and all(apart(_VAL, *pair) and (apart(_MODEL, *pair) or apart(_TRAIN, *pair)) for pair in pairs):
        text = ". ".join(cautions([item for item in found if item.setting in (_VAL, _MODEL, _TRAIN)]))
        raise DataError(f"no number of these runs could be compared: {text}")
    return found


def cautions(found: Sequence[Difference]) -> list[str]:
    """A sentence for each thing that differences spoil."""
    by_harm = {text: [str(item) for item in found if item.spoils == text] for text, _ in _SPOILS}
    return [f"{harm}: {', and '.join(told)}" for harm, told in by_harm.items() if told]


def not_recorded(names: Sequence[str], runs: Sequence[Conditions]) -> list[str]:
    """A sentence for each run that does not know settings of the others."""
    known = {name for run in runs for name in run.settings if name in fields.by_key()}
    missing = [(name, sorted(known - run.settings.keys())) for name, run in zip(names, runs, strict=True)]
    return [
        f"{name} does not record {', '.join(keys[:3])}{f' and {len(keys) - 3} more' if len(keys) > 3 else ''}; "
        "today's defaults were taken"
        for name, keys in missing
        if keys
    ]


def spoils(setting: str) -> str:
    return next(text for text, entries in _SPOILS if _fits(setting, entries))


def _fits(setting: str, entries: Sequence[str]) -> bool:
    starts = (entry if entry[-1:] in ("", "_") else f"{entry}." for entry in entries)
    return setting in entries or setting.startswith(tuple(starts))


def _flat(node: dict[str, Any], prefix: str) -> dict[str, Any]:
    """Values by dotted key, down to the keys of the schema."""
    found: dict[str, Any] = {}
    for name, value in node.items():
        key = f"{prefix}{name}"
        inside = isinstance(value, dict) and key not in fields.by_key()
        found |= _flat(value, f"{key}.") if inside else {key: value}
    return found


def _by_contents(runs: Sequence[Conditions]) -> list[dict[str, Any]]:
    """The settings, with what files and model held instead of their names."""
    settings = [dict(run.settings) for run in runs]
    for part, key in (("train", _TRAIN), ("val", _VAL), ("model", _MODEL)):
        held = [one for run in runs if isinstance(one := run.inputs.get(part), str)]
        if len(held) < len(runs):
            continue
        shown: dict[str, str] = {}
        for own, contents in zip(settings, held, strict=True):
            own[key] = shown.setdefault(contents, f"{_text(own.get(key))} [{contents}]")
            own.pop(f"data.{part}_max_samples", None)  # told by the contents
    return settings


def _telling(values: dict[str, list[str]]) -> list[str]:
    """As few of the settings as tell runs apart that any of them tells apart."""
    telling: list[str] = []
    kinds, all_kinds = 1, len(set(zip(*values.values(), strict=True)))
    for name in values:
        if kinds < all_kinds and (now := len(set(zip(*(values[n] for n in [*telling, name]), strict=True)))) > kinds:
            telling, kinds = [*telling, name], now
    return telling


def _value(settings: dict[str, Any], name: str) -> Any:
    known = fields.by_key().get(name)
    return settings.get(name, known.default if known else None)


def _text(value: Any) -> str:
    if isinstance(value, list) and value and all(isinstance(one, str) for one in value):
        return ", ".join(value)
    if isinstance(value, float) and value.is_integer():
        return str(int(value))
    return "null" if value is None else str(value)


def _short(text: str) -> str:
    digest = hashlib.blake2b(text.encode("utf-8", "surrogatepass"), digest_size=2).hexdigest()
    return text if len(text) <= _LONGEST else f"{text[: _LONGEST - 5]}…{digest}"
