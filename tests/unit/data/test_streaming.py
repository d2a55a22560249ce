"""Files larger than memory: the peak of a process that reads, validates and stores them stays far below their size."""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from sdpo.data.files import WRITE_ROWS, read_rows, write_parquet

ROWS, TEXT = 4000, 20_000  # 80 MB
MEASURE = """
import sys
from sdpo.config.schema import DataConfig
from sdpo.data.load import iter_prompts
from sdpo.data.store import PromptStore
import pyarrow.parquet  # not part of what is measured

def peak():  # not ru_maxrss, which begins with the peak of the process that started this one
    (line,) = [line for line in open("/proc/self/status") if line.startswith("VmHWM")]
    return int(line.split()[1]) << 10

def store(name):
    kept = PromptStore()
    for prompt in iter_prompts([name], DataConfig()):
        kept.append(prompt)
    return kept

store(sys.argv[1])
before = peak()
kept = store(sys.argv[2])
print(len(kept), peak() - before, sum(len(kept[i].messages[0]["content"]) for i in range(0, len(kept), 100)))
"""


def row(i: int) -> dict[str, Any]:
    # Digits that differ, or parquet would store the texts once.
    text = "".join(str((i * 7919 + j) % 99_991) for j in range(TEXT // 5))[:TEXT].ljust(TEXT, "x")
    return {"data_source": "x", "prompt": text, "reward_model": {"ground_truth": str(i)}, "extra_info": {"i": i}}


class Rows:
    def __init__(self, count: int) -> None:
        self.count = count

    def __iter__(self) -> Iterator[dict[str, Any]]:
        return map(row, range(self.count))


def write(path: Path, count: int) -> Path:
    if path.suffix == ".parquet":
        write_parquet(Rows(count), path)
        return path
    with open(path, "w", encoding="utf-8") as file:
        array = path.name.startswith("array")  # on one line, as json.dump writes it
        file.write("[" if array else "")
        for i in range(count):
            file.write((", " if array and i else "") + json.dumps(row(i)) + ("" if array else "\n"))
        file.write("]" if array else "")
    return path


@pytest.mark.parametrize("name", ["lines.jsonl", "array.json", "table.parquet"])
def test_reading_a_file_takes_a_small_part_of_its_size_in_memory(name: str, tmp_path: Path) -> None:
    small, large = write(tmp_path / f"{Path(name).stem}0{Path(name).suffix}", 3), write(tmp_path / name, ROWS)
    argv = [sys.executable, "-c", MEASURE, str(small), str(large)]
    run = subprocess.run(argv, capture_output=True, text=True, check=True)
    count, grown, characters = map(int, run.stdout.split())
    assert (count, characters) == (ROWS, TEXT * (ROWS // 100))
    assert grown < ROWS * TEXT / 3, f"{grown >> 20} MB more for {ROWS * TEXT >> 20} MB of text"


def test_a_schema_that_grows_with_the_rows_is_written_in_full(tmp_path: Path) -> None:
    rows = [{"a": i, "b": {"x": 1}, "c": None} for i in range(WRITE_ROWS)] + [{"a": 0, "b": {"y": "z"}, "c": "late"}]
    assert write_parquet(rows, tmp_path / "a.parquet") == WRITE_ROWS + 1
    read = list(read_rows(tmp_path / "a.parquet"))
    assert read[0] == {"a": 0, "b": {"x": 1, "y": None}, "c": None}
    assert read[-1] == {"a": 0, "b": {"x": None, "y": "z"}, "c": "late"}


def test_an_iterator_is_refused_because_it_can_be_read_once(tmp_path: Path) -> None:
    with pytest.raises(TypeError, match="twice"):
        write_parquet(iter([{"a": 1}]), tmp_path / "a.parquet")
