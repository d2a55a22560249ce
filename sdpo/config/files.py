"""Do the files that the configuration names exist? Cheap checks only: nothing is parsed or downloaded."""

from __future__ import annotations

import importlib.util
import logging
import math
import re
from pathlib import Path

from sdpo.config.schema import Config
from sdpo.config.tree import BUILTIN
from sdpo.errors import ConfigError, problem

log = logging.getLogger(__name__)

BUILTIN_MODELS = tuple(f"builtin://tiny/{setting}" for setting in ("hard", "easy", "rare", "unseen"))
BUILTIN_DATA = tuple(f"builtin://programs/{split}/{part}" for split in ("hard", "easy") for part in ("train", "test"))
_HUB_ID = re.compile(r"[\w.-]+(/[\w.-]+)?")
HUB = "hub://"
# Files and folders, where they are such, that the processes of a run read whenever they like, on whichever machine.
READ = (
    "actor_rollout_ref.model.path",
    "actor_rollout_ref.model.tokenizer_path",
    "actor_rollout_ref.model.lora_adapter_path",
    "actor_rollout_ref.rollout.environment.path",
    "custom_reward_function.path",
)
_HUB_DATA = re.compile(r"hub://[\w.-]+/[\w.-]+@[0-9a-f]{40}(:([^:/]+/)?[^:/]+)?")
_FIRST_BYTES = 4096
# Sources of sdpo.cli.data prepare, and whether they come from the hub.
PREPARED = {
    **dict.fromkeys(("sciknoweval", "livecodebench", "gsm8k", "math", "humaneval", "humaneval_plus", "mbpp"), True),
    **dict.fromkeys(("mbpp_plus", "kodcode", "mmlu_pro", "gpqa"), True),
    "tooluse": False,
}


def check_model(config: Config) -> None:
    model = config.actor_rollout_ref.model
    if not model.path:
        fix = "set it: a Hugging Face folder or hub id, e.g. Qwen/Qwen3-8B"
        raise ConfigError(problem("actor_rollout_ref.model.path", model.path, "a model", fix))
    _check_model_path("actor_rollout_ref.model.path", model.path, "config.json")
    if model.tokenizer_path is not None:
        _check_model_path("actor_rollout_ref.model.tokenizer_path", model.tokenizer_path, "tokenizer_config.json")
    if not model.path.startswith(BUILTIN):
        return
    if any(not f.startswith(BUILTIN) for f in config.data.train_files):
        log.warning("%s knows only the words of the built-in task; set actor_rollout_ref.model.path", model.path)
    elif any((f.split("/")[3] == "easy") != (model.path.split("/")[3] == "easy") for f in config.data.train_files):
        # (The problems of `rare` and `unseen` are those of `hard`.)
        log.warning("%s was made for another task than %s", model.path, ", ".join(config.data.train_files))


def check_data(config: Config) -> None:
    data = config.data
    if not data.train_files and not config.trainer.val_only:
        fix = "set data.train_files, or choose a task, e.g. task=programs_hard"
        raise ConfigError(problem("data.train_files", [], "at least one file", fix))
    for key, names in (("data.train_files", data.train_files), ("data.val_files", data.val_files)):
        for name in names:
            _check_data_file(key, name)
    if data.val_files:
        return
    if config.trainer.val_only:
        raise ConfigError(problem("data.val_files", [], "at least one file with trainer.val_only=true"))
    log.warning("data.val_files is empty: the run is not validated")


def check_reward_function(config: Config) -> None:
    settings = config.custom_reward_function
    path = settings.path
    if path is None:
        for name in ("weights", "data_sources", "reward_kwargs"):
            if getattr(settings, name):
                fix = "set custom_reward_function.path to the file with the function"
                raise ConfigError(problem(f"custom_reward_function.{name}", getattr(settings, name), "none", fix))
        return
    if not (path.endswith(".py") and Path(path).is_file()):
        raise ConfigError(problem("custom_reward_function.path", path, "an existing Python file"))
    for name, weight in settings.weights.items() or [(settings.name, 1.0)]:
        if not name.isidentifier():
            raise ConfigError(problem("custom_reward_function.name", name, "the name of a function in that file"))
        if isinstance(weight, bool) or not isinstance(weight, int | float) or not math.isfinite(weight):
            raise ConfigError(problem(f"custom_reward_function.weights.{name}", weight, "a number"))


