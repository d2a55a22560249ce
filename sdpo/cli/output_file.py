"""The file that a command writes at its end."""

from __future__ import annotations

from pathlib import Path

from sdpo.errors import ConfigError


def make_writable(path: Path, option: str) -> None:
    """Makes the folder. Called before the work, which takes minutes; ConfigError for a file that cannot be written."""
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        path.open("a").close()
    except OSError as error:
        raise ConfigError(f"{option} {path}: {error.strerror}") from error
