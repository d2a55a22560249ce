"""Convert a source's files to parquet, with a manifest that says what came from where."""

from __future__ import annotations

import csv
import hashlib
import json
import re
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from sdpo import __version__
from sdpo.data.files import SUFFIXES, read_rows, stem_of, write_parquet
from sdpo.data.hub import download
from sdpo.data.prepare import (
    gpqa,
    gsm8k,
    humaneval,
    kodcode,
    livecodebench,
    mathematics,
    mbpp,
    mmlu_pro,
    sciknoweval,
    tooluse,
)
from sdpo.data.prepare.divide import StoredRows, by_questions, by_tests
from sdpo.data.prepare.source import Division, Source
from sdpo.data.rows import to_prompt, to_row
from sdpo.data.store import PromptStore
from sdpo.data.window import DateWindow
from sdpo.errors import DataError, problem
from sdpo.records import Prompt

SOURCES: dict[str, Source] = {
    source.name: source
    for source in (
        sciknoweval.SOURCE,
        tooluse.SOURCE,
        livecodebench.SOURCE,
        gsm8k.SOURCE,
        mathematics.SOURCE,
        humaneval.SOURCE,
        humaneval.PLUS,
        mbpp.SOURCE,
        mbpp.PLUS,
        kodcode.SOURCE,
        mmlu_pro.SOURCE,
        gpqa.SOURCE,
    )
}
SOURCE_SUFFIXES = (*SUFFIXES, ".csv")
# A split's name, alone or with the number of a shard: train, test6, train-00000-of-00002, test-00000-of-00001-5a9bc0ff.
_SPLIT_FILE = re.compile(r"(?P<split>train|validation|test)(?:\d*|-\d+-of-\d+(?:-\w+)?)")
_FIELD_LIMIT = 1 << 24  # characters of one CSV field; explanations are longer than the module's default


@dataclass(frozen=True)
class Selection:
    """Which rows go where.

    division: "source" keeps the publisher's split, "questions" and "tests" divide every split anew; None: as the source
    says, or by question when a train fraction is given.
    train_fraction: share of the questions, or of each question's tests, for training; None: 0.9 and 0.5.
    window: keep only rows with a date in it, for sources with a date field.
    """

    train_fraction: float | None = None
    seed: int = 0
    window: DateWindow = DateWindow()
    division: Division | None = None


@dataclass
class Prepared:
    """Rows written per file (relative to the output folder), and what was left out."""

    rows: dict[str, int] = field(default_factory=dict)
    dropped: list[dict[str, object]] = field(default_factory=list)  # unusable: {"file", "row", "why"}
    outside_window: int = 0
    not_selected: int = 0  # of another kind than this set is made of
    source_files: list[dict[str, object]] = field(default_factory=list)  # {"file", "sha256", "rows"}


@dataclass(frozen=True)
class Origin:
    """Where the files were read: a folder or file, or a snapshot of the hub."""

    path: Path
    hub_id: str | None = None
    revision: str | None = None  # commit of the snapshot


def prepare(
    name: str, source: Path | None, out_dir: Path, selection: Selection = Selection(), revision: str | None = None
) -> Prepared:
    """Write OUT_DIR/.../SPLIT.parquet and OUT_DIR/manifest.json from the files below `source` (or that one file), or
    with None from the hub at `revision` (a commit, tag or branch; the manifest names the commit).

    A file named after a split, with or without a shard number, gives that split, any other name gives test; folders are
    kept. Unusable rows are dropped, counted and listed. Raises DataError when nothing is left or the name is unknown.
    """
    known = _known_source(name, selection)
    if source is not None and revision is not None:
        raise DataError(problem("revision", revision, f"one of the hub; {source} is read as it is", "leave it out"))
    origin = _from_hub(known, revision) if source is None else Origin(source)
    if origin.path.is_dir() and out_dir.resolve().is_relative_to(origin.path.resolve()):
        raise DataError(
            problem("output folder", str(out_dir), f"one outside of {origin.path}, which is read as a whole")
        )
    prepared = Prepared()
    stores = _convert(known, origin.path, selection.window, prepared)
    if not stores:
        raise DataError(f"{origin.path}: no row can be used as {name} ({_why_nothing_is_left(prepared)})")
    for (folder, split), store in stores.items():
        for part, rows in _divide(store, split, known, selection).items():
            target = str(Path(folder) / f"{part}.parquet")
            if target in prepared.rows:
                raise DataError(f"{target}: made from several splits; prepare the files one by one")
            prepared.rows[target] = write_parquet(rows, out_dir / target)
    _write_manifest(known, out_dir, origin, prepared, selection)
    return prepared


def _known_source(name: str, selection: Selection) -> Source:
    if name not in SOURCES:
        raise DataError(problem("data set", name, ", ".join(SOURCES)))
    if selection.train_fraction is not None and not 0 < selection.train_fraction < 1:
        raise DataError(problem("train fraction", selection.train_fraction, "a number between 0 and 1"))
    if selection.train_fraction is not None and selection.division == "source":
        allowed = "none with the publisher's split"
        raise DataError(problem("train fraction", selection.train_fraction, allowed, "divide by questions or tests"))
    if selection.window != DateWindow() and SOURCES[name].date_field is None:
        raise DataError(f"{name}: its rows have no dates; leave the window of dates out")
    return SOURCES[name]


def _from_hub(source: Source, revision: str | None) -> Origin:
    if source.hub is None:
        raise DataError(
            f"{source.name}: not on the hub in this form; download it from {source.origin} and name the folder"
        )
    snapshot = download(source.hub.id, revision, source.hub.patterns, source.name)
    return Origin(snapshot / source.hub.folder, source.hub.id, snapshot.name)


