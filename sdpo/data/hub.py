"""Rows of Hugging Face data sets: `hub://OWNER/NAME@COMMIT:[CONFIG/]SPLIT`, or a folder, `FOLDER:[CONFIG/]SPLIT`.

A hub data set is downloaded at its commit (or found in the hub's cache) and then is a folder like any other; rows are
streamed from its files.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

from sdpo.data import folder_contents
from sdpo.errors import DataError, problem

HUB = "hub://"
HUB_FORM = f"{HUB}OWNER/NAME@COMMIT:SPLIT or ...:CONFIG/SPLIT, the commit in 40 hexadecimal digits"
_HUB_NAME = re.compile(
    r"hub://(?P<id>[\w.-]+/[\w.-]+)(?:@(?P<commit>[^:]*))?(?::(?:(?P<config>[^:/]+)/)?(?P<split>[^:/]+))?"
)
DATA_FILES = (
    "*.parquet",
    "*.json",
    "*.jsonl",
    "*.json.gz",
    "*.jsonl.gz",
    "*.jsonl.zst",
    "*.csv",
    "*.arrow",
    "README.md",
)


def read_hub(name: str, field: str) -> Iterator[dict[str, Any]]:
    """The rows of `hub://...`. Raises DataError: another form, no commit, not to be had, unknown split, unreadable."""
    match = _HUB_NAME.fullmatch(name)
    if match is None:
        raise DataError(problem(field, name, HUB_FORM))
    if not re.fullmatch(r"[0-9a-f]{40}", match["commit"] or ""):
        fix = f"pin the data: the commits are listed at https://huggingface.co/datasets/{match['id']}/commits/main"
        raise DataError(problem(field, name, HUB_FORM, fix))
    folder = download(match["id"], match["commit"], DATA_FILES, field)
    yield from _rows(folder, match["config"], match["split"], name, field)


def hub_label(name: str) -> str:
    """What a row's id says of its source: "gsm8k-train"."""
    match = _HUB_NAME.fullmatch(name)
    return "-".join(filter(None, [match["id"].split("/")[1], match["split"]])) if match else name


def split_of_folder(name: str) -> tuple[Path, str | None, str | None] | None:
    """(folder, configuration, split) of `FOLDER` or `FOLDER:[CONFIG/]SPLIT`; None when there is no such folder."""
    folder, colon, rest = name.rpartition(":")
    if colon and Path(folder).expanduser().is_dir():
        config, _, split = rest.rpartition("/")
        return Path(folder).expanduser(), config or None, split
    whole = Path(name).expanduser()
    return (whole, None, None) if whole.is_dir() else None


def read_folder(name: str, field: str) -> Iterator[dict[str, Any]]:
    """The rows of a folder: one written by `save_to_disk`, or data files as hub repositories lay them out."""
    found = split_of_folder(name)
    if found is None:
        raise DataError(problem(field, name, "an existing folder", "check the path"))
    folder, config, split = found
    yield from _rows(folder, config, split, name, field)


def download(hub_id: str, revision: str | None, patterns: Sequence[str], field: str) -> Path:
    """The folder of a snapshot; its name is the commit. Raises DataError when it cannot be had."""
    import httpx
    from huggingface_hub import is_offline_mode, snapshot_download

    try:
        folder = snapshot_download(
            hub_id,
            repo_type="dataset",
            revision=revision,
            allow_patterns=list(patterns),
            local_files_only=is_offline_mode(),
        )
    except (OSError, ValueError, httpx.HTTPError) as error:
        text = " ".join(str(error).split())
        raise DataError(problem(field, hub_id, "a data set that the hub or its cache has", text[:300])) from error
    return Path(folder)


def _rows(folder: Path, config: str | None, split: str | None, name: str, field: str) -> Iterator[dict[str, Any]]:
    try:
        data = _open(folder, config, split, name, field)
        if data.features:  # pictures and sounds would be decoded, from wherever a row says they are
            data = data.decode(False)
        empty = True
        for row in data:
            empty = False
            yield dict(row)
    except DataError:
        raise
    except Exception as error:  # from a library that reads a dozen formats, whatever a stranger's files say
        text = " ".join(str(error).split()) or type(error).__name__
        raise DataError(f"{name}: not readable as a data set: {text[:300]}") from error
    if empty:
        raise DataError(f"{name}: the data set holds no rows")


def _open(folder: Path, config: str | None, split: str | None, name: str, field: str) -> Any:
    import datasets

    if (folder / "dataset_dict.json").is_file():
        splits = sorted(path.parent.name for path in folder.glob("*/state.json"))
        return _saved(folder / _one_of(splits, split, name, field), name)
    if (folder / "state.json").is_file():
        if split is not None:
            raise DataError(problem(field, name, str(folder), "this folder is one split: leave :SPLIT out"))
        return _saved(folder, name)
    folder_contents.check_card(folder, name)
    configs = datasets.get_dataset_config_names(str(folder))
    if config is None and len(configs) > 1:
        raise DataError(problem(field, name, " or ".join(f"...:{one}/SPLIT" for one in configs)))
    if config is not None and config not in configs:
        raise DataError(problem(f"{field}: configuration", config, ", ".join(configs)))
    builder = datasets.load_dataset_builder(str(folder), config)
    files = [str(file) for files in (builder.config.data_files or {}).values() for file in files]
    folder_contents.check_files(folder, files, name)
    streams = builder.as_streaming_dataset()
    return streams[_one_of(sorted(streams), split, name, field)]


def _saved(folder: Path, name: str) -> Any:
    import datasets

    folder_contents.check_saved(folder, name)
    return datasets.load_from_disk(str(folder)).to_iterable_dataset()


def _one_of(splits: list[str], split: str | None, name: str, field: str) -> str:
    if split is None and len(splits) == 1:
        return splits[0]
    if split not in splits:
        raise DataError(problem(field, name, " or ".join(f"...:{one}" for one in splits) or "a folder with data"))
    return split
