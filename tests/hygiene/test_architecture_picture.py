"""The picture in docs/architecture.md shows modules that exist, and its solid arrows are imports."""

from __future__ import annotations

import ast
import re
from pathlib import Path

import pytest

from tests.hygiene.test_import_arrows import imported

NODE = re.compile(r"(\w+)\[([\w/.]+)\]")
ARROW = re.compile(r"(\w+)(?:\[[\w/.]+\])?\s*(-->|-\.->)\s*(?=(\w+))")


@pytest.fixture(scope="module")
def picture(repository: Path) -> str:
    page = (repository / "docs" / "architecture.md").read_text(encoding="utf-8")
    return page.partition("```mermaid\n")[2].partition("```")[0]


def test_every_box_is_a_module(picture: str, repository: Path) -> None:
    boxes = dict(NODE.findall(picture))
    assert len(boxes) > 15
    assert [path for path in boxes.values() if not (repository / "sdpo" / path).is_file()] == []


def test_every_solid_arrow_is_an_import_and_every_dotted_one_is_none(picture: str, repository: Path) -> None:
    boxes = dict(NODE.findall(picture))
    arrows = ARROW.findall(picture)
    assert len(arrows) >= len(boxes) - 1
    wrong = []
    for start, kind, end in arrows:
        source = repository / "sdpo" / boxes[start]
        target = "sdpo." + boxes[end].removesuffix(".py").replace("/", ".")
        names = [name for _, name in imported(boxes[start], ast.parse(source.read_text(encoding="utf-8")))]
        imports = any(name == target or name.startswith(f"{target}.") for name in names)
        if imports != (kind == "-->"):
            wrong.append(f"{boxes[start]} {kind} {boxes[end]}")
    assert wrong == []
