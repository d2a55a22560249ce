from __future__ import annotations

import base64
import builtins
import json
import os
import pickle
import zlib
from pathlib import Path

import pytest

from sdpo.data.prepare import private_tests
from sdpo.data.prepare.private_tests import decode_tests, text_of_pickle
from sdpo.data.prepare.write import prepare
from sdpo.errors import DataError

CASE = {"input": "1", "output": "2", "testtype": "stdin"}


def encoded(data: bytes) -> str:
    return base64.b64encode(zlib.compress(data)).decode()


class Runs:
    """Unpickled, it writes a file."""

    def __init__(self, path: Path) -> None:
        self.path = path

    def __reduce__(self):
        return os.system, (f"touch {self.path}",)


def test_plain_json_and_the_packed_form_are_read() -> None:
    assert decode_tests(json.dumps([CASE])) == [CASE]
    assert decode_tests(encoded(pickle.dumps(json.dumps([CASE])))) == [CASE]


def test_texts_of_any_length_and_script_come_back() -> None:
    for text in ("", "a", "é" * 300, "\U0001f600" * 70_000):
        for protocol in range(pickle.HIGHEST_PROTOCOL + 1):
            assert text_of_pickle(pickle.dumps(text, protocol)) == text


@pytest.mark.parametrize("protocol", range(pickle.HIGHEST_PROTOCOL + 1))
def test_a_malicious_pickle_is_refused_without_running_it(protocol: int, tmp_path: Path) -> None:
    mark = tmp_path / "ran"
    for payload in (Runs(mark), ["text", Runs(mark)], {"text": Runs(mark)}):
        data = pickle.dumps(payload, protocol)
        with pytest.raises(DataError, match="only one that holds a text is read"):
            decode_tests(encoded(data))
        assert not mark.exists()
    pickle.loads(pickle.dumps(Runs(mark), protocol))
    assert mark.exists()  # the payload is one


def test_a_row_with_a_malicious_pickle_is_dropped_and_named(tmp_path: Path) -> None:
    row = {"question_content": "q", "contest_date": "2025-03-01", "metadata": "{}", "starter_code": ""}
    rows = [
        {
            **row,
            "public_test_cases": json.dumps([CASE]),
            "private_test_cases": encoded(pickle.dumps(Runs(tmp_path / "ran"))),
        },
        {
            **row,
            "public_test_cases": json.dumps([CASE]),
            "private_test_cases": encoded(pickle.dumps(json.dumps([CASE]))),
        },
    ]
    source = tmp_path / "test6.jsonl"
    source.write_text("\n".join(map(json.dumps, rows)))
    done = prepare("livecodebench", source, tmp_path / "out")
    (dropped,) = done.dropped
    assert dropped["row"] == 1 and "a pickle with" in str(dropped["why"]) and not (tmp_path / "ran").exists()


def test_no_unpickler_is_in_reach(monkeypatch: pytest.MonkeyPatch) -> None:
    """Not even by an instruction that was forgotten: decoding works where every unpickler is taken away."""
    data = encoded(pickle.dumps(json.dumps([CASE])))
    for name in ("loads", "load", "Unpickler", "_Unpickler"):
        monkeypatch.setattr(pickle, name, None)
    monkeypatch.setattr(builtins, "eval", None)
    assert decode_tests(data) == [CASE]


@pytest.mark.parametrize(
    ("text", "why"),
    [
        (encoded(pickle.dumps(7)), "a pickle with BININT1"),
        (encoded(pickle.dumps(("a", "b"))), "a pickle with"),
        (encoded(b"\x80\x04."), "a pickle with 0 texts"),
        (encoded(b"not a pickle"), "not a pickle"),
        (encoded(pickle.dumps("x" * 500)[:100]), "not a pickle"),
        (encoded(pickle.dumps("not json")), "not JSON"),
        (encoded(pickle.dumps('{"a": 1}')), "it must be a list"),
        (encoded(pickle.dumps('[{"input": 1}]')), "all text"),
        (base64.b64encode(b"not zlib").decode(), "neither JSON nor base64 of zlib"),
        (base64.b64encode(zlib.compress(bytes(range(256)))[:50]).decode(), "cut off"),
        ("%%%", "neither JSON nor base64 of zlib"),
        ("[oops", "not JSON"),
    ],
)
def test_everything_else_is_refused_with_the_reason(text: str, why: str) -> None:
    with pytest.raises(DataError, match=why):
        decode_tests(text)


def test_a_bomb_is_not_unpacked(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(private_tests, "MAX_BYTES", 1 << 20)
    with pytest.raises(DataError, match="over 1 MB decompressed"):
        decode_tests(encoded(b"\0" * (1 << 22)))