def _convert(source: Source, path: Path, window: DateWindow, prepared: Prepared) -> dict[tuple[str, str], PromptStore]:
    """Prompts by (folder, split)."""
    stores: dict[tuple[str, str], PromptStore] = {}
    first: dict[tuple[str, str], Path] = {}
    root = path if path.is_dir() else path.parent
    for file in _source_files(path):
        split, named = _split_of(file)
        folder = file.parent.relative_to(root).as_posix()
        other = first.setdefault((folder, split), file)
        if source.place is None and other != file and not (named and stem_of(other) != stem_of(file)):
            raise DataError(f"{file}: a second file for {split}.parquet; prepare the files one by one")
        _convert_file(source, file, root, (folder, split), window, prepared, stores)
    return stores


def _source_files(source: Path) -> list[Path]:
    if source.is_file():
        return [source]
    found = sorted(path for path in source.rglob("*") if path.is_file() and path.name.lower().endswith(SOURCE_SUFFIXES))
    if not found:
        allowed = f"a file, or a folder with files, in {', '.join(SOURCE_SUFFIXES)}"
        raise DataError(problem("source", str(source), allowed))
    return found


def _split_of(file: Path) -> tuple[str, bool]:
    """The split a file belongs to, and whether its name says so."""
    match = _SPLIT_FILE.fullmatch(stem_of(file))
    return (match["split"], True) if match else ("test", False)


def _convert_file(
    source: Source,
    path: Path,
    root: Path,
    place: tuple[str, str],
    window: DateWindow,
    prepared: Prepared,
    stores: dict[tuple[str, str], PromptStore],
) -> None:
    number, before = 0, len(prepared.dropped)
    for number, row in enumerate(_source_rows(path), 1):
        try:
            if source.selects is not None and not source.selects(row):
                prepared.not_selected += 1
                continue
            if source.date_field is not None and not window.holds(row, source.date_field):
                prepared.outside_window += 1
                continue
            own = source.place(row, *place) if source.place else place
            prompt = source.convert(row, own[1])
            _check_loads(prompt)
        except DataError as error:
            prepared.dropped.append({"file": str(path.relative_to(root)), "row": number, "why": str(error)})
            continue
        stores.setdefault(own, PromptStore()).append(prompt)
    unusable = prepared.dropped[before:]
    if len(unusable) == number:  # another format; rows outside of the window or of another kind are no fault of a file
        why = unusable[0]["why"] if unusable else "it holds none"
        raise DataError(f"{path}: no row can be used as {source.name} ({why})")
    prepared.source_files.append({"file": str(path.relative_to(root)), "sha256": _sha256(path), "rows": number})


def _check_loads(prompt: Prompt) -> None:
    """What is written must load. Raises DataError."""
    row = to_row(prompt)
    to_prompt(row, "", "converted")
    try:
        json.dumps(row, ensure_ascii=False, default=str).encode()
    except UnicodeEncodeError as error:
        raise DataError("a text holds half of a surrogate pair, which no file takes") from error


def _why_nothing_is_left(prepared: Prepared) -> str:
    reasons = {
        "outside of the window of dates": prepared.outside_window,
        "of another kind than this set is made of": prepared.not_selected,
        "unusable": len(prepared.dropped),
    }
    left_out = {why: rows for why, rows in reasons.items() if rows}
    if len(left_out) == 1:
        return f"all rows are {next(iter(left_out))}"
    return ", ".join(f"{rows} rows {why}" for why, rows in left_out.items())


def _source_rows(path: Path) -> Iterator[dict[str, Any]]:
    if path.suffix.lower() != ".csv":
        yield from read_rows(path, "source")
        return
    csv.field_size_limit(_FIELD_LIMIT)
    try:
        with open(path, encoding="utf-8-sig", newline="") as lines:
            yield from csv.DictReader(lines)
    except (csv.Error, UnicodeDecodeError, OSError) as error:
        raise DataError(f"{path}: not readable as CSV: {error}") from error


def _divide(store: PromptStore, split: str, source: Source, selection: Selection) -> dict[str, StoredRows]:
    division = division_of(source, selection)
    if division == "tests":
        return by_tests(store, selection.train_fraction or 0.5, selection.seed)
    if division == "questions":
        return by_questions(store, selection.train_fraction or 0.9, selection.seed)
    return {split: StoredRows(store, list(range(len(store))))}


def division_of(source: Source, selection: Selection) -> Division:
    if selection.division is not None:
        return selection.division
    asked = selection.train_fraction is not None
    return "questions" if asked and source.division == "source" else source.division


def _write_manifest(source: Source, out_dir: Path, origin: Origin, prepared: Prepared, selection: Selection) -> None:
    window, division = selection.window, division_of(source, selection)
    outputs = [
        {"file": name, "rows": rows, "sha256": _sha256(out_dir / name)} for name, rows in sorted(prepared.rows.items())
    ]
    manifest = {
        "data_set": source.name,
        "description": source.description,
        "origin": source.origin,
        "licence": source.licence,
        "sdpo_version": __version__,
        "hub_id": origin.hub_id,
        "revision": origin.revision,
        "division": division,
        "train_fraction": selection.train_fraction,
        "seed": None if division == "source" else selection.seed,
        "first_date": None if window.first is None else window.first.isoformat(),
        "last_date": None if window.last is None else window.last.isoformat(),
        "outside_window": prepared.outside_window,
        "not_selected": prepared.not_selected,
        "source_files": prepared.source_files,
        "files": outputs,
        "dropped": prepared.dropped,
    }
    (out_dir / "manifest.json").write_text(json.dumps(manifest, indent=2, ensure_ascii=False) + "\n", encoding="utf-8")


def _sha256(path: Path) -> str:
    with open(path, "rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()
