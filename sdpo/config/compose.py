"""Roots, config groups and command-line overrides become one typed `Config`. The only module that knows Hydra.

What is added to Hydra's own rules: a key is checked against the schema wherever it comes from, so `key=`, `+key=` and
`++key=` mean the same and an unknown key names its nearest neighbour; renamed keys of verl are carried over; the
settings of the embedded model and task give way as soon as another model or other data are named.
"""

from __future__ import annotations

import os
import re
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

import yaml
from hydra import compose as hydra_compose
from hydra import initialize_config_dir
from hydra.core.global_hydra import GlobalHydra
from hydra.core.override_parser.overrides_parser import OverridesParser
from hydra.core.override_parser.types import Override, OverrideType
from hydra.errors import HydraException
from omegaconf import DictConfig, OmegaConf
from omegaconf.errors import OmegaConfBaseException

from sdpo.algorithms.registry import ALGORITHMS
from sdpo.config import fields, keys, positions, tree
from sdpo.config.files import BUILTIN_MODELS, READ
from sdpo.config.schema import Config
from sdpo.errors import ConfigError, collected, problem, raise_all

EMBEDDED = {  # YAML choices that hold the settings of what is built in
    "model": tuple(f"tiny_{path.rpartition('/')[2]}" for path in BUILTIN_MODELS),
    "task": ("programs_hard", "programs_easy"),
}
DTYPE_NAMES = {"fp32": "float32", "bf16": "bfloat16", "fp16": "float16"}
PATH_KEYS = (*READ, "trainer.default_local_dir", "trainer.resume_from_path")

MINI_BATCH = "actor_rollout_ref.actor.ppo_mini_batch_size"
LENGTHS = {positions.PROMPT, positions.RESPONSE, positions.REPROMPT}

# ${basename:a/b/c} is c: names a run after its model folder
OmegaConf.register_new_resolver("basename", lambda path: Path(path).name or "custom", replace=True)
# ${least:a,b} is the smaller one: at most so many prompts per optimizer step
OmegaConf.register_new_resolver("least", lambda *numbers: min(numbers), replace=True)


@dataclass
class CommandLine:
    """Overrides in three kinds."""

    groups: dict[str, str] = field(default_factory=dict)  # group (or ~group) -> override for Hydra
    values: dict[str, str] = field(default_factory=dict)  # present key -> `++key=value` for Hydra
    defaults: list[str] = field(default_factory=list)  # keys put back to the schema's default (`~key`)


def compose(argv: list[str], config_name: str = "sdpo", config_dir: str | None = None) -> Config:
    """The configuration that `config_name` and the overrides in `argv` describe, interpolations resolved.

    `config_dir` is searched beside the built-in tree. Raises ConfigError, always with one line.
    """
    return to_config(compose_tree(argv, config_name, config_dir))


def compose_tree(argv: list[str], config_name: str = "sdpo", config_dir: str | None = None) -> DictConfig:
    """Likewise, before interpolations are resolved."""
    folders = tree.search_folders(config_dir)
    config_name = config_name.removesuffix(".yaml")
    tree.check_root(config_name, folders)
    line = _read(argv, folders)
    plain, chosen = _hydra(config_name, folders, line)
    gives_way = [g for g in _not_embedded(plain) if g not in line.groups and chosen.get(g) in EMBEDDED[g]]
    if gives_way:
        line.groups |= {group: f"{group}=custom" for group in gives_way}
        plain, _ = _hydra(config_name, folders, line)
    if "trainer.total_epochs" in line.values and "trainer.total_training_steps" not in line.values:
        OmegaConf.update(plain, "trainer.total_training_steps", None, force_add=True)
    typed, given = _in_schema(plain, line, [file for folder in folders for file in folder.rglob("*.yaml")])
    _follow(typed, given)
    return typed


