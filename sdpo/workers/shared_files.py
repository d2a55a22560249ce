"""A checkpoint or a model that other processes have written counts when this one sees all of it."""

from __future__ import annotations

import os
from collections.abc import Iterable
from functools import partial
from pathlib import Path

from sdpo.errors import CheckpointError, first_line
from sdpo.workers.checkpoint_reader import CheckpointReader
from sdpo.workers.seen import unseen, wait_until_seen


def check_shards(folders: Iterable[str], seconds: float) -> None:
    """Raises CheckpointError unless all that the ranks have saved in `folders` is seen by this process, in full: on a
    disk that only their machine has, a checkpoint could not be resumed."""
    for folder in folders:
        missing = wait_until_seen(partial(_unseen_shard, folder), seconds)
        if missing:
            raise CheckpointError(
                f"{missing} is not seen from the process that runs the training after {seconds:g} s "
                "(trainer.file_wait_s); is the run folder on a disk that all machines share?"
            )


def check_folder(folder: str, seconds: float) -> None:
    """Raises CheckpointError unless a folder that another process has written, and named when it was whole, is seen."""
    missing = wait_until_seen(lambda: unseen(Path(folder)), seconds)
    if missing:
        raise CheckpointError(f"{missing} is not seen here after {seconds:g} s (trainer.file_wait_s)")


def _unseen_shard(folder: str) -> str:
    """The first file of a saved state that is not there or too short; the listing is read anew, as network file systems
    remember what was not there."""
    try:
        sizes = {entry.name: entry.stat().st_size for entry in os.scandir(folder)}
        index = CheckpointReader(folder).read_metadata()
    except Exception as error:  # an index that is half there raises whatever its bytes happen to say
        return f"the index in {folder} ({first_line(error)})"
    for item in index.storage_data.values():
        if sizes.get(item.relative_path, -1) < item.offset + item.length:
            return f"the shard {item.relative_path} of rank {item.relative_path.split('_')[2]} in {folder}"
    return ""
