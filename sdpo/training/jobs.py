"""The prompts of a run, ready to be sampled: on disk, rendered when they are due."""

from __future__ import annotations

import json
import logging
from collections.abc import Iterator, Sequence
from dataclasses import replace
from pathlib import Path
from typing import overload

from sdpo.config.schema import Config
from sdpo.data.load import Part, Selection, iter_prompts, select_prompts
from sdpo.environments.registry import environment_class, environment_maker
from sdpo.grading.registry import build_source_grader
from sdpo.records import Prompt
from sdpo.tokens.chat import ChatRenderer
from sdpo.tracking.history import DROPPED_FILE
from sdpo.workers.rollout import RenderedPrompt

logger = logging.getLogger(__name__)


class Jobs(Sequence[RenderedPrompt]):
    """Prompts by position. Memory does not grow with their number."""

    def __init__(self, selection: Selection, chat: ChatRenderer) -> None:
        self.selection, self.chat = selection, chat

    @classmethod
    def none(cls, chat: ChatRenderer) -> Jobs:
        return cls(Selection(), chat)

    def __len__(self) -> int:
        return len(self.selection.prompts)

    @overload
    def __getitem__(self, place: int) -> RenderedPrompt: ...

    @overload
    def __getitem__(self, place: slice) -> list[RenderedPrompt]: ...

    def __getitem__(self, place: int | slice) -> RenderedPrompt | list[RenderedPrompt]:
        if isinstance(place, slice):
            return [self._job(prompt) for prompt in self.selection.prompts[place]]
        return self._job(self.selection.prompts[place])

    def _job(self, prompt: Prompt) -> RenderedPrompt:
        return RenderedPrompt(prompt, self.chat.student_ids(prompt))


def load_jobs(config: Config, chat: ChatRenderer, part: Part) -> Jobs:
    """The prompts of a part ("train" or "val"). Rows that are too long, or that nobody can grade, are dropped.
    Without files there are none.

    Raises DataError for a file or row that cannot be used, an unknown data source, and when nothing is left.
    """
    files = config.data.train_files if part == "train" else config.data.val_files
    if not files:
        return Jobs.none(chat)
    grader = build_source_grader(config)
    try:
        prompts = with_tools(config, iter_prompts(files, config.data, part))
        selection = select_prompts(prompts, chat, config.data, grader.check)
    finally:
        grader.close()
    if selection.dropped:
        logger.warning("data.%s_files: %s", part, selection.summary())
    return Jobs(selection, chat)


def with_tools(config: Config, prompts: Iterator[Prompt]) -> Iterator[Prompt]:
    """The prompts, with the tools of the environment behind their own."""
    environment_maker(config)  # refuses settings before a model is loaded
    tools = tuple(getattr(environment_class(config), "tools", ()))
    return (replace(p, tools=(*(p.tools or ()), *tools)) for p in prompts) if tools else prompts


def write_dropped(run_dir: Path, *parts: Jobs) -> None:
    """All dropped rows, one a line: {"uid", "field", "why"}; no file when none was dropped."""
    dropped = [drop for jobs in parts for drop in jobs.selection.dropped]
    (run_dir / DROPPED_FILE).unlink(missing_ok=True)
    if dropped:
        lines = [json.dumps(vars(drop), ensure_ascii=False) + "\n" for drop in dropped]
        (run_dir / DROPPED_FILE).write_text("".join(lines), encoding="utf-8")
