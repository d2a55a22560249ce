"""One vocabulary of errors. A message names the field, what was given, what is allowed, and what to do."""

from __future__ import annotations

import errno
from collections.abc import Iterator
from contextlib import contextmanager

DISK_ERRORS = (errno.ENOSPC, errno.EDQUOT, errno.EIO, errno.EROFS)  # of an OSError: nothing can be written any more


class SdpoError(Exception):
    """Base of every error that a user can cause or repair; `main` prints it as one line and exits with `exit_code`."""

    exit_code = 1


class ConfigError(SdpoError):
    """A setting, or a combination of settings, that cannot be run. Raised before any model is loaded."""

    exit_code = 2


class DataError(SdpoError):
    """A file or a row that cannot be used; the message names the file and the row number (from 1)."""

    exit_code = 3


class ModelError(SdpoError):
    """A model folder, tokenizer or template that cannot be used."""

    exit_code = 4


class CheckpointError(SdpoError):
    """A checkpoint that is missing, incomplete or does not belong to this run."""

    exit_code = 5


class GradingError(SdpoError):
    """The grader itself failed (not the answer it was given) after its retry budget."""

    exit_code = 6


class SandboxUnavailable(GradingError):
    """No isolation level can be made on this machine and `allow_unsafe` is off."""


class RolloutError(SdpoError):
    """The inference engine died or answered with weights of another policy version."""

    exit_code = 7


class TransferError(RolloutError):
    """Weights that are streamed did not arrive: a partner is gone, or silent for too long."""


class OutputLost(SdpoError):
    """Standard output, or a file that was asked for, that cannot be written any further."""

    exit_code = 8


class ClusterError(SdpoError):
    """Ray does not start, or a worker process died."""

    exit_code = 9


class Refusals(ConfigError):
    """Several at once: a line for each."""

    def __init__(self, refused: list[ConfigError]) -> None:
        super().__init__("\n".join(map(str, refused)))
        self.refused = refused


@contextmanager
def collected(refused: list[ConfigError]) -> Iterator[None]:
    """A ConfigError inside goes to the list, so that others are found too."""
    try:
        yield
    except Refusals as several:
        refused += several.refused
    except ConfigError as error:
        refused.append(error)


def raise_all(refused: list[ConfigError]) -> None:
    """Raises what was collected, if anything was."""
    if refused:
        raise refused[0] if len(refused) == 1 else Refusals(refused)


def problem(field: str, got: object, allowed: str, fix: str | None = None) -> str:
    """One-line message in the house form.

    >>> problem("algorithm.alpha", 1.5, "a number in [0, 1]", "use 0.5 for the symmetric divergence")
    'algorithm.alpha: got 1.5; allowed: a number in [0, 1]; use 0.5 for the symmetric divergence'
    """
    text = f"{field}: got {got!r}; allowed: {allowed}"
    return f"{text}; {fix}" if fix else text


def first_line(error: BaseException) -> str:
    """What an exception of a library says, as one line."""
    return (str(error).strip().splitlines() or [type(error).__name__])[0]
