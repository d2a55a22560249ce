"""Rows of parquet, JSON and JSON lines files, and a parquet writer. Only JSON arrays must fit in memory."""

from __future__ import annotations

import gzip
import json
import os
from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path
from typing import Any

from sdpo.errors import DataError, problem

SUFFIXES = (".parquet", ".json", ".jsonl", ".json.gz", ".jsonl.gz")


def suffix_of(path: Path) -> str | None:
    """The entry of SUFFIXES that the name ends with, in any case."""
    return next((suffix for suffix in SUFFIXES if path.name.lower().endswith(suffix)), None)


def stem_of(path: Path) -> str:
    """The name without its suffix: "HumanEval" for HumanEval.jsonl.gz."""
    suffix = suffix_of(path)
    return path.name[: -len(suffix)] if suffix else path.stem


def is_table(path: Path) -> bool:
    """Whether the format gives all rows one schema."""
    return suffix_of(path) == ".parquet"


def read_rows(path: Path, field: str = "file") -> Iterator[dict[str, Any]]:
    """The rows in order. Raises DataError for a file that is missing, unreadable, of another kind, or empty.

    `field` is the setting that named the file, for the messages.
    """
    if not path.exists():
        raise DataError(problem(field, str(path), "an existing file", "check the path"))
    suffix = suffix_of(path)
    if path.is_dir() or suffix is None:
        raise DataError(problem(field, str(path), f"a file that ends in {', '.join(SUFFIXES)}"))
    count = 0
    for count, row in enumerate(_parquet_rows(path) if suffix == ".parquet" else _json_rows(path), 1):
        if not isinstance(row, dict):
            raise DataError(f"{path} row {count}: got {type(row).__name__}; a row must be an object with named fields")
        yield row
    if not count:
        raise DataError(f"{path}: the file holds no rows")


def _parquet_rows(path: Path) -> Iterator[Any]:
    import pyarrow
    import pyarrow.parquet

    try:
        with pyarrow.parquet.ParquetFile(path) as table:
            for batch in table.iter_batches(batch_size=1024):
                yield from batch.to_pylist()
    except pyarrow.ArrowException as error:
        raise DataError(f"{path}: not a readable parquet file: {error}") from error


def _json_rows(path: Path) -> Iterator[Any]:
    """A JSON array of rows, or one row a line; which of them the first character tells, whatever the file's name."""
    opener = gzip.open if path.name.lower().endswith(".gz") else open
    try:
        with opener(path, "rt", encoding="utf-8") as lines:
            first = next((line for line in lines if line.strip()), "")
            lines.seek(0)
            if first.lstrip("\ufeff \t").startswith("["):
                yield from json.loads(lines.read().lstrip("\ufeff"))
                return
            for number, line in enumerate(lines, 1):
                if line.strip():
                    yield _parse_line(line.lstrip("\ufeff"), f"{path} line {number}")
    except UnicodeDecodeError as error:
        raise DataError(f"{path}: not UTF-8 text: {error}") from error
    except (json.JSONDecodeError, gzip.BadGzipFile, EOFError) as error:
        raise DataError(f"{path}: not readable as JSON: {error}") from error


def _parse_line(line: str, where: str) -> Any:
    try:
        return json.loads(line)
    except json.JSONDecodeError as error:
        raise DataError(
            f"{where}: not valid JSON: {error}; write one object a line, or one array of objects"
        ) from error


def write_parquet(rows: Iterable[Mapping[str, Any]], path: Path) -> int:
    """Write rows (see `rows.to_row`), replacing the file in one move; columns that are null in every row are left out.

    Returns the number of rows. Raises DataError when there is none, or when a field has values of several types.
    """
    import pyarrow
    import pyarrow.parquet

    listed = [dict(row) for row in rows]
    if not listed:
        raise DataError(f"{path}: no rows to write")
    columns = [name for name in listed[0] if any(row.get(name) is not None for row in listed)]
    try:
        table = pyarrow.Table.from_pylist([{name: row.get(name) for name in columns} for row in listed])
    except (pyarrow.ArrowInvalid, pyarrow.ArrowTypeError) as error:
        raise DataError(f"{path}: a field has values of several types: {error}; store it as JSON text") from error
    path.parent.mkdir(parents=True, exist_ok=True)
    part = path.with_name(path.name + f".part{os.getpid()}")
    pyarrow.parquet.write_table(table, part)
    part.replace(path)
    return len(listed)