def _follow(typed: DictConfig, given: set[str]) -> None:
    """Sizes that nobody set follow others: an optimizer step is the whole batch, lengths fit the model."""
    if MINI_BATCH not in given:
        OmegaConf.update(typed, MINI_BATCH, "${data.train_batch_size}")
    if given >= LENGTHS:
        return
    try:
        model = OmegaConf.to_container(typed.actor_rollout_ref.model, resolve=True)
        mode = str(typed.actor_rollout_ref.actor.policy_loss.loss_mode)
        lengths = {key: OmegaConf.select(typed, key) for key in LENGTHS}
    except OmegaConfBaseException as error:
        raise _unresolved(error) from error
    assert isinstance(model, dict)
    found = positions.positions_of(model["path"], model["revision"], model["override_config"])
    needs_teacher = mode not in ALGORITHMS or ALGORITHMS[mode].needs_teacher
    for key, value in positions.fitting(lengths, given, found, needs_teacher).items():
        OmegaConf.update(typed, key, value)


def to_yaml(config: Config) -> str:
    """Every key with its resolved value, in schema order; `from_yaml` gives back an equal Config."""
    return OmegaConf.to_yaml(OmegaConf.create(_escaped(asdict(config))))


def from_yaml(path: str | Path) -> Config:
    """Reads what `to_yaml` wrote. Raises ConfigError when the file is missing or does not fit the schema."""
    return of_run(path, [])


def of_run(path: str | Path, argv: list[str]) -> Config:
    """The settings of a run, from its `resolved_config.yaml`, changed by overrides of keys."""
    line = _read(argv, tree.search_folders(None))
    for name in line.groups:
        fix = "name its settings (key=value); a run's own files hold its model and task"
        raise ConfigError(problem(name, line.groups[name], "settings of a run, which has no groups any more", fix))
    try:
        plain = OmegaConf.load(path)
    except (OSError, UnicodeDecodeError, yaml.YAMLError) as error:
        raise ConfigError(f"{path}: {_one_line(error)}") from error
    if not isinstance(plain, DictConfig):
        raise ConfigError(problem(str(path), type(plain).__name__, "a mapping of settings"))
    for override in map(_parse, line.values.values()):
        OmegaConf.update(plain, override.key_or_group, override.value(), force_add=True)
    return to_config(_in_schema(plain, line, [Path(path)])[0])


# -- the command line ------------------------------------------------------------------------------------------------


def _read(argv: list[str], folders: list[Path]) -> CommandLine:
    groups, line = tree.groups(folders), CommandLine()
    refused: list[ConfigError] = []
    for text in argv:
        with collected(refused):
            _read_one(text, line, groups, folders)
    raise_all(refused)
    return line


def _read_one(text: str, line: CommandLine, groups: tuple[str, ...], folders: list[Path]) -> None:
    override = _parse(text)
    name = override.key_or_group
    if name in groups:
        if override.type != OverrideType.DEL:
            tree.check_choice(name, override.value(), folders)
        plus = "+" if override.type == OverrideType.ADD and name not in EMBEDDED else ""
        line.groups[name] = f"~{name}" if override.type == OverrideType.DEL else plus + text.lstrip("+")
    elif override.type == OverrideType.DEL:
        if name not in fields.by_key() and name not in keys.RENAMED:
            raise keys.unknown(f"~{name}", None, groups)
        line.defaults.append(keys.current_name(name))
    else:
        _add_value(line, override, text, groups)


def _parse(text: str) -> Override:
    try:
        override = OverridesParser.create().parse_override(text)
    except HydraException as error:
        hint = "special characters need quotes: key='\"...\"'"
        raise ConfigError(f"{text}: not an override (key=value, ~key): {_first_line(error)}; {hint}") from error
    if not override.key_or_group:
        raise ConfigError(f"{text}: not an override (key=value, ~key): there is no key")
    if override.is_sweep_override():
        raise ConfigError(problem(text, "several values", "one value", 'quote a value with commas: key="a,b"'))
    return override


