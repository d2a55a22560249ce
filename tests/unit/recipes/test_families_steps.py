"""Families that people train take two SDPO steps; engine and trainer agree before and after new weights."""

from __future__ import annotations

import pytest

FAMILIES = ("olmo3", "gemma2", "gemma3_text", "gemma4_text", "qwen3_5_text", "gpt_oss", "qwen3_moe")


def test_the_page_has_a_line_of_every_family(benchmark_module, repository) -> None:
    steps = benchmark_module("families_steps")
    assert tuple(steps.FAMILIES) == FAMILIES
    table = (repository / "docs" / "models.md").read_text().split(steps.START)[1].split(steps.END)[0]
    assert [line.split("`")[1] for line in table.splitlines()[2:]] == [*FAMILIES]


@pytest.mark.slow
@pytest.mark.timeout(600)
@pytest.mark.parametrize("family", FAMILIES)
def test_a_family_takes_two_steps_and_its_engine_agrees_with_the_trainer(benchmark_module, family: str) -> None:
    found = benchmark_module("families_steps").measure(family)
    assert "reason" not in found, found
    assert len(found["difference"]) == 2 and max(found["difference"]) < 1e-4, found
    assert min(found["grad_norm"]) > 0
    assert ("vllm" in found) == (family in ("qwen3_5_text", "gpt_oss")), found
