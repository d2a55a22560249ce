"""A data set folder of somebody else reads its own files and no others."""

from __future__ import annotations

import json
import shutil
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from sdpo.data import hub
from sdpo.data.folder_contents import check_card
from sdpo.errors import DataError


@pytest.fixture
def secret(tmp_path: Path) -> Path:
    """What must not be read, beside the data set."""
    path = tmp_path / "secret" / "train.jsonl"
    path.parent.mkdir()
    path.write_text(json.dumps({"prompt": "SECRET"}), encoding="utf-8")
    return path


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    path = tmp_path / "given"
    path.mkdir()
    (path / "train.jsonl").write_text(json.dumps({"prompt": "own"}), encoding="utf-8")
    return path


def read(folder: Path, split: str = "") -> list[dict[str, Any]]:
    return list(hub.read_folder(f"{folder}{split}", "data.train_files"))


def card(folder: Path, data_files: Any, file: str = "README.md", **more: Any) -> None:
    text = json.dumps({"configs": [{"config_name": "default", "data_files": data_files, **more}]})  # JSON is YAML
    (folder / file).write_text(f"---\n{text}\n---\n" if file == "README.md" else text, encoding="utf-8")


def refused(folder: Path) -> None:
    with pytest.raises(DataError, match="outside of the folder") as error:
        read(folder)
    assert "SECRET" not in str(error.value) and "\n" not in str(error.value)


PLACES = ["{secret}", "../secret/train.jsonl", "../*/train.jsonl", "sub/../../secret/train.jsonl", "file://{secret}"]
PLACES += ["file:{secret}", "zip://x::{secret}", "http://127.0.0.1:9/x.jsonl", "hf://datasets/a/b/x.jsonl"]
PLACES += ["~/x.jsonl", "s3://bucket/x.jsonl", ".."]


@pytest.mark.parametrize("place", PLACES)
@pytest.mark.parametrize("file", ["README.md", ".huggingface.yaml"])
def test_a_card_that_names_files_elsewhere_is_refused(folder: Path, secret: Path, place: str, file: str) -> None:
    place = place.format(secret=secret)
    for data_files in (place, ["train.jsonl", place], [{"split": "train", "path": ["train.jsonl", place]}]):
        card(folder, data_files, file)
        refused(folder)


def test_another_configuration_or_a_data_folder_elsewhere_is_refused(folder: Path, secret: Path) -> None:
    card(folder, "train.jsonl", data_dir=str(secret.parent))
    refused(folder)
    configs = [{"config_name": "a", "data_files": "train.jsonl"}, {"config_name": "b", "data_files": "../secret/*"}]
    (folder / "README.md").write_text(f"---\n{json.dumps({'configs': configs})}\n---\n")
    with pytest.raises(DataError, match="outside of the folder"):
        read(folder, ":a/train")


@settings(max_examples=40)
@given(
    parts=st.lists(st.sampled_from(["..", ".", "a", "*", "**", "secret", "train.jsonl", "", "[.][.]"]), max_size=6),
    before=st.sampled_from(["", "/", "file://", "~", "./", "zip://a::", "C:"]),
)
def test_no_pattern_of_a_card_reads_what_is_outside(tmp_path_factory, parts: list[str], before: str) -> None:
    root = tmp_path_factory.mktemp("root")
    for name in ("secret", "given"):
        (root / name).mkdir()
        (root / name / "train.jsonl").write_text(json.dumps({"prompt": name}))
    card(root / "given", before + "/".join(parts) or "x")
    try:
        found = read(root / "given")
    except DataError:
        return
    assert {row["prompt"] for row in found} == {"given"}


def test_links_that_lead_out_are_refused(folder: Path, secret: Path) -> None:
    (folder / "train.jsonl").unlink()
    (folder / "train.jsonl").symlink_to(secret)
    refused(folder)
    (folder / "train.jsonl").unlink()
    (folder / "data").symlink_to(secret.parent)
    for data_files in ("data/*.jsonl", "**/*.jsonl", "data/train.jsonl"):
        card(folder, data_files)
        with pytest.raises(DataError):
            read(folder)


def test_a_link_within_the_folder_and_one_to_a_blob_of_the_hubs_cache_are_read(folder: Path, tmp_path: Path) -> None:
    (folder / "train.jsonl").rename(folder / "stored.bin")
    (folder / "train.jsonl").symlink_to("stored.bin")
    assert [row["prompt"] for row in read(folder)] == ["own"]
    blobs, snapshot = tmp_path / "datasets--a--b/blobs", tmp_path / "datasets--a--b/snapshots" / ("0" * 40)
    blobs.mkdir(parents=True)
    snapshot.mkdir(parents=True)
    shutil.copy(folder / "stored.bin", blobs / "abc")
    (snapshot / "train.jsonl").symlink_to(blobs / "abc")
    assert [row["prompt"] for row in read(snapshot)] == ["own"]


@pytest.mark.parametrize("place", ["../../secret/data.arrow", "{secret}", "..", "file://{secret}"])
def test_a_saved_data_set_that_names_files_elsewhere_is_refused(tmp_path: Path, place: str) -> None:
    from datasets import Dataset

    for name in ("secret", "saved"):
        Dataset.from_list([{"prompt": name.upper()}]).save_to_disk(str(tmp_path / name))
    state = json.loads((tmp_path / "saved/state.json").read_text())
    arrow = tmp_path / "secret" / state["_data_files"][0]["filename"]
    state["_data_files"] = [{"filename": place.format(secret=arrow)}]
    (tmp_path / "saved/state.json").write_text(json.dumps(state))
    refused(tmp_path / "saved")


def test_a_saved_data_set_whose_file_is_a_link_out_is_refused(tmp_path: Path) -> None:
    from datasets import Dataset

    for name in ("secret", "saved"):
        Dataset.from_list([{"prompt": name.upper()}]).save_to_disk(str(tmp_path / name))
    file = next((tmp_path / "saved").glob("*.arrow"))
    file.unlink()
    file.symlink_to(next((tmp_path / "secret").glob("*.arrow")))
    refused(tmp_path / "saved")


@pytest.mark.parametrize("kind", ["image", "audio", "video"])
def test_a_column_is_not_opened_as_a_file_whatever_the_card_says_of_it(folder: Path, secret: Path, kind: str) -> None:
    (folder / "train.jsonl").write_text(json.dumps({"prompt": "q", "seen": str(secret)}))
    features = [{"name": "prompt", "dtype": "string"}, {"name": "seen", "dtype": kind}]
    (folder / "README.md").write_text(f"---\n{json.dumps({'dataset_info': {'features': features}})}\n---\n")
    try:
        rows = read(folder)
    except DataError:
        return
    assert "SECRET" not in str(rows)


def test_a_folder_with_a_script_is_one_line(folder: Path, tmp_path: Path) -> None:
    (folder / "given.py").write_text(f"open({str(tmp_path / 'ran')!r}, 'w')")
    try:
        assert [row["prompt"] for row in read(folder)] == ["own"]
    except DataError as error:
        assert "\n" not in str(error)
    assert not (tmp_path / "ran").exists()


@pytest.mark.parametrize("text", ["---\nconfigs: [\n---\n", "---\n- 1\n---\n", "\x00", "---\nconfigs: 7\n---\n", ""])
def test_an_unreadable_card_is_one_line_or_none(folder: Path, text: str) -> None:
    (folder / "README.md").write_text(text)
    try:
        check_card(folder, "given")
        read(folder)
    except DataError as error:
        assert "\n" not in str(error)
