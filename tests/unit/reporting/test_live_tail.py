"""Reading files that are being written: whole lines, once each, and from the beginning when the file is another."""

from __future__ import annotations

import os

import pytest

from sdpo.reporting.live.tail import Tail


@pytest.fixture
def tail(tmp_path):
    return Tail(tmp_path / "lines.jsonl")


def _read(tail: Tail, limit: int = 1 << 20) -> list:
    tail.refresh()
    return [record["n"] for _, record in tail.read(limit)]


def _append(tail: Tail, text: str) -> None:
    with tail.path.open("a") as file:
        file.write(text)


def test_a_file_that_is_not_there_yet_is_empty_and_then_read(tail):
    assert _read(tail) == []
    _append(tail, '{"n": 1}\n')
    assert _read(tail) == [1] and tail.generation == 0


def test_a_torn_line_waits_for_its_end_and_nothing_is_read_twice(tail):
    _append(tail, '{"n": 1}\n{"n"')
    assert _read(tail) == [1] and _read(tail) == []
    _append(tail, ": 2}\n")
    assert _read(tail) == [2] and _read(tail) == []


def test_lines_that_are_no_records_are_skipped(tail):
    _append(tail, '{"n": 1}\nnot json\n[1]\n\n{"n": 2}\n' + "[" * 100_000 + "\n" + '{"n": 3}\n')
    assert _read(tail) == [1, 2, 3]


def test_a_replaced_file_is_read_from_the_beginning(tail):
    _append(tail, '{"n": 1}\n{"n": 2}\n')
    assert _read(tail) == [1, 2]
    new = tail.path.with_name("new")
    new.write_text('{"n": 1}\n{"n": 5}\n{"n": 6}\n')  # longer than before
    os.replace(new, tail.path)
    assert _read(tail) == [1, 5, 6] and tail.generation == 1


def test_a_cut_or_removed_file_starts_over(tail):
    _append(tail, '{"n": 1}\n{"n": 2}\n')
    assert _read(tail) == [1, 2]
    tail.path.write_text('{"n": 7}\n')
    assert _read(tail) == [7] and tail.generation == 1
    tail.path.unlink()
    assert _read(tail) == [] and tail.generation == 2


def test_a_long_file_is_taken_in_pieces_and_a_line_is_found_again_by_its_place(tail):
    _append(tail, "".join(f'{{"n": {n}, "x": "{"é" * 500}"}}\n' for n in range(3000)))
    places, pieces = {}, 0
    while found := list(tail.read(1 << 20)):
        pieces += 1
        places |= {record["n"]: place for place, record in found}
    assert pieces > 1 and sorted(places) == list(range(3000))
    assert tail.at(places[1234])["n"] == 1234
