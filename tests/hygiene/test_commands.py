"""Every command of the documents is one that its program takes: options and settings exist, values are allowed."""

from __future__ import annotations

import argparse
import importlib
import os
import re
import runpy
import shlex
import sys
from pathlib import Path

import pytest

from tests.hygiene.test_documents import documents

COMMAND = re.compile(
    r"^\s*(?:[A-Z_]+=\S+ +)*python3? +(?P<what>-m +sdpo[\w.]*|(?:recipes|examples)/\S+\.py)(?P<rest>.*)$", re.M
)
REMARK = re.compile(r"\s+#.*$|\s{2,}\S.*$")  # behind a command
CONFIGURED = ("sdpo.main_sdpo", "sdpo.cli.screen")  # their other words are settings


class Parsed(Exception):
    pass


def commands(repository: Path) -> list[str]:
    found = []
    for page in documents(repository):
        text = page.read_text(encoding="utf-8").replace("\\\n", " ")
        for match in COMMAND.finditer(text):
            rest = REMARK.sub("", match["rest"])
            if "[--" in rest:  # may be left out
                rest = rest.translate(str.maketrans("", "", "[]"))
            found.append(f"{match['what']} {rest}".strip())
    return sorted(set(found))


@pytest.fixture
def parsing_ends(monkeypatch, repository: Path) -> None:
    """A program ends when it has taken its words. What it sets in the environment goes."""

    def ended(*args, **named):
        raise Parsed

    for name in ("parse_args", "parse_intermixed_args"):
        real = getattr(argparse.ArgumentParser, name)
        monkeypatch.setattr(
            argparse.ArgumentParser, name, lambda *args, real=real, **named: ended(real(*args, **named))
        )
    for name in ("_check", "_prepare"):  # it looks at what is left over first
        monkeypatch.setattr(f"sdpo.cli.data.{name}", ended)
    for name, value in os.environ.items():
        monkeypatch.setenv(name, value)
    monkeypatch.setattr(sys, "path", [str(repository / "recipes" / "benchmarks"), *sys.path])


def take(command: str, repository: Path) -> None:
    """Raises SystemExit or SdpoError for words that the program does not take."""
    what, *words = shlex.split(command)
    before, modules = set(os.environ), set(sys.modules)
    try:
        with pytest.raises(Parsed):
            if what == "-m":
                module, *words = words
                importlib.import_module(module).main(words)
            else:
                sys.argv = [what, *words]
                runpy.run_path(str(repository / what), run_name="__main__")
    finally:
        for name in set(os.environ) - before:
            del os.environ[name]
        for name in set(sys.modules) - modules:
            if "/recipes/" in str(getattr(sys.modules[name], "__file__", "")):
                del sys.modules[name]


def test_every_command_in_the_documents_is_taken(repository: Path, parsing_ends, monkeypatch) -> None:
    from sdpo.config.compose import compose

    monkeypatch.setattr(sys, "argv", sys.argv)
    found, refused = commands(repository), []
    assert len(found) > 40
    for command in found:
        try:
            if command.split()[:2][-1] in CONFIGURED:
                words = shlex.split(command)[2:]
                name = words[words.index("--config-name") + 1] if "--config-name" in words else "sdpo"
                compose([w for w in words if "=" in w], name)
            else:
                take(command, repository)
        except (SystemExit, Exception, pytest.fail.Exception) as error:  # whatever it is, the page is wrong
            refused.append(f"{command}: {type(error).__name__} {error}")
    assert not refused, "\n" + "\n".join(refused)


@pytest.mark.parametrize(
    "wrong", ["-m sdpo.cli.export RUN --mergd", "-m sdpo.cli.evaluate", "recipes/benchmarks/sync.py -x"]
)
def test_a_command_that_is_not_taken_is_seen(wrong: str, repository: Path, parsing_ends, monkeypatch, capsys) -> None:
    monkeypatch.setattr(sys, "argv", sys.argv)
    with pytest.raises(SystemExit):
        take(wrong, repository)
    capsys.readouterr()
