"""What a data set folder says about itself is somebody else's text: the files that it names must be its own.

Otherwise a README could have any file of this machine, or any address, read as training data.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any

from sdpo.errors import DataError

CARDS = ("README.md", ".huggingface.yaml")
_LEADS_OUT = re.compile(r"^[/~]|^[A-Za-z]:|\\|://|::|(^|/)\.\.(/|$)")  # absolute, a home, an address, a way up


def check_card(folder: Path, name: str) -> None:
    """Refuses configurations whose data files or data folder lie elsewhere; before `datasets` looks for them."""
    for card in CARDS:
        for config in _configurations(folder / card, name):
            for place in _texts([config.get("data_files"), config.get("data_dir")]):
                if _LEADS_OUT.search(place.strip()):
                    raise _refused(name, f"{card} names the data file {place!r}")


def check_files(folder: Path, files: Iterable[str], name: str) -> None:
    """Refuses files that are not in the folder, where links lead, too. Those of the hub's cache are links to blobs."""
    roots = [folder.resolve()]
    if folder.parent.name == "snapshots":
        roots.append(folder.parent.parent.resolve() / "blobs")
    for file in files:
        real = Path(file.rpartition("::")[2].removeprefix("file://")).resolve()
        if not any(real.is_relative_to(root) for root in roots):
            raise _refused(name, f"the data file {file!r} is {str(real)!r}")


def check_saved(folder: Path, name: str) -> None:
    """The same for a folder that `save_to_disk` has written."""
    try:
        listed = json.loads((folder / "state.json").read_text(encoding="utf-8"))["_data_files"]
        files = [file["filename"] for file in listed]
    except (OSError, ValueError, KeyError, TypeError) as error:
        raise DataError(f"{name}: not readable as a data set: state.json of {folder}: {error}") from error
    for file in files:
        if not isinstance(file, str) or _LEADS_OUT.search(file):
            raise _refused(name, f"state.json names the data file {file!r}")
    check_files(folder, [str(folder / file) for file in [*files, "dataset_info.json"]], name)


def _configurations(card: Path, name: str) -> Iterator[dict[str, Any]]:
    import yaml
    from huggingface_hub.repocard import RepoCard

    if not card.is_file():
        return
    try:
        text = card.read_text(encoding="utf-8")
        plain = card.suffix == ".yaml"
        found = yaml.safe_load(text) if plain else RepoCard(text, ignore_metadata_errors=True).data.to_dict()
    except (OSError, ValueError, yaml.YAMLError) as error:
        raise DataError(f"{name}: not readable as a data set: {card.name}: {' '.join(str(error).split())}") from error
    configs = found.get("configs") if isinstance(found, dict) else None
    for config in configs if isinstance(configs, list) else [configs]:
        if isinstance(config, dict):
            yield config


def _texts(value: Any) -> Iterator[str]:
    if isinstance(value, str):
        yield value
    elif isinstance(value, dict | list):
        for item in value.values() if isinstance(value, dict) else value:
            yield from _texts(item)


def _refused(name: str, what: str) -> DataError:
    return DataError(f"{name}: {what}, outside of the folder; a data set may only read its own files: copy it there")
