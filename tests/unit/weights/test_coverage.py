"""Weights that are not the whole model are refused before an engine goes on with an old tensor."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from safetensors.torch import save_file

from sdpo.errors import RolloutError
from sdpo.weights.coverage import check_coverage
from sdpo.weights.shared_memory import send

NAMES = ("embed.weight", "layer.0.weight", "layer.1.bias", "lm_head.weight", "lm_head.bias", "output.weight")


def model() -> dict[str, torch.Tensor]:
    return {name: torch.full((2, 3), float(place)) for place, name in enumerate(NAMES)}


@given(missing=st.sets(st.sampled_from(NAMES), min_size=1, max_size=len(NAMES) - 1))
def test_no_tensor_may_be_missing_not_even_a_head(tmp_path_factory: pytest.TempPathFactory, missing: set[str]) -> None:
    folder = tmp_path_factory.mktemp("model")
    save_file(model(), folder / "model.safetensors")
    few = {name: tensor for name, tensor in model().items() if name not in missing}
    with pytest.raises(RolloutError, match="weights.missing.*" + sorted(missing)[0]):
        check_coverage(send([few], str(folder / "sent"), 1), str(folder))


def test_a_head_that_is_tied_in_the_trainer_may_be_missing_also_where_the_folder_has_it(tmp_path: Path) -> None:
    save_file(model(), tmp_path / "model.safetensors")
    sent = model()
    del sent["lm_head.weight"]
    check_coverage(send([sent], str(tmp_path / "sent"), 1, ["lm_head.weight"]), str(tmp_path))


def test_a_tensor_of_another_shape_is_refused_and_a_hub_id_is_not_looked_at(tmp_path: Path) -> None:
    save_file(model(), tmp_path / "model.safetensors")
    sent = send([model() | {"layer.1.bias": torch.zeros(4)}], str(tmp_path / "sent"), 1)
    with pytest.raises(RolloutError, match="weights shape of layer.1.bias"):
        check_coverage(sent, str(tmp_path))
    check_coverage(sent, "some/hub-id")
