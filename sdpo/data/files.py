"""Rows of parquet, JSON and JSON lines files, one at a time, and a parquet writer. No file has to fit in memory."""

from __future__ import annotations

import gzip
import json
import os
import zlib
from collections.abc import Iterable, Iterator, Mapping
from itertools import islice
from pathlib import Path
from typing import Any, TextIO

from sdpo.data.json_array import array_elements
from sdpo.data.long_integers import read_json
from sdpo.errors import DataError, problem

SUFFIXES = (".parquet", ".json", ".jsonl", ".json.gz", ".jsonl.gz")
READ_ROWS = 32  # parquet rows decoded at once; rows with tests can be megabytes
READ_BUFFER = 1 << 18  # bytes
LOOK = 1024  # characters read at once to find the first one
WRITE_ROWS = 1024  # rows of one row group
# Values between two looks at the size of a column's dictionary, which a reader holds in memory whole: by default none
# is taken within a row group, and texts that all differ, of any length, end up in it.
WRITE_BATCH = 16


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
        # Through a small buffer pages are read when their rows are due, and not a column at a time.
        with pyarrow.parquet.ParquetFile(path, pre_buffer=False, buffer_size=READ_BUFFER) as table:
            for batch in table.iter_batches(batch_size=READ_ROWS, use_threads=False):
                yield from batch.to_pylist()
    # A damaged page is an OSError, damaged text a UnicodeDecodeError.
    except (pyarrow.ArrowException, OSError, UnicodeDecodeError) as error:
        raise DataError(f"{path}: not a readable parquet file: {' '.join(str(error).split())}") from error


def _json_rows(path: Path) -> Iterator[Any]:
    """A JSON array of rows, or one row a line; which of them the first character tells, whatever the file's name."""
    opener = gzip.open if path.name.lower().endswith(".gz") else open
    try:
        with opener(path, "rt", encoding="utf-8-sig") as lines:
            if _first_character(lines) == "[":
                yield from array_elements(lines)
                return
            for number, line in enumerate(lines, 1):
                if line.strip():
                    yield _parse_line(line.lstrip("\ufeff"), f"{path} line {number}")
    except UnicodeDecodeError as error:
        raise DataError(f"{path}: not UTF-8 text: {error}") from error
    except (OSError, ValueError, zlib.error, EOFError) as error:  # no permission, and gzip's own faults, are OSError
        raise DataError(f"{path}: not readable as JSON: {error}") from error


def _first_character(file: TextIO) -> str:
    """The first that is not blank, "" when there is none; leaves the file at its start. Not by lines: an array may be
    a single one."""
    text = ""
    while not text and (read := file.read(LOOK)):
        text = read.lstrip()
    file.seek(0)
    return text[:1]


def _parse_line(line: str, where: str) -> Any:
    try:
        return read_json(line)
    except json.JSONDecodeError as error:
        raise DataError(
            f"{where}: not valid JSON: {error}; write one object a line, or one array of objects"
        ) from error
    except RecursionError as error:
        raise DataError(f"{where}: nested too deeply") from error


def write_parquet(rows: Iterable[Mapping[str, Any]], path: Path) -> int:
    """Write rows (see `rows.to_row`), replacing the file in one move; columns that are null in every row are left out.

    `rows` is read twice, first for the schema and then to write, a row group at a time: give a list, or an object that
    can be iterated again. Returns the number of rows. Raises DataError when there is none, or when a field has values
    of several types.
    """
    import pyarrow
    import pyarrow.parquet

    if iter(rows) is rows:
        raise TypeError("write_parquet reads the rows twice; an iterator can be read once")
    try:
        schema, count = _schema_of(rows, path)
        path.parent.mkdir(parents=True, exist_ok=True)
        part = path.with_name(path.name + f".part{os.getpid()}")
        with pyarrow.parquet.ParquetWriter(part, schema, write_batch_size=WRITE_BATCH) as writer:
            for group in _groups(rows):
                writer.write_table(
                    pyarrow.Table.from_pylist([{n: row.get(n) for n in schema.names} for row in group], schema)
                )
    except (pyarrow.ArrowInvalid, pyarrow.ArrowTypeError) as error:
        raise DataError(f"{path}: a field has values of several types: {error}; store it as JSON text") from error
    part.replace(path)
    return count


def _schema_of(rows: Iterable[Mapping[str, Any]], path: Path) -> tuple[Any, int]:
    """The schema that all rows fit, without the columns that are always null, and the number of rows."""
    import pyarrow

    schema, count = None, 0
    for group in _groups(rows):
        count += len(group)
        own = pyarrow.Table.from_pylist([dict(row) for row in group]).schema
        schema = own if schema is None else pyarrow.unify_schemas([schema, own], promote_options="permissive")
    if schema is None:
        raise DataError(f"{path}: no rows to write")
    return pyarrow.schema([field for field in schema if not pyarrow.types.is_null(field.type)]), count


def _groups(rows: Iterable[Mapping[str, Any]]) -> Iterator[list[Mapping[str, Any]]]:
    left = iter(rows)
    while group := list(islice(left, WRITE_ROWS)):
        yield group
