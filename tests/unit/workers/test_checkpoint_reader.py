"""A checkpoint that somebody else has written runs nothing."""

from __future__ import annotations

import io
import os
import pickle
import re
import shutil
import subprocess
from pathlib import Path

import pytest
import torch
import torch.distributed.checkpoint as dcp

from sdpo.errors import CheckpointError
from sdpo.workers.actor import Actor
from sdpo.workers.checkpoint_reader import CheckpointReader, EntryPlanner


class Calls:
    """Unpickled, it calls something."""

    def __init__(self, function, *arguments) -> None:
        self.call = function, arguments

    def __reduce__(self):
        return self.call


def payloads(mark: Path) -> list[object]:
    return [
        Calls(os.system, f"touch {mark}"),
        Calls(subprocess.call, ["touch", str(mark)]),
        Calls(exec, f"open({str(mark)!r}, 'w')"),
        Calls(eval, f"open({str(mark)!r}, 'w')"),
        Calls(Path.touch, mark),
        Calls(open, str(mark), "w"),
        Calls(getattr, Calls(__import__, "os"), "getcwd"),
        Calls(torch.load, str(mark)),
    ]


@pytest.fixture(scope="module")
def written(tmp_path_factory) -> Path:
    folder = tmp_path_factory.mktemp("written")
    state = {"weight": torch.ones(2, 3, dtype=torch.bfloat16), "schedule": {"rates": [0.5], "last": (3, None)}}
    dcp.save(state, checkpoint_id=str(folder), no_dist=True)
    return folder


def empty_state() -> dict[str, object]:
    return {"weight": torch.zeros(2, 3, dtype=torch.bfloat16), "schedule": {"rates": [0.0], "last": None}}


def load(folder: Path, state: dict[str, object]) -> None:
    dcp.load(state, storage_reader=CheckpointReader(str(folder)), planner=EntryPlanner(), no_dist=True)


def test_what_torch_writes_is_read(written: Path) -> None:
    state = empty_state()
    load(written, state)
    assert torch.equal(state["weight"], torch.ones(2, 3, dtype=torch.bfloat16))
    assert state["schedule"] == {"rates": [0.5], "last": (3, None)}


@pytest.mark.parametrize("number", range(len(payloads(Path()))))
@pytest.mark.parametrize("protocol", range(pickle.HIGHEST_PROTOCOL + 1))
def test_an_index_that_calls_something_is_refused_and_runs_nothing(
    written: Path, tmp_path: Path, number: int, protocol: int
) -> None:
    folder, mark = tmp_path / "checkpoint", tmp_path / "ran"
    index = CheckpointReader(str(written)).read_metadata()
    hidden = [payloads(mark)[number], index]
    shutil.copytree(written, folder)
    for crafted in (hidden[0], hidden, {"state_dict_metadata": hidden}):
        (folder / ".metadata").write_bytes(pickle.dumps(crafted, protocol))
        with pytest.raises(pickle.UnpicklingError, match="it names"):
            CheckpointReader(str(folder)).read_metadata()
    index.planner_data = hidden[0]  # inside of what looks right
    (folder / ".metadata").write_bytes(pickle.dumps(index, protocol))
    with pytest.raises(pickle.UnpicklingError, match="it names"):
        CheckpointReader(str(folder)).read_metadata()
    assert not mark.exists()


@pytest.mark.parametrize("name", ["torch.load", "torch.distributed.checkpoint.metadata.os.system", "torch.hub"])
def test_a_dotted_name_behind_an_allowed_module_is_refused(tmp_path: Path, name: str) -> None:
    for split in range(1, name.count(".") + 1):
        parts = name.split(".")
        module, rest = ".".join(parts[:split]), ".".join(parts[split:])
        (tmp_path / ".metadata").write_bytes(b"\x80\x04" + b"".join(_text(t) for t in (module, rest)) + b"\x93.")
        with pytest.raises(pickle.UnpicklingError, match="it names"):
            CheckpointReader(str(tmp_path)).read_metadata()


def _text(text: str) -> bytes:
    return b"\x8c" + bytes([len(text)]) + text.encode()


@pytest.mark.parametrize("place", ["../secret.distcp", "/etc/passwd", "..", "a/b"])
def test_an_index_that_names_a_file_outside_is_refused(written: Path, tmp_path: Path, place: str) -> None:
    folder = tmp_path / "checkpoint"
    shutil.copytree(written, folder)
    index = CheckpointReader(str(written)).read_metadata()
    for item in index.storage_data.values():
        item.relative_path = place
    (folder / ".metadata").write_bytes(pickle.dumps(index))
    with pytest.raises(ValueError, match="none of its files"):
        CheckpointReader(str(folder)).read_metadata()


def test_an_entry_that_calls_something_is_refused_and_runs_nothing(written: Path, tmp_path: Path) -> None:
    """The index is whole; the bytes that it points to are another program's."""
    folder, mark = tmp_path / "checkpoint", tmp_path / "ran"
    for number, payload in enumerate(payloads(mark)):
        shutil.copytree(written, folder / str(number))
        file = io.BytesIO()
        torch.save(payload, file)
        index = CheckpointReader(str(written)).read_metadata()
        entry = next(i for name, i in index.storage_data.items() if name.fqn == "schedule.rates")
        entry.relative_path, entry.offset, entry.length = "__9_9.distcp", 0, len(file.getvalue())
        (folder / str(number) / "__9_9.distcp").write_bytes(file.getvalue())
        (folder / str(number) / ".metadata").write_bytes(pickle.dumps(index))
        with pytest.raises(dcp.api.CheckpointException, match="Weights only"):
            load(folder / str(number), empty_state())
    assert not mark.exists()


def test_resume_names_the_folder_in_one_line(actor_config, tmp_path: Path) -> None:
    actor_config.trainer.log_samples = 0
    actor = Actor(actor_config, 0, 1, "cpu", 10)
    actor.save(str(tmp_path / "actor"))
    actor.load(str(tmp_path / "actor"))
    (tmp_path / "actor" / ".metadata").write_bytes(pickle.dumps(Calls(os.system, f"touch {tmp_path / 'ran'}")))
    with pytest.raises(CheckpointError, match="index cannot be read") as refused:
        actor.load(str(tmp_path / "actor"))
    assert "\n" not in str(refused.value) and not (tmp_path / "ran").exists()


def test_nothing_else_in_the_package_unpickles_a_file_that_others_can_write(repository: Path) -> None:
    """`data/store.py` reads back a file without a name that it has just written itself. The sandbox is another matter:
    what comes out of it are frames of its own."""
    loads = re.compile(r"pickle\.loads?\b|Unpickler|torch\.load\(|np\.load\(|joblib|marshal|shelve|dcp\.load\(|dill")
    files = [file for file in (repository / "sdpo").rglob("*.py") if "sandbox" not in file.parts]
    found = {file.name for file in files if loads.search(file.read_text(encoding="utf-8"))}
    assert found == {"checkpoint_reader.py", "actor_state.py", "store.py"}
