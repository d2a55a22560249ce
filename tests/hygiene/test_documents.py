"""Documents point at things that exist, and nothing points out of the repository."""

from __future__ import annotations

import re
import subprocess
from pathlib import Path

import pytest

LINK = re.compile(r"!?\[[^\]]*\]\(\s*<?([^)\s>]+)>?[^)]*\)")
FENCE = re.compile(r"^(```|~~~).*?^\1", re.M | re.S)
HEADING = re.compile(r"^#+\s+(.*?)\s*#*\s*$", re.M)
MAKE = re.compile(r"^\s*make\s+([a-z][\w-]*)", re.M)
MODULE = re.compile(r"python3?\s+(?:-\w\s+)*-m\s+(sdpo[\w.]*)")
# Split, so that this file does not find itself.
OUTSIDE = re.compile(r"(?<![\w.~$})/-])/" + r"work/|\.\./" + r"shared\b")


def tracked(repository: Path) -> list[Path]:
    """Files that git has or would take; without git, everything outside hidden folders."""
    command = ["git", "ls-files", "-co", "--exclude-standard", "-z"]
    listing = subprocess.run(command, cwd=repository, capture_output=True, text=True, check=False)
    if listing.returncode == 0:
        paths = [repository / name for name in listing.stdout.split("\0") if name]
    else:
        hidden = re.compile(r"(^|/)\.")
        paths = [path for path in repository.rglob("*") if not hidden.search(path.relative_to(repository).as_posix())]
    return [path for path in paths if path.is_file()]


def documents(repository: Path) -> list[Path]:
    return [path for path in tracked(repository) if path.suffix == ".md"]


def slugs(text: str) -> set[str]:
    """Anchors of a page's headings, as GitHub makes them."""
    titles = [re.sub(r"\[([^\]]*)\]\([^)]*\)", r"\1", title) for title in HEADING.findall(FENCE.sub("", text))]
    return {re.sub(r"[^\w\- ]", "", title).strip().lower().replace(" ", "-") for title in titles}


def broken_links(page: Path) -> list[str]:
    text = page.read_text(encoding="utf-8")
    broken = []
    for target in LINK.findall(re.sub(r"`[^`\n]*`", "", FENCE.sub("", text))):
        if re.match(r"[a-z]+:", target):
            continue
        name, _, anchor = target.partition("#")
        file = (page.parent / name).resolve() if name else page
        if not file.exists() or not has_anchor(file, anchor):
            broken.append(target)
    return broken


def has_anchor(file: Path, anchor: str) -> bool:
    return not anchor or file.suffix != ".md" or anchor.lower() in slugs(file.read_text(encoding="utf-8"))


def test_relative_links_resolve(repository: Path) -> None:
    found = [f"{page.relative_to(repository)}: {link}" for page in documents(repository) for link in broken_links(page)]
    assert not found, "\n" + "\n".join(found)


def test_make_targets_in_documents_exist(repository: Path) -> None:
    targets = set(re.findall(r"^([a-z][\w-]*):", (repository / "Makefile").read_text(encoding="utf-8"), re.M))
    found = [
        f"{page.relative_to(repository)}: make {name}"
        for page in documents(repository)
        for block in re.findall(r"^```(?:bash|sh|console)\n(.*?)^```", page.read_text(encoding="utf-8"), re.M | re.S)
        for name in MAKE.findall(block)
        if name not in targets
    ]
    assert not found, "\n" + "\n".join(found)


def test_modules_in_documents_exist(repository: Path) -> None:
    found = []
    for page in documents(repository):
        for module in sorted(set(MODULE.findall(page.read_text(encoding="utf-8")))):
            path = repository / module.replace(".", "/")
            if not (path.with_suffix(".py").exists() or (path / "__main__.py").exists()):
                found.append(f"{page.relative_to(repository)}: python -m {module}")
    assert not found, "\n" + "\n".join(found)


@pytest.mark.parametrize("command", ["make quickstart", "make test", "python -m sdpo.main_sdpo"])
def test_readme_shows_the_command(command: str, repository: Path) -> None:
    readme = (repository / "README.md").read_text(encoding="utf-8")
    assert re.search(rf"^{re.escape(command)}\b", readme, re.M), f"README.md has no line that starts with {command!r}"


def test_nothing_points_out_of_the_repository(repository: Path) -> None:
    found = []
    for path in tracked(repository):
        try:
            lines = path.read_text(encoding="utf-8").splitlines()
        except UnicodeDecodeError:
            continue  # weights and pictures
        numbered = ((n, line) for n, line in enumerate(lines, 1) if OUTSIDE.search(line))
        found += [f"{path.relative_to(repository)}:{n}: {line.strip()[:100]}" for n, line in numbered]
    assert not found, "\n" + "\n".join(found)


def test_a_broken_link_is_seen(tmp_path: Path) -> None:
    page = tmp_path / "page.md"
    page.write_text("# One two\n[a](#one-two) [b](page.md) [c](gone.md) [d](https://x) `[e](no.md)` [f](page.md#no)\n")
    assert broken_links(page) == ["gone.md", "page.md#no"]
