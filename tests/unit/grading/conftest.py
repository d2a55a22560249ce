from __future__ import annotations

import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from sdpo.grading.code import CodeGrader
from sdpo.grading.feedback import FeedbackOptions
from sdpo.sandbox.limits import Limits
from sdpo.sandbox.sandbox import Sandbox, SandboxOptions

sys.path.insert(0, str(Path(__file__).parent))  # modules that tests share: program_files
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