def _add_value(line: CommandLine, override: Override, text: str, groups: tuple[str, ...]) -> None:
    key = override.key_or_group
    value = override.value()
    if keys.is_section(key):
        if not isinstance(value, dict):
            fix = f"nearest: {keys.nearest(f'{key}.{value}')}"
            raise ConfigError(problem(key, value, "a section, not a value", fix))
    elif not keys.exists(key) and key not in keys.RENAMED:
        if keys.is_settled(key, value):
            return
        raise keys.unknown(key, value, groups)
    written = text.split("=", 1)[1]
    current = keys.current_name(key)
    text_wanted = current in fields.by_key() and (_is_text(current) or fields.by_key()[current].type == "list[str]")
    if text_wanted and isinstance(value, bool | int | float):
        written = _quoted(written)  # 1e3, true: text all the same
    line.values[current] = f"++{keys.RENAMED.get(key, key)}={written}"


# -- Hydra -----------------------------------------------------------------------------------------------------------


def _hydra(config_name: str, folders: list[Path], line: CommandLine) -> tuple[DictConfig, dict[str, str]]:
    """The composed tree without a schema, and the choice of every group."""
    first = next(
        folder for folder in folders if (folder / f"{config_name}.yaml").is_file()
    )  # Hydra wants the root there
    others = [folder for folder in folders if folder != first]
    search = [f"hydra.searchpath=[{','.join(_quoted(f'file://{folder}') for folder in others)}]"] if others else []
    overrides = [*line.groups.values(), *line.values.values(), *search]
    GlobalHydra.instance().clear()
    try:
        with initialize_config_dir(str(first), version_base="1.3"):
            config = hydra_compose(config_name, overrides, return_hydra_config=True)
        chosen = OmegaConf.to_container(config.hydra.runtime.choices)
    except (HydraException, OmegaConfBaseException, yaml.YAMLError) as error:
        raise ConfigError(f"{config_name}: {_one_line(error)}") from error
    OmegaConf.set_struct(config, False)
    del config["hydra"]
    return config, chosen


def _not_embedded(plain: DictConfig) -> list[str]:
    """The groups of EMBEDDED whose model or data are somebody's own."""
    try:
        path = OmegaConf.select(plain, "actor_rollout_ref.model.path", default="")
        files = OmegaConf.select(plain, "data.train_files", default=[])
        named = {"model": [path], "task": [files] if isinstance(files, str) else list(files or [])}
    except OmegaConfBaseException as error:
        raise _unresolved(error) from error
    return [group for group, values in named.items() if any(v and not str(v).startswith(tree.BUILTIN) for v in values)]


# -- the schema ------------------------------------------------------------------------------------------------------


def _in_schema(plain: DictConfig, line: CommandLine, files: list[Path]) -> tuple[DictConfig, set[str]]:
    """Checks every key of `plain`, which came from `files` and the command line, carries renamed ones over, and merges
    into the schema. Returns the tree and the keys that were given. All refusals at once."""
    found = OmegaConf.to_container(plain, resolve=False)
    known: dict[str, Any] = {}
    renamed: dict[str, Any] = {}
    refused: list[ConfigError] = []
    for key, value in _flatten(found, ""):
        if keys.exists(key):
            known[key] = value
        elif key in keys.RENAMED:
            renamed[keys.current_name(key)] = value
        else:
            with collected(refused):
                _check_absent(key, value)
    known |= {key: value for key, value in renamed.items() if key not in line.values}
    for key in line.defaults:
        known = {k: v for k, v in known.items() if k != key and not k.startswith(f"{key}.")}
    typed = OmegaConf.structured(Config)
    for key, value in known.items():
        with collected(refused):
            _set(typed, key, _text_as_written(key, value, files))
    raise_all(refused)
    return typed, set(known)


def _check_absent(key: str, value: Any) -> None:
    """Raises ConfigError for a key that there is not, unless nothing depends on it."""
    if keys.is_section(key):
        if value is not None:  # a section without settings in it
            raise ConfigError(problem(key, value, "a section, not a value", f"nearest: {keys.nearest(key)}"))
    elif not keys.is_settled(key, value):
        raise keys.unknown(key, value)


