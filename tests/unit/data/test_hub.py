"""Data sets of the Hugging Face kind, on folders and a hub cache laid out by hand; the network is off."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from sdpo.config.schema import DataConfig
from sdpo.data.load import load_prompts
from sdpo.errors import DataError

COMMIT = "89abcdef0123456789abcdef0123456789abcdef"


def rows(count: int) -> list[dict[str, Any]]:
    return [
        {"data_source": "x", "prompt": [{"role": "user", "content": f"q{i}"}], "reward_model": {"ground_truth": str(i)}}
        for i in range(count)
    ]


def write_lines(path: Path, count: int) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text("\n".join(map(json.dumps, rows(count))), encoding="utf-8")


@pytest.fixture
def saved(tmp_path: Path) -> Path:
    """What `DatasetDict.save_to_disk` writes."""
    from datasets import Dataset, DatasetDict, disable_progress_bars

    disable_progress_bars()
    both = DatasetDict({"train": Dataset.from_list(rows(3)), "test": Dataset.from_list(rows(1))})
    both.save_to_disk(str(tmp_path / "saved"))
    return tmp_path / "saved"


@pytest.fixture
def hub(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> str:
    """A data set with two configurations in the hub's cache."""
    monkeypatch.setattr("huggingface_hub.constants.HF_HUB_CACHE", str(tmp_path / "cache"))
    folder = tmp_path / "cache/datasets--owner--name/snapshots" / COMMIT
    write_lines(folder / "main/train.jsonl", 3)
    write_lines(folder / "main/test.jsonl", 2)
    write_lines(folder / "other/train.jsonl", 1)
    (folder / "README.md").write_text(
        "---\nconfigs:\n- config_name: main\n  data_files:\n  - split: train\n    path: main/train.jsonl\n"
        "  - split: test\n    path: main/test.jsonl\n- config_name: other\n  data_files: other/*.jsonl\n---\n"
    )
    return f"hub://owner/name@{COMMIT}"


def truths(name: str) -> list[str]:
    return [p.ground_truth for p in load_prompts([name], DataConfig())]


def test_a_saved_data_set_is_read_by_folder_or_by_folder_and_split(saved: Path) -> None:
    assert truths(f"{saved}:train") == truths(str(saved / "train")) == ["0", "1", "2"]
    assert truths(f"{saved}:test") == ["0"]


def test_a_folder_of_data_files_is_read_by_split(tmp_path: Path) -> None:
    write_lines(tmp_path / "repo/train.jsonl", 3)
    write_lines(tmp_path / "repo/test.jsonl", 2)
    write_lines(tmp_path / "one/train.jsonl", 4)
    assert (len(truths(f"{tmp_path}/repo:train")), len(truths(f"{tmp_path}/repo:test"))) == (3, 2)
    assert len(truths(f"{tmp_path}/one")) == 4  # a single split needs no name


def test_a_hub_data_set_is_read_at_its_commit_by_configuration_and_split(hub: str) -> None:
    assert (len(truths(f"{hub}:main/train")), len(truths(f"{hub}:main/test")), len(truths(f"{hub}:other/train"))) == (
        3,
        2,
        1,
    )


def test_ids_name_data_set_split_and_row(hub: str, saved: Path) -> None:
    prompts = load_prompts([f"{hub}:main/train", f"{saved}:train", f"{saved}:test"], DataConfig())
    assert [p.uid for p in prompts][::3] == ["train/name-train:1", "train/saved-train:1", "train/saved-test:1"]
    assert len({p.uid for p in prompts}) == len(prompts)


def test_an_unusable_row_is_named_by_data_set_and_number(saved: Path) -> None:
    with pytest.raises(DataError, match=r"saved:train row 1: question: missing"):
        load_prompts([f"{saved}:train"], DataConfig(prompt_key="question"))


@pytest.mark.parametrize(
    ("name", "message"),
    [
        ("hub://owner/name:main/train", r"COMMIT:SPLIT.*pin the data: .*/datasets/owner/name/commits/main"),
        ("hub://owner/name@main:train", r"40 hexadecimal digits; pin the data"),
        ("hub://name", r"allowed: hub://OWNER/NAME@COMMIT:SPLIT"),
        (f"hub://owner/name@{COMMIT}", r"\.\.\.:main/SPLIT or \.\.\.:other/SPLIT"),
        (f"hub://owner/name@{COMMIT}:train", r"\.\.\.:main/SPLIT or \.\.\.:other/SPLIT"),
        (f"hub://owner/name@{COMMIT}:third/train", r"configuration: got 'third'; allowed: main, other"),
        (f"hub://owner/name@{COMMIT}:main/dev", r"\.\.\.:test or \.\.\.:train"),
        (f"hub://owner/gone@{COMMIT}:train", r"got 'owner/gone'; allowed: a data set that the hub or its cache has"),
    ],
)
@pytest.mark.usefixtures("hub")
def test_a_hub_name_that_cannot_be_read_says_what_is_allowed(name: str, message: str) -> None:
    with pytest.raises(DataError, match=message) as raised:
        load_prompts([name], DataConfig())
    assert str(raised.value).startswith("data.train_files") and "\n" not in str(raised.value)


def test_a_folder_that_cannot_be_read_says_what_is_allowed(saved: Path, tmp_path: Path) -> None:
    (tmp_path / "empty").mkdir()
    for name, message in (
        (str(saved), r"\.\.\.:test or \.\.\.:train"),
        (f"{saved}:dev", r"\.\.\.:test or \.\.\.:train"),
        (f"{saved}/test:train", "this folder is one split"),
        (f"{tmp_path}/empty", "not readable as a data set"),
        (f"{tmp_path}/gone:train", "an existing file"),
    ):
        with pytest.raises(DataError, match=message):
            load_prompts([name], DataConfig())
