"""Reads the programs under test: text files with entries "=== name" and sections "--- section"."""

from __future__ import annotations

from pathlib import Path

FOLDER = Path(__file__).resolve().parents[2] / "fixtures" / "programs"


def read_programs(name: str) -> dict[str, dict[str, str]]:
    """Entry -> section -> text, each text with one newline at its end."""
    entries: dict[str, dict[str, str]] = {}
    for block in (FOLDER / name).read_text(encoding="utf-8").split("\n=== ")[1:]:
        title, _, body = block.partition("\n")
        sections = {}
        for section in ("\n" + body).split("\n--- ")[1:]:
            label, _, text = section.partition("\n")
            sections[label] = text.rstrip("\n") + "\n"
        entries[title] = sections
    return entries