def _text_as_written(key: str, value: Any, files: list[Path]) -> Any:
    """YAML reads off, 012, 1e3 and 12:30 as something else: where text is wanted, what the file says of it."""
    kind = fields.by_key()[key].type if key in fields.by_key() else ""  # "": inside a free-form dictionary
    if kind == "list[str]" and isinstance(value, list):
        if any(isinstance(item, bool | int | float) for item in value):
            raise ConfigError(problem(key, value, "a list of texts", "write its entries in quotes"))
        return value
    if not kind or not _is_text(key) or not isinstance(value, bool | int | float):
        return value
    texts = {text for file in files for text in tree.written(file, key) if _as_yaml(text) == value}
    if len(texts) != 1:
        raise ConfigError(problem(key, value, "text", f"write it in quotes: {key.rpartition('.')[2]}: '...'"))
    return texts.pop()


def _as_yaml(text: str) -> Any:
    try:
        read = OmegaConf.to_container(OmegaConf.create(f"a: {text}"), resolve=False)
    except yaml.YAMLError:  # text of another kind
        return None
    return read["a"] if isinstance(read, dict) else None


def _is_text(key: str) -> bool:
    return set(fields.by_key()[key].type.split(" | ")) <= {"str", "None"}


def _flatten(node: dict[str, Any], prefix: str) -> list[tuple[str, Any]]:
    """(key, value) down to the schema's keys; free-form dictionaries stay whole."""
    pairs: list[tuple[str, Any]] = []
    for name, value in node.items():
        key = f"{prefix}{name}"
        if isinstance(value, dict) and key not in fields.by_key():
            pairs.extend(_flatten(value, f"{key}."))
        else:
            pairs.append((key, value))
    return pairs


def _set(typed: DictConfig, key: str, value: Any) -> None:
    kind = fields.by_key()[key].type
    if kind.startswith("list[") and isinstance(value, str) and not value.startswith("${"):
        value = [value]
    if key.endswith("dtype") and isinstance(value, str):
        value = DTYPE_NAMES.get(value, value)
    try:
        OmegaConf.update(typed, key, value, merge=True)
    except OmegaConfBaseException as error:
        fix = "None is written null" if value == "None" else ""
        raise ConfigError(problem(key, value, _allowed(kind), fix)) from error


def _allowed(kind: str) -> str:
    names = {"int": "a whole number", "float": "a number", "bool": "true | false", "str": "text", "None": "null"}
    names |= {"list[str]": "a list of texts", "list[float]": "a list of numbers", "dict[str, Any]": "a mapping"}
    return " | ".join(names.get(part, part) for part in kind.split(" | "))


def to_config(composed: DictConfig) -> Config:
    """What `compose_tree` returned, with interpolations resolved and `~` expanded in paths."""
    try:
        config = OmegaConf.to_object(composed)
    except OmegaConfBaseException as error:
        raise _unresolved(error) from error
    for key in PATH_KEYS:
        _expand(config, key)
    config.actor_rollout_ref.model.trust_remote_code |= config.data.trust_remote_code
    config.data.train_files = [os.path.expanduser(f) for f in config.data.train_files]
    config.data.val_files = [os.path.expanduser(f) for f in config.data.val_files]
    return config


def _expand(config: Config, key: str) -> None:
    owner, _, name = key.rpartition(".")
    value = fields.get(config, key)
    if value is not None:
        setattr(fields.get(config, owner), name, os.path.expanduser(value))


def _escaped(value: Any) -> Any:
    """Text that looks like an interpolation stays text when it is read again."""
    if isinstance(value, dict):
        return {key: _escaped(item) for key, item in value.items()}
    if isinstance(value, list):
        return [_escaped(item) for item in value]
    if isinstance(value, str):  # backslashes before it count twice then
        return re.sub(r"(\\*)\$\{", r"\1\1\\${", value)
    return value


def _unresolved(error: OmegaConfBaseException) -> ConfigError:
    return ConfigError(f"{error.full_key}: {_first_line(error)}" if error.full_key else _first_line(error))


def _quoted(text: str) -> str:
    return "'" + text.replace("'", "\\'") + "'"


def _first_line(error: BaseException) -> str:
    return next((line.strip() for line in str(error).splitlines() if line.strip()), type(error).__name__)


def _one_line(error: BaseException) -> str:
    return " ".join(str(error).split())
