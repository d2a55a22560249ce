"""Settings of the grader that would make every answer wrong are refused, in one line."""

from __future__ import annotations

import pytest

from sdpo.config.compose import compose
from sdpo.config.validate import validate
from sdpo.errors import ConfigError


def refusal(*overrides: str) -> str:
    with pytest.raises(ConfigError) as caught:
        validate(compose(list(overrides)))
    return str(caught.value)


@pytest.mark.parametrize(
    ("setting", "words"),
    [
        ("grading.packages=[nosuchpkg]", "grading.packages: got 'nosuchpkg'; allowed: names of packages that can be"),
        ("grading.packages=[numpy,scipy/stats]", "grading.packages: got 'scipy/stats'"),
        ("grading.cpu_seconds=0.001", "grading.cpu_seconds: got 0.001; allowed: a number >= 0.1"),
        ("grading.memory_mb=1", "grading.memory_mb: got 1; allowed: a number >= 16"),
        ("grading.feedback_max_chars=1", "grading.feedback_max_chars: got 1; allowed: a number >= 100"),
    ],
)
def test_a_setting_that_no_program_could_pass_under_is_one_line(setting, words):
    said = refusal(setting)
    assert words in said
    assert "\n" not in said


def test_packages_of_a_remote_service_are_not_looked_for_here():
    settings = ["grading.packages=[nosuchpkg]", "grading.backend=http", "grading.service_url=http://x:1"]
    assert validate(compose(settings)) is None  # nothing is raised
