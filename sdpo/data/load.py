"""The prompts of a run: files and built-in tasks, validated row by row, and the filter on rendered length."""

from __future__ import annotations

import logging
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from itertools import islice
from pathlib import Path
from typing import Literal

from sdpo.config.schema import DataConfig
from sdpo.data.files import is_table, read_rows, stem_of
from sdpo.data.programs import PARTS, SPLITS, problems
from sdpo.data.rows import to_prompt
from sdpo.errors import DataError, problem
from sdpo.records import Prompt
from sdpo.tokens.chat import ChatRenderer

BUILTIN = "builtin://"

Part = Literal["train", "val"]

_LOG = logging.getLogger(__name__)
_LISTED = 5  # dropped rows named in the note


def load_prompts(files: Sequence[str], config: DataConfig, part: Part = "train") -> list[Prompt]:
    """All prompts of the files, in order, cut to `train_max_samples` or `val_max_samples`.

    uids are "PART/FILE:ROW", rows counted from 1; when two files have the same name, their place in the list is added.
    Raises DataError: no files, a missing or empty file, an unknown kind of file, a row that cannot be used.
    """
    field = f"data.{part}_files"
    if not files:
        raise DataError(problem(field, list(files), "at least one file"))
    limit = config.train_max_samples if part == "train" else config.val_max_samples
    prompts = list(islice(_all_prompts(files, config, part, field), limit if limit >= 0 else None))
    if not prompts:
        raise DataError(problem(f"data.{part}_max_samples", limit, "-1 for all, or a number >= 1"))
    return prompts


def _all_prompts(files: Sequence[str], config: DataConfig, part: str, field: str) -> Iterator[Prompt]:
    stems = Counter(stem_of(Path(name)) for name in files)
    for place, name in enumerate(files, 1):
        if name.startswith(BUILTIN):
            several = sum(other.startswith(BUILTIN) for other in files) > 1
            yield from (replace(p, uid=f"{place}-{p.uid}") if several else p for p in _builtin(name, field))
            continue
        path = Path(name).expanduser()
        label = f"{part}/{stem_of(path)}" if stems[stem_of(path)] == 1 else f"{part}/{place}-{stem_of(path)}"
        table = is_table(path)
        for number, row in enumerate(read_rows(path, field), 1):
            yield to_prompt(row, f"{label}:{number}", f"{path} row {number}", config.prompt_key, from_table=table)


def _builtin(name: str, field: str) -> list[Prompt]:
    task, _, rest = name.removeprefix(BUILTIN).partition("/")
    split, _, part = rest.partition("/")
    if task != "programs" or split not in SPLITS or part not in PARTS:
        allowed = ", ".join(f"{BUILTIN}programs/{s}/{p}" for s in SPLITS for p in PARTS)
        raise DataError(problem(field, name, allowed))
    return problems(split, part)


def filter_overlong(
    prompts: Sequence[Prompt], chat: ChatRenderer, config: DataConfig, note: Callable[[str], None] = _LOG.warning
) -> list[Prompt]:
    """Without the prompts of more than `max_prompt_length` tokens, counted as the policy sees them: rendered with the
    chat template, its options, the tools and the generation header. `note` is told how many were dropped, and which.

    Raises DataError when nothing is left, or at the first overlong prompt when `filter_overlong_prompts` is off.
    """
    limit = config.max_prompt_length
    kept: list[Prompt] = []
    dropped: list[tuple[str, int]] = []
    for prompt in prompts:
        tokens = len(chat.student_ids(prompt))
        if tokens <= limit:
            kept.append(prompt)
            continue
        dropped.append((prompt.uid, tokens))
        if not config.filter_overlong_prompts:
            fix = "raise the limit or set data.filter_overlong_prompts=true to drop such rows"
            raise DataError(f"prompt {prompt.uid}: {tokens} tokens, data.max_prompt_length is {limit}; {fix}")
    if prompts and not kept:
        shortest = min(tokens for _, tokens in dropped)
        raise DataError(
            problem("data.max_prompt_length", limit, f"at least {shortest}, the shortest of {len(dropped)} prompts")
        )
    if dropped:
        listed = ", ".join(f"{uid} ({tokens})" for uid, tokens in dropped[:_LISTED])
        more = f" and {len(dropped) - _LISTED} more" if len(dropped) > _LISTED else ""
        note(f"dropped {len(dropped)} of {len(prompts)} prompts over {limit} tokens: {listed}{more}")
    return kept
