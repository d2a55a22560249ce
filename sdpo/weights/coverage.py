"""Are weights all of a model? An engine would go on with what it has of those that are missing, and say nothing."""

from __future__ import annotations

from collections.abc import Collection, Generator, Iterator, Mapping
from typing import TYPE_CHECKING, Any

from sdpo.errors import RolloutError, problem
from sdpo.models.file_names import stored_tensors
from sdpo.weights.version import Label, read_label

if TYPE_CHECKING:
    from sdpo.weights.source import Group


def check_coverage(folder: str, model_folder: str) -> None:
    """Raises RolloutError when `folder`, of published weights, lacks a tensor of `model_folder` or has it in another
    shape. Reads headers only. What the label names as tied may be missing: the engine ties it, too. Does nothing when
    `model_folder` is not a local folder of safetensors files."""
    if stored_tensors(model_folder):
        shapes = {name: tensor.shape for name, tensor in stored_tensors(folder).items()}
        _check(shapes, read_label(folder).tied, model_folder)


def covering(groups: Generator[Group, None, Label], model_folder: str) -> Iterator[Group]:
    """The groups, which arrive; `check_coverage` of them behind the last."""
    shapes: dict[str, Any] = {}
    while True:
        try:
            group = next(groups)
        except StopIteration as end:
            return _check(shapes, end.value.tied, model_folder)
        shapes.update({name: tuple(tensor.shape) for name, tensor in group.items()})
        yield group


def _check(given: Mapping[str, Any], tied: Collection[str], model_folder: str) -> None:
    expected = stored_tensors(model_folder)
    missing = sorted(name for name in expected if name not in given and name not in tied)
    if missing:
        raise RolloutError(problem("weights.missing", missing[:3], f"all {len(expected)} tensors of {model_folder}"))
    wrong = sorted(name for name in given if name in expected and given[name] != expected[name].shape)
    if wrong:
        name = wrong[0]
        raise RolloutError(problem(f"weights shape of {name}", given[name], str(expected[name].shape)))
