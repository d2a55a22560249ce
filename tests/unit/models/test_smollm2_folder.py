from __future__ import annotations

import pytest

from sdpo.cli.smollm2 import main
from sdpo.errors import ModelError
from sdpo.models.smollm2 import make_folder


def test_another_file_than_the_tried_one_is_refused(tmp_path):
    gguf = tmp_path / "other.gguf"
    gguf.write_bytes(b"GGUF")
    with pytest.raises(ModelError, match="sha256"):
        make_folder(str(tmp_path / "out"), str(gguf))
    assert not (tmp_path / "out").exists()


def test_a_folder_with_other_things_in_it_is_not_written_to(tmp_path):
    (tmp_path / "notes.txt").write_text("mine")
    with pytest.raises(ModelError, match="new or empty folder"):
        make_folder(str(tmp_path))


def test_a_complete_folder_is_left_alone(tmp_path):
    (tmp_path / "model.safetensors").write_bytes(b"weights")
    assert make_folder(str(tmp_path)) == str(tmp_path)


def test_the_command_answers_in_one_line_and_with_an_exit_code(tmp_path, capsys):
    assert main([str(tmp_path / "out"), "--gguf", str(tmp_path / "missing.gguf")]) == ModelError.exit_code
    error = capsys.readouterr().err
    assert error.startswith("error: gguf: got") and error.count("\n") == 1
