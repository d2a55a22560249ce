"""Convert a source's files to parquet, with a manifest that says what came from where."""

from __future__ import annotations

import hashlib
import json
import random
from dataclasses import dataclass, field
from pathlib import Path

from sdpo import __version__
from sdpo.data.files import SUFFIXES, read_rows, stem_of, suffix_of, write_parquet
from sdpo.data.prepare import gsm8k, humaneval, sciknoweval, tooluse
from sdpo.data.prepare.source import Source
from sdpo.data.rows import to_prompt, to_row
from sdpo.data.window import DateWindow
from sdpo.errors import DataError, problem
from sdpo.records import Prompt

SOURCES: dict[str, Source] = {m.SOURCE.name: m.SOURCE for m in (sciknoweval, gsm8k, tooluse, humaneval)}
SPLITS = ("train", "validation", "test")


@dataclass(frozen=True)
class Selection:
    """Which rows go where.

    train_fraction: divide each file by question into train and test, by a shuffle from `seed`; None: keep its split.
    window: keep only rows with a date in it, for sources with a date field.
    """

    train_fraction: float | None = None
    seed: int = 0
    window: DateWindow = DateWindow()


@dataclass
class Prepared:
    """Rows written per file (relative to the output folder), and what was left out."""

    rows: dict[str, int] = field(default_factory=dict)
    dropped: list[dict[str, object]] = field(default_factory=list)  # unusable: {"file", "row", "why"}
    outside_window: int = 0


def prepare(name: str, source: Path, out_dir: Path, selection: Selection = Selection()) -> Prepared:
    """Write OUT_DIR/.../SPLIT.parquet for each file below `source` (or that one file), and OUT_DIR/manifest.json.

    A file named train, validation or test gives that split, any other name gives test; folders are kept. Unusable rows
    are dropped, counted and listed. Raises DataError when a file leaves no rows or the name is unknown.
    """
    known = _known_source(name, selection)
    if source.is_dir() and out_dir.resolve().is_relative_to(source.resolve()):
        raise DataError(problem("output folder", str(out_dir), f"one outside of {source}, which is read as a whole"))
    prepared, files = Prepared(), []
    outputs: dict[Path, list[Prompt]] = {}
    root = source if source.is_dir() else source.parent
    for path in _source_files(source):
        split = stem_of(path) if stem_of(path) in SPLITS else "test"
        prompts = _convert_file(known, path, root, split, selection.window, prepared)
        for part, part_prompts in _divide(prompts, split, selection).items():
            target = path.parent.relative_to(root) / f"{part}.parquet"
            if target in outputs:
                raise DataError(f"{path}: a second file for {target}; prepare the files one by one")
            outputs[target] = part_prompts
        files.append({"file": str(path.relative_to(root)), "sha256": _sha256(path), "rows": _count(path)})
    for target, prompts in outputs.items():
        prepared.rows[str(target)] = write_parquet(map(to_row, prompts), out_dir / target)
    _write_manifest(known, out_dir, files, prepared, selection)
    return prepared


def _known_source(name: str, selection: Selection) -> Source:
    if name not in SOURCES:
        raise DataError(problem("data set", name, ", ".join(SOURCES)))
    if selection.train_fraction is not None and not 0 < selection.train_fraction < 1:
        raise DataError(problem("train fraction", selection.train_fraction, "a number between 0 and 1"))
    if selection.window != DateWindow() and SOURCES[name].date_field is None:
        raise DataError(f"{name}: its rows have no dates; leave the window of dates out")
    return SOURCES[name]


def _source_files(source: Path) -> list[Path]:
    if source.is_file():
        return [source]
    found = sorted(path for path in source.rglob("*") if path.is_file() and suffix_of(path))
    if not found:
        raise DataError(problem("source", str(source), f"a file, or a folder with files, in {', '.join(SUFFIXES)}"))
    return found


def _convert_file(
    source: Source, path: Path, root: Path, split: str, window: DateWindow, prepared: Prepared
) -> list[Prompt]:
    prompts: list[Prompt] = []
    why = "all rows are outside of the window of dates"
    for number, row in enumerate(read_rows(path, "source"), 1):
        try:
            if source.date_field is not None and not window.holds(row, source.date_field):
                prepared.outside_window += 1
                continue
            prompt = source.convert(row, split)
            to_prompt(to_row(prompt), "", "converted")  # what is written must load
            prompts.append(prompt)
        except DataError as error:
            why = str(error)
            prepared.dropped.append({"file": str(path.relative_to(root)), "row": number, "why": why})
    if not prompts:
        raise DataError(f"{path}: no row can be used as {source.name} ({why})")
    return prompts


def _divide(prompts: list[Prompt], split: str, selection: Selection) -> dict[str, list[Prompt]]:
    fraction = selection.train_fraction
    if fraction is None:
        return {split: prompts}
    questions = sorted({prompt.messages[-1]["content"] for prompt in prompts})
    random.Random(f"split:{selection.seed}").shuffle(questions)
    chosen = set(questions[: round(fraction * len(questions))])
    train = [prompt for prompt in prompts if prompt.messages[-1]["content"] in chosen]
    rest = [prompt for prompt in prompts if prompt.messages[-1]["content"] not in chosen]
    if not train or not rest:
        raise DataError(
            problem("train fraction", fraction, f"one that leaves some of {len(prompts)} rows on both sides")
        )
    return {"train": train, "test": rest}


def _write_manifest(
    source: Source, out_dir: Path, files: list[dict[str, object]], prepared: Prepared, selection: Selection
) -> None:
    window = selection.window
    outputs = [
        {"file": name, "rows": rows, "sha256": _sha256(out_dir / name)} for name, rows in sorted(prepared.rows.items())
    ]
    manifest = {
        "data_set": source.name,
        "description": source.description,
        "origin": source.origin,
        "licence": source.licence,
        "sdpo_version": __version__,
        "train_fraction": selection.train_fraction,
        "seed": None if selection.train_fraction is None else selection.seed,
        "first_date": None if window.first is None else window.first.isoformat(),
        "last_date": None if window.last is None else window.last.isoformat(),
        "outside_window": prepared.outside_window,
        "source_files": files,
        "files": outputs,
        "dropped": prepared.dropped,
    }
    (out_dir / "manifest.json").write_text(json.dumps(manifest, indent=2, ensure_ascii=False) + "\n", encoding="utf-8")


def _count(path: Path) -> int:
    return sum(1 for _ in read_rows(path))


def _sha256(path: Path) -> str:
    with open(path, "rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()
