"""Places that a command writes to."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from sdpo.errors import DISK_ERRORS, ConfigError, OutputLost


@contextmanager
def writing(path: Path, option: str) -> Iterator[None]:
    """A place that cannot be written to is an error that names the option: OutputLost for a full disk."""
    try:
        yield
    except OSError as error:
        kind = OutputLost if error.errno in DISK_ERRORS else ConfigError
        raise kind(f"{option} {error.filename or path}: {error.strerror or error}") from error


def make_writable(path: Path, option: str) -> None:
    """Makes the folder of a file, before the work, which takes minutes. Raises ConfigError."""
    with writing(path, option):
        path.parent.mkdir(parents=True, exist_ok=True)
        path.open("a").close()
