from __future__ import annotations

from collections.abc import Iterator

import pytest

from sdpo.grading.code import CodeGrader
from sdpo.grading.feedback import FeedbackOptions
from sdpo.grading.sandbox.limits import Limits
from sdpo.grading.sandbox.sandbox import Sandbox, SandboxOptions

FAST = Limits(cpu_s=1.0, memory_mb=256)


@pytest.fixture(scope="session")
def sandbox() -> Iterator[Sandbox]:
    """The strongest level of this machine."""
    with Sandbox(SandboxOptions(concurrency=8)) as box:
        yield box


@pytest.fixture(scope="session")
def weakest_sandbox() -> Iterator[Sandbox]:
    """L1: no files at all, the standard library from memory."""
    with Sandbox(SandboxOptions(ceiling="L1")) as box:
        yield box


@pytest.fixture(scope="session")
def code_grader(sandbox: Sandbox) -> CodeGrader:
    return CodeGrader(sandbox, FAST, FeedbackOptions())
