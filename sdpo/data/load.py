"""The prompts of a run: files, hub data sets, built-in tasks; validated row by row, and which can be used."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, field, replace
from importlib import import_module
from itertools import islice
from pathlib import Path
from typing import Any, Literal

from sdpo.config.schema import DataConfig
from sdpo.data.columns import Columns, answer_column
from sdpo.data.files import is_table, read_rows, stem_of
from sdpo.data.hub import HUB, hub_label, read_folder, read_hub, split_of_folder
from sdpo.data.rows import to_prompt
from sdpo.data.store import PromptStore
from sdpo.errors import DataError, problem
from sdpo.records import Prompt
from sdpo.tokens.chat import ChatRenderer

BUILTIN = "builtin://"
EMBEDDED = "sdpo.embedded.programs"  # a task that comes with the package, known by name only

Part = Literal["train", "val"]

_LISTED = 5  # dropped rows named in a summary


def iter_prompts(files: Sequence[str], config: DataConfig, part: Part = "train") -> Iterator[Prompt]:
    """The prompts of the files, in order and one at a time, cut to `train_max_samples` or `val_max_samples`.

    uids are "PART/FILE:ROW", rows counted from 1; when two files have the same name, their place in the list is added.
    Raises DataError: no files, a missing or empty file, an unknown kind of file, a row that cannot be used.
    """
    name = f"data.{part}_files"
    if not files:
        raise DataError(problem(name, list(files), "at least one file"))
    limit = config.train_max_samples if part == "train" else config.val_max_samples
    if limit == 0:
        raise DataError(problem(f"data.{part}_max_samples", limit, "-1 for all, or a number >= 1"))
    yield from islice(_all_prompts(files, config, part, name), limit if limit >= 0 else None)


def load_prompts(files: Sequence[str], config: DataConfig, part: Part = "train") -> list[Prompt]:
    """`iter_prompts` as a list, for data that fits in memory."""
    return list(iter_prompts(files, config, part))


def _all_prompts(files: Sequence[str], config: DataConfig, part: str, field: str) -> Iterator[Prompt]:
    labels, columns = [_label(name) for name in files], Columns.of(config)
    for place, (name, label) in enumerate(zip(files, labels, strict=True), 1):
        several = Counter(labels)[label] > 1
        if name.startswith(BUILTIN):
            yield from (replace(p, uid=f"{place}-{p.uid}") if several else p for p in _builtin(name, field))
            continue
        prefix = f"{part}/{place}-{label}" if several else f"{part}/{label}"
        rows, table = open_rows(name, field)
        for number, row in enumerate(rows, 1):
            yield to_prompt(row, f"{prefix}:{number}", f"{name} row {number}", columns, from_table=table)


def _label(name: str) -> str:
    """What the ids of a file's rows start with. All built-in tasks have one: the same ids are in several of them."""
    if name.startswith(BUILTIN):
        return BUILTIN
    if name.startswith(HUB):
        return hub_label(name)
    folder = split_of_folder(name)
    if folder is not None:
        return "-".join(filter(None, [folder[0].name, folder[2]]))
    return stem_of(Path(name))


def open_rows(name: str, field: str) -> tuple[Iterator[dict[str, Any]], bool]:
    """The raw rows of a file, a folder or a hub data set, and whether a table format gave them all one schema."""
    if name.startswith(HUB):
        return read_hub(name, field), True
    if split_of_folder(name) is not None:
        return read_folder(name, field), True
    path = Path(name).expanduser()
    return read_rows(path, field), is_table(path)


def _builtin(name: str, field: str) -> list[Prompt]:
    parts = import_module(EMBEDDED).BUILTIN_PARTS
    if name.removeprefix(BUILTIN) not in parts:
        raise DataError(problem(field, name, ", ".join(BUILTIN + part for part in parts)))
    return parts[name.removeprefix(BUILTIN)]()


@dataclass(frozen=True)
class Drop:
    """A row that is not used."""

    uid: str  # ends in the row number
    field: str
    why: str


@dataclass
class Selection:
    """The prompts of a part that a run uses, on disk, and the rows it does not."""

    prompts: PromptStore = field(default_factory=PromptStore)
    dropped: list[Drop] = field(default_factory=list)

    def summary(self) -> str:
        """One line: how many were dropped, and each reason once with its count; "" when none was."""
        if not self.dropped:
            return ""
        fields = Counter(drop.field for drop in self.dropped)
        counts = ", ".join(f"{count} for {name}" for name, count in fields.items())
        reasons: dict[str, list[str]] = {}
        for drop in self.dropped:
            reasons.setdefault(drop.why, []).append(drop.uid)
        shown = list(reasons.items())[:_LISTED]
        listed = "; ".join(
            f"{uids[0]}{f' and {len(uids) - 1} more' if len(uids) > 1 else ''}: {why}" for why, uids in shown
        )
        rest = len(self.dropped) - sum(len(uids) for _, uids in shown)
        more = f"; and {rest} more" if rest else ""
        total = len(self.dropped) + len(self.prompts)
        return f"dropped {len(self.dropped)} of {total} rows ({counts}): {listed}{more}"


def select_prompts(
    prompts: Iterable[Prompt],
    chat: ChatRenderer,
    config: DataConfig,
    cannot_grade: Callable[[Prompt], str | None] = lambda _: None,
) -> Selection:
    """Without the prompts that nobody can grade (`cannot_grade` says why) and those of more than `max_prompt_length`
    tokens, counted as the policy sees them: rendered with the chat template, its options, the tools and the generation
    header.

    Raises DataError when nothing is left, or at the first overlong prompt when `filter_overlong_prompts` is off.
    """
    selection = Selection()
    limit, shortest = config.max_prompt_length, None
    for prompt in prompts:
        try:
            reason = cannot_grade(prompt)
        except DataError as error:  # a source that nobody grades, and the grader does not know the row
            raise DataError(f"row {prompt.uid}: {error}") from error
        if reason:
            column = answer_column(prompt.extra_info) if prompt.ground_truth is None else None
            reason += f"; the row has {column}: set data.answer_key={column}" if column else ""
            selection.dropped.append(Drop(prompt.uid, "reward_model.ground_truth", reason))
            continue
        try:
            tokens = len(chat.student_ids(prompt))
        except DataError as error:  # the template refuses it, and does not know its row
            raise DataError(f"row {prompt.uid}: {error}") from error
        if tokens <= limit:
            selection.prompts.append(prompt)
            continue
        shortest = min(tokens, shortest or tokens)
        selection.dropped.append(Drop(prompt.uid, config.prompt_key, f"{tokens} tokens, more than {limit}"))
        if not config.filter_overlong_prompts:
            fix = "raise the limit or set data.filter_overlong_prompts=true to drop such rows"
            raise DataError(f"prompt {prompt.uid}: {tokens} tokens, data.max_prompt_length is {limit}; {fix}")
    if selection.dropped and not selection.prompts:
        if shortest is None:
            first = selection.dropped[0]
            count = len(selection.dropped)
            raise DataError(f"row {first.uid}: {first.why}; none of the {count} rows can be graded")
        allowed = f"at least {shortest}, the shortest of {len(selection.dropped)} prompts"
        raise DataError(problem("data.max_prompt_length", limit, allowed))
    return selection
