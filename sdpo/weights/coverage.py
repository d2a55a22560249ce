"""Are published weights all of a model? Reads headers only."""

from __future__ import annotations

from sdpo.errors import RolloutError, problem
from sdpo.models.file_names import stored_tensors
from sdpo.weights.version import read_label


def check_coverage(folder: str, model_folder: str) -> None:
    """Raises RolloutError when `folder` lacks a tensor of `model_folder` or has it in another shape: an engine would
    go on with the old one and say nothing. What the label names as tied may be missing: the engine ties it, too. Does
    nothing when `model_folder` is not a local folder of safetensors files."""
    expected = stored_tensors(model_folder)
    if not expected:
        return
    given, tied = stored_tensors(folder), read_label(folder).tied
    missing = sorted(name for name in expected if name not in given and name not in tied)
    if missing:
        raise RolloutError(problem("weights.missing", missing[:3], f"all {len(expected)} tensors of {model_folder}"))
    wrong = sorted(name for name in given if name in expected and given[name].shape != expected[name].shape)
    if wrong:
        name = wrong[0]
        raise RolloutError(problem(f"weights shape of {name}", given[name].shape, str(expected[name].shape)))