def check_grading(config: Config) -> None:
    grading = config.grading
    if grading.backend == "http" and not grading.service_url:
        raise ConfigError(
            problem("grading.service_url", None, "the address of the service", "needed by grading.backend=http")
        )
    if grading.tool_parser not in ("auto", "none") and importlib.util.find_spec("vllm") is None:
        fix = "install vLLM, whose parsers these are"
        raise ConfigError(problem("grading.tool_parser", grading.tool_parser, "auto | none without vLLM", fix))
    fields = ("headline", "input", "expected", "got")
    try:
        grading.feedback_template.format(**dict.fromkeys(fields, ""))
    except (KeyError, IndexError, ValueError) as error:
        allowed = "a text with the fields " + ", ".join(f"{{{name}}}" for name in fields)
        raise ConfigError(problem("grading.feedback_template", grading.feedback_template, allowed)) from error


def check_resume(config: Config) -> None:
    trainer = config.trainer
    path = trainer.resume_from_path
    if trainer.resume_mode != "resume_path":
        if path is not None:
            allowed = f"null with resume_mode={trainer.resume_mode}"
            fix = "set trainer.resume_mode=resume_path to start from it"
            raise ConfigError(problem("trainer.resume_from_path", path, allowed, fix))
        return
    if path is None:
        fix = "set it to a step folder, or use trainer.resume_mode=auto"
        raise ConfigError(problem("trainer.resume_from_path", None, "a folder with resume_mode=resume_path", fix))
    if not Path(path).is_dir():
        raise ConfigError(problem("trainer.resume_from_path", path, "an existing step folder", "check the path"))


def _check_model_path(key: str, path: str, wanted: str) -> None:
    if path.startswith(BUILTIN):
        if path not in BUILTIN_MODELS:
            raise ConfigError(problem(key, path, " | ".join(BUILTIN_MODELS)))
        return
    folder = Path(path)
    if folder.is_dir():
        if not (folder / wanted).is_file():
            raise ConfigError(problem(key, path, f"a folder with {wanted}", "is it a Hugging Face model folder?"))
    elif folder.exists():
        raise ConfigError(problem(key, path, "a folder, not a file"))
    elif path.startswith((".", "/")) or not _HUB_ID.fullmatch(path):
        raise ConfigError(problem(key, path, "an existing folder or a hub id", "check the path"))


def _check_data_file(key: str, name: str) -> None:
    if name.startswith(BUILTIN):
        if name not in BUILTIN_DATA:
            raise ConfigError(problem(key, name, " | ".join(BUILTIN_DATA)))
        return
    if name.startswith(HUB):
        if not _HUB_DATA.fullmatch(name):
            form = f"{HUB}OWNER/NAME@COMMIT:SPLIT or ...:CONFIG/SPLIT, the commit in 40 hexadecimal digits"
            raise ConfigError(problem(key, name, form, "a branch would change under the run: pin a commit"))
        return
    path = Path(name)
    if any(folder.is_dir() for folder in (path, Path(name.rpartition(":")[0] or name))):
        return  # a data set that `datasets` reads
    if not path.is_file():
        fix = "there is no such file; check the path"
        source = next((part for part in path.parts[:-1] if part in PREPARED), None)
        if source and path.suffix == ".parquet":
            folder = Path(*path.parts[: path.parts.index(source) + 1])
            origin = "hub" if PREPARED[source] else "DOWNLOADED_FOLDER"
            fix = f"make it: python -m sdpo.cli.data prepare {source} {origin} {folder}"
        raise ConfigError(problem(key, name, "an existing file", fix))
    with path.open("rb") as file:
        start = file.read(_FIRST_BYTES)
    if not start.strip():
        raise ConfigError(problem(key, name, "a file with rows", "the file is empty"))
