"""From graded groups to mini-batches: which samples may be trained on, and which rows share an optimizer step."""

from __future__ import annotations

from sdpo.records import Group, MiniBatch, Sample, TrainRow


def usable(sample: Sample) -> bool:
    """Graded, finished and not empty. A failure of the grader or the engine says nothing about the answer."""
    graded = sample.grade is not None and sample.grade.graded
    return graded and sample.finish_reason != "abort" and bool(sample.response_ids)


def split_into_steps(rows: list[list[TrainRow]], prompts_per_step: int) -> tuple[list[MiniBatch], int]:
    """One list of rows per group, in order -> mini-batches of `prompts_per_step` groups, and how many were empty.

    Groups without rows keep their place, so that a prompt's mini-batch does not depend on its neighbours' rewards.
    """
    steps = [rows[start : start + prompts_per_step] for start in range(0, len(rows), prompts_per_step)]
    batches = [MiniBatch([row for group in step for row in group]) for step in steps]
    filled = [batch for batch in batches if batch.rows]
    return filled, len(batches) - len(filled)


def usable_samples(groups: list[Group]) -> int:
    return sum(usable(sample) for group in groups for sample in group.samples)


def fraction(part: float, whole: float) -> float:
    """part / whole, 0 for nothing at all."""
    return part / whole if whole else 0.0
