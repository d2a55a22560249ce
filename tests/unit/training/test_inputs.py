"""What a run records of the files it was made from."""

from __future__ import annotations

import json
import shutil
from pathlib import Path

from sdpo.config.compose import compose
from sdpo.models.load import load_chat, resolve_model_path
from sdpo.training.inputs import describe_inputs
from sdpo.training.jobs import Jobs, load_jobs


def _described(folder: Path, answers: list[str]) -> dict:
    folder.mkdir()
    file = folder / "rows.jsonl"
    rows = [
        {"data_source": "gsm8k", "prompt": [{"role": "user", "content": f"{i}?"}], "reward_model": {"ground_truth": a}}
        for i, a in enumerate(answers)
    ]
    file.write_text("".join(json.dumps(row) + "\n" for row in rows))
    config = compose([f"data.val_files=[{file}]"])
    chat = load_chat(config)
    return describe_inputs(config, "cpu", Jobs.none(chat), load_jobs(config, chat, "val"))


def test_the_same_problems_under_another_name_are_the_same_and_others_are_not(tmp_path):
    first, again = _described(tmp_path / "a", ["1", "2"]), _described(tmp_path / "b", ["1", "2"])
    assert first == again and first["val"].startswith("2 problems, ") and first["val_sources"] == ["gsm8k"]
    for number, answers in enumerate((["1", "3"], ["1"], ["2", "1"])):
        assert _described(tmp_path / str(number), answers)["val"] != first["val"]


def test_a_copy_of_a_model_is_the_same_and_other_weights_are_not(tmp_path):
    original = Path(resolve_model_path("builtin://tiny/hard"))
    config = compose([])
    nothing = Jobs.none(load_chat(config))

    def model(folder: Path) -> str:
        config.actor_rollout_ref.model.path = str(folder)
        return describe_inputs(config, "cpu", nothing, nothing)["model"]

    copy = tmp_path / "copy"
    shutil.copytree(original, copy)
    assert model(copy) == model(original)
    (weights,) = copy.glob("*.safetensors")
    data = weights.read_bytes()
    for share in (0.0, 0.37, 0.999):  # another training changes all of a tensor
        start = int(share * len(data))
        weights.write_bytes(data[:start] + bytes(255 - byte for byte in data[start:]))
        assert model(copy) != model(original)
