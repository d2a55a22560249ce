"""docs/metrics.md is complete: a metric that the source names is explained there."""

from __future__ import annotations

import re
from pathlib import Path

import sdpo
from sdpo.records import GradeStatus

SOURCE = Path(sdpo.__file__).parent
PAGE = (SOURCE.parent / "docs" / "metrics.md").read_text(encoding="utf-8")
NAME = re.compile(r'"((?:train|sdpo|actor|grpo|val|timing|perf|rollout|grade)/[a-z_@]+)"')
NOT_LOGGED = {
    "val/accuracy",  # taken out in favour of avg@n
    "val/pass@",  # a prefix
    "train/step",  # the axis of the trackers
}


def test_every_metric_that_the_source_names_is_explained():
    names = {name for path in SOURCE.rglob("*.py") for name in NAME.findall(path.read_text(encoding="utf-8"))}
    assert len(names) > 30
    assert sorted(name for name in names - NOT_LOGGED if f"`{name}`" not in PAGE) == []


def test_every_status_of_the_grader_is_explained():
    assert [status for status in GradeStatus if f"`{status}`" not in PAGE] == []
