from __future__ import annotations

import json
import math

import numpy as np
import pytest

from sdpo.reporting.live.tail import Tail
from sdpo.tracking.jsonl import JsonLines, encode_line, plain_number, read_lines, write_atomically


@pytest.mark.parametrize("value", [math.nan, math.inf, -math.inf, np.float32("nan")])
def test_values_that_json_has_no_word_for_become_null(value):
    assert plain_number(value) is None


@pytest.mark.parametrize(("value", "expected"), [(np.float64(0.5), 0.5), (np.int64(3), 3), (True, 1), (2, 2)])
def test_scalars_of_numpy_and_bools_become_plain_numbers(value, expected):
    assert plain_number(value) == expected
    assert type(plain_number(value)) in (int, float)


def test_a_value_that_is_no_number_is_an_error():
    with pytest.raises((TypeError, ValueError)):
        plain_number("fast")
    with pytest.raises(TypeError):
        plain_number([1.0])


def test_a_forgotten_nan_never_reaches_the_file():
    with pytest.raises(ValueError):
        encode_line({"reward": math.nan})


@pytest.mark.parametrize(
    "text", ["中文 ✓", "a\u2028b\u2029c\x85d", "line\nbreak", '"quoted" \\ {braces}', "\x00\x1b[31m"]
)
def test_any_text_is_one_line_and_comes_back_unchanged(tmp_path, text):
    log = JsonLines(tmp_path / "samples.jsonl")
    log.write({"text": text})
    log.close()
    raw = (tmp_path / "samples.jsonl").read_text(encoding="utf-8")
    assert len(raw.splitlines()) == 1
    assert json.loads(raw)["text"] == text


def test_a_lone_surrogate_from_a_model_is_written_as_its_escape(tmp_path):
    log = JsonLines(tmp_path / "samples.jsonl")
    log.write({"text": "cut \ud83d here"})
    log.close()
    assert json.loads((tmp_path / "samples.jsonl").read_bytes())["text"] == "cut \ud83d here"


def test_every_line_is_in_the_file_before_write_returns(tmp_path):
    log = JsonLines(tmp_path / "metrics.jsonl")
    log.write({"step": 1})
    assert (tmp_path / "metrics.jsonl").read_text() == '{"step": 1}\n'
    log.close()


def test_resuming_keeps_only_the_wanted_lines_and_drops_a_broken_one(tmp_path):
    path = tmp_path / "metrics.jsonl"
    path.write_text('{"step": 1}\n{"step": 2}\n{"step": 3}\n{"step": 2, "cut')
    log = JsonLines(path, keep=lambda line: line["step"] <= 2)
    log.write({"step": 3})
    log.close()
    assert [line["step"] for line in read_lines(path)] == [1, 2, 3]


def test_a_complete_last_line_without_its_newline_is_kept_whole_on_resume(tmp_path):
    path = tmp_path / "metrics.jsonl"
    path.write_text('{"step": 1}')
    log = JsonLines(path, keep=lambda line: True)
    log.write({"step": 2})
    log.close()
    assert [line["step"] for line in read_lines(path)] == [1, 2]


def test_a_new_run_never_writes_over_an_old_file(tmp_path):
    path = tmp_path / "metrics.jsonl"
    path.write_text('{"step": 9}\n')
    with pytest.raises(FileExistsError):
        JsonLines(path)
    assert path.read_text() == '{"step": 9}\n'


@pytest.mark.parametrize("damaged", [b'{"cut', b"[1]", b"\xff\xfe", b'{"a":' * 100_000, b"[" * 100_000])
def test_a_line_that_is_no_record_is_skipped_whatever_is_wrong_with_it(tmp_path, damaged):
    path = tmp_path / "metrics.jsonl"
    path.write_bytes(b'{"step": 1}\n' + damaged + b'\n{"step": 2}\n')
    assert [line["step"] for line in read_lines(path)] == [1, 2]
    assert [line["step"] for _, line in Tail(path).read(1 << 20)] == [1, 2]
    JsonLines(path, keep=lambda line: True).close()
    assert path.read_text() == '{"step": 1}\n{"step": 2}\n'


def test_a_missing_file_reads_as_empty(tmp_path):
    assert list(read_lines(tmp_path / "nothing.jsonl")) == []


def test_replacing_a_file_leaves_no_temporary_behind(tmp_path):
    write_atomically(tmp_path / "a.txt", "old")
    write_atomically(tmp_path / "a.txt", "new")
    assert [p.name for p in tmp_path.iterdir()] == ["a.txt"]
    assert (tmp_path / "a.txt").read_text() == "new"


def test_lines_that_cannot_be_read_are_kept_in_a_copy_and_said(tmp_path, caplog):
    path = tmp_path / "metrics.jsonl"
    path.write_bytes(b'{"step": 1}\n\x00garbage\n{"step": 2}\n{"step": 3, "cut o')
    JsonLines(path, keep=lambda line: True).close()
    assert [line["step"] for line in read_lines(path)] == [1, 2]
    assert b"garbage" in (tmp_path / "metrics.jsonl.damaged").read_bytes()
    assert "1 lines cannot be read" in caplog.text
