import ast
import gc
import time
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from pathlib import Path

import pytest

from sdpo.sandbox import python_syntax

SOURCE = "assert search([5, 5, 5, 5, 1]) == 1\n" * 40


class Finalized:
    """Garbage whose finalizer lets other threads run: the collector may call it in the middle of a syntax tree."""

    def __init__(self) -> None:
        self.circle = self

    def __del__(self) -> None:
        time.sleep(0.0005)


@pytest.fixture
def eager_collector():
    before = gc.get_threshold()
    gc.set_threshold(20)
    yield
    gc.set_threshold(*before)


@pytest.mark.parametrize("foreign", [False, True], ids=["all with the lock", "one thread of a custom grader without"])
def test_threads_that_parse_do_not_break_each_other(eager_collector, foreign: bool) -> None:
    def parse_often(number: int) -> int:
        for _ in range(150):
            Finalized()
            if foreign and number == 0:
                with suppress(SystemError):  # what this test is about, in a thread that does not use ours
                    ast.parse(SOURCE)
            else:
                assert len(python_syntax.parse(SOURCE).body) == 40
        return 1

    with ThreadPoolExecutor(4) as threads:
        assert sum(threads.map(parse_often, range(4))) == 4


def test_what_is_no_program_is_refused_as_the_parser_does() -> None:
    for text in ("def f(:", "\0", "(" * 500 + ")" * 500):
        with pytest.raises((SyntaxError, ValueError)):
            python_syntax.parse(text)


def test_graders_parse_in_one_place(repository: Path) -> None:
    """They run in threads; `data prepare`, which does not, may call the parser as it is."""
    calls = {
        path.relative_to(repository).as_posix()
        for path in (repository / "sdpo").rglob("*.py")
        if "ast.parse(" in path.read_text(encoding="utf-8").replace("`ast.parse", "")
    }
    assert calls == {"sdpo/sandbox/python_syntax.py", "sdpo/data/prepare/source.py"}
