from __future__ import annotations

import json
from pathlib import Path
from types import SimpleNamespace

import pytest

from sdpo.errors import ModelError
from sdpo.tokens.stop import stop_token_ids


def write(folder: Path, name: str, content: dict) -> None:
    (folder / name).write_text(json.dumps(content), encoding="utf-8")


def test_end_ids_are_joined_from_tokenizer_and_both_configurations(tmp_path: Path) -> None:
    write(tmp_path, "generation_config.json", {"eos_token_id": [7, 2]})
    write(tmp_path, "config.json", {"eos_token_id": 9, "text_config": {"eos_token_id": 11}})
    assert stop_token_ids(tmp_path, SimpleNamespace(eos_token_id=2)) == (2, 7, 9, 11)


def test_a_missing_or_null_configuration_leaves_the_tokenizers_id(tmp_path: Path) -> None:
    write(tmp_path, "config.json", {"eos_token_id": None})
    assert stop_token_ids(tmp_path, SimpleNamespace(eos_token_id=0)) == (0,)


def test_a_model_without_any_end_id_is_refused(tmp_path: Path) -> None:
    with pytest.raises(ModelError, match="no end-of-sequence id"):
        stop_token_ids(tmp_path, SimpleNamespace(eos_token_id=None))


def test_a_broken_configuration_names_its_file(tmp_path: Path) -> None:
    (tmp_path / "generation_config.json").write_text("{", encoding="utf-8")
    with pytest.raises(ModelError, match=r"generation_config\.json: not valid JSON"):
        stop_token_ids(tmp_path, SimpleNamespace(eos_token_id=2))
