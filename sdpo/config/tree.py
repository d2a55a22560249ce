"""The YAML tree: which roots and config groups there are, and what its files say letter by letter."""

from __future__ import annotations

import difflib
from pathlib import Path
from typing import Any

import yaml

from sdpo.errors import ConfigError, problem

BUILTIN = "builtin://"
YAML_FOLDER = Path(__file__).parent / "yaml"


def search_folders(own: str | None) -> list[Path]:
    """The user's folder, if any, and the built-in one."""
    if own is None:
        return [YAML_FOLDER]
    folder = Path(own).expanduser().resolve()
    if not folder.is_dir():
        raise ConfigError(problem("--config-dir", own, "an existing folder with YAML files"))
    return [folder, YAML_FOLDER]


def roots(folders: list[Path]) -> tuple[str, ...]:
    return _stems(folders, "")


def groups(folders: list[Path]) -> tuple[str, ...]:
    """Folders with YAML files in them, e.g. `model` and `task`."""
    found = {p.parent.relative_to(folder).as_posix() for folder in folders for p in folder.glob("*/**/*.yaml")}
    return tuple(sorted(found))


def choices(group: str, folders: list[Path]) -> tuple[str, ...]:
    return _stems(folders, group)


def description(name: str, folder: Path = YAML_FOLDER) -> str:
    """The first comment of a YAML file that is not a package directive."""
    lines = (folder / f"{name}.yaml").read_text(encoding="utf-8").splitlines()
    comments = (line.lstrip("# ").strip() for line in lines if line.startswith("#") and "@package" not in line)
    return next(comments, "")


def check_root(name: str, folders: list[Path]) -> None:
    _check("--config-name", name, roots(folders))


def check_choice(group: str, name: object, folders: list[Path]) -> None:
    """Raises ConfigError that lists the choices."""
    if name is None:
        raise ConfigError(problem(group, "null", " | ".join(choices(group, folders)), f"~{group} leaves it out"))
    _check(group, str(name).removesuffix(".yaml"), choices(group, folders))


def written(file: Path, key: str) -> list[str]:
    """What a YAML file says of a key, letter by letter, whatever group the file belongs to."""
    try:
        found: Any = yaml.load(file.read_text(encoding="utf-8"), yaml.BaseLoader)
    except (OSError, UnicodeDecodeError, yaml.YAMLError):  # read before, or not the one that is asked for
        return []
    parts, texts = key.split("."), []
    for start in range(len(parts)):
        inside = found
        for part in parts[start:]:
            inside = inside.get(part) if isinstance(inside, dict) else None
        texts += [inside] if isinstance(inside, str) else []
    return texts


def _check(what: str, name: str, known: tuple[str, ...]) -> None:
    if name not in known:
        close = difflib.get_close_matches(name, known, n=1)
        raise ConfigError(problem(what, name, " | ".join(known), f"nearest: {close[0]}" if close else ""))


def _stems(folders: list[Path], group: str) -> tuple[str, ...]:
    return tuple(sorted({p.stem for folder in folders for p in (folder / group).glob("*.yaml")}))
