"""The text of `--help`, made from the schema and the YAML tree. No Hydra, so that it answers at once."""

from __future__ import annotations

import json
import textwrap

from sdpo.config import fields, tree

WIDTH = 100
COMMON = (
    "actor_rollout_ref.model.path",
    "data.train_files",
    "data.val_files",
    "data.train_batch_size",
    "data.max_prompt_length",
    "data.max_response_length",
    "actor_rollout_ref.rollout.n",
    "actor_rollout_ref.rollout.name",
    "actor_rollout_ref.actor.optim.lr",
    "actor_rollout_ref.actor.ppo_mini_batch_size",
    "actor_rollout_ref.actor.self_distillation.alpha",
    "actor_rollout_ref.actor.self_distillation.distillation_topk",
    "actor_rollout_ref.actor.self_distillation.teacher_update_rate",
    "trainer.total_epochs",
    "trainer.total_training_steps",
    "trainer.n_gpus_per_node",
    "trainer.test_freq",
    "trainer.save_freq",
    "trainer.logger",
    "trainer.experiment_name",
    "cluster",
)
INTRO = """\
Post-trains a language model by self-distillation from rich feedback (SDPO), or by GRPO.
Without arguments: the embedded model on the embedded task, on the CPU, in about three minutes.

usage: python -m sdpo.main_sdpo [options] [group=choice ...] [key=value ...]"""
OPTIONS = """\
options
  --config-name NAME   the root to start from (default: sdpo)
  --config-dir DIR     a folder of your own YAML files, beside the built-in ones
  --cfg job            print the composed configuration and stop; with --resolve, interpolations filled in
  --traceback          show where an error was raised
  --help, --version"""
OVERRIDES = """\
overrides (Hydra's grammar; +key=value and ++key=value mean the same as key=value)
  key=value            e.g. trainer.seed=1, trainer.logger=[console,wandb], data.val_batch_size=null
  ~key                 back to the default of the schema"""
EXAMPLES = """\
examples
  python -m sdpo.main_sdpo trainer.seed=1
  python -m sdpo.main_sdpo --config-name baseline_grpo
  python -m sdpo.main_sdpo model=tiny_easy task=programs_easy
  python -m sdpo.main_sdpo model=qwen3_8b task=sciknoweval vars.subject=physics trainer.n_gpus_per_node=4
  python -m sdpo.main_sdpo actor_rollout_ref.model.path=/models/mine \\
      data.train_files=train.parquet data.val_files=test.parquet"""


def help_text() -> str:
    parts = [INTRO, OPTIONS, _choices("roots (--config-name)", "")]
    parts += [_choices(f"{group}=...", group) for group in tree.groups([tree.YAML_FOLDER])]
    parts += [OVERRIDES, _common_keys(), EXAMPLES, "every key: docs/configuration.md"]
    return "\n\n".join(parts)


def _choices(title: str, group: str) -> str:
    names = tree.choices(group, [tree.YAML_FOLDER])
    width = max(map(len, names)) + 2
    lines = [f"  {name:<{width}} {tree.description(f'{group}/{name}' if group else name)}" for name in names]
    return "\n".join([title, *lines])


def _common_keys() -> str:
    lines = ["common keys (default of the schema; roots and groups change some)"]
    for key in COMMON:
        item = fields.by_key()[key]
        lines.append(f"  {key}={json.dumps(item.default)}")
        lines += textwrap.wrap(item.meaning, WIDTH, initial_indent=" " * 6, subsequent_indent=" " * 6)
    return "\n".join(lines)
