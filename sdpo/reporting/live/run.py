"""What the page knows of a run: metrics in memory, samples and token lines as places in their files."""

from __future__ import annotations

import json
import threading
import time
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from sys import intern
from typing import Any

from sdpo.errors import DataError, problem
from sdpo.reporting.live.tail import Place, Tail
from sdpo.tracking.history import (
    CONFIG_FILE,
    METRICS_FILE,
    SAMPLES_FILE,
    STATE_FILE,
    TOKENS_FILE,
    RunHistory,
    add_to_columns,
    is_solved,
    read_json,
    read_yaml,
    success_threshold,
)
from sdpo.tracking.jsonl import decode

SLICE = 8 << 20  # bytes indexed before others get their turn
SEARCH_S = 1.5  # a search answers after this long with what it has, and where to go on

Record = dict[str, Any]
Key = tuple[int, str, int]  # policy version, uid, index
Thresholds = tuple[float, float]  # from which a response is solved: of training, held-out


@dataclass(frozen=True, slots=True)
class Entry:
    """What the list and the filters need of one line of samples.jsonl."""

    place: Place
    step: int
    phase: str
    uid: str
    index: int
    reward: float | None
    status: str
    policy_version: int
    taught: bool  # has a teacher prompt

    @property
    def key(self) -> Key:
        return self.policy_version, self.uid, self.index


@dataclass(frozen=True)
class Filter:
    """Which samples; None or "": all of them. `outcome`: solved | failed | ungraded."""

    phase: str = ""
    outcome: str = ""
    status: str = ""
    step: int | None = None
    taught: bool = False
    tokens: bool = False
    text: str = ""


class LiveRun:
    """Thread safe. `refresh` takes in what is new; it returns quickly and says whether there is more."""

    def __init__(self, run_dir: Path | str) -> None:
        self.run_dir = Path(run_dir)
        if not self.run_dir.is_dir():
            allowed = "a run folder (trainer.default_local_dir)"
            raise DataError(problem("run folder", str(run_dir), allowed, "check the path"))
        self.lock = threading.RLock()
        self._metrics = Tail(self.run_dir / METRICS_FILE)
        self._samples = Tail(self.run_dir / SAMPLES_FILE)
        self._tokens = Tail(self.run_dir / TOKENS_FILE)
        self._rows: dict[int, Record] = {}
        self._columns: dict[str, list[tuple[int, float]]] = {}
        self.entries: list[Entry] = []
        self._token_places: dict[Key, Place] = {}
        self.metrics_version = 0
        self._files: dict[str, tuple[float, Any]] = {}

    # -- taking in -----------------------------------------------------------------------------------------------------

    def refresh(self) -> bool:
        """True: call again, some of the files is not read to its end."""
        more = self._refresh_metrics()
        more |= self._refresh_samples()
        return self._refresh_tokens() | more

    def _refresh_metrics(self) -> bool:
        with self.lock:
            if self._metrics.refresh():
                self._rows, self._columns = {}, {}
                self.metrics_version += 1
            in_order = True
            for _, line in self._metrics.read(SLICE):
                if isinstance(line.get("step"), int):
                    in_order &= line["step"] > next(reversed(self._rows), -1)
                    self._rows.setdefault(line["step"], {}).update(line)
                    self.metrics_version += 1
                    if in_order:
                        add_to_columns(self._columns, line)
            if not in_order:  # two lines of one step, or an older one
                self._rows = dict(sorted(self._rows.items()))
                self._columns = RunHistory(self.run_dir, list(self._rows.values())).columns
            return _behind(self._metrics)

    def _refresh_samples(self) -> bool:
        with self.lock:
            if self._samples.refresh():
                self.entries = []
            self.entries.extend(_entry(place, record) for place, record in self._samples.read(SLICE))
            return _behind(self._samples)

    def _refresh_tokens(self) -> bool:
        with self.lock:
            if self._tokens.refresh():
                self._token_places.clear()
            for place, record in self._tokens.read(SLICE):
                self._token_places[_key(record)] = place
            return _behind(self._tokens)

    # -- asking --------------------------------------------------------------------------------------------------------

    @property
    def generation(self) -> int:
        """Changes when samples.jsonl was replaced: numbers of samples mean others from then on."""
        return self._samples.generation

    @property
    def indexed(self) -> float:
        """Share of samples.jsonl that has been read."""
        return self._samples.offset / max(self._samples.size(), 1)

    def history(self) -> RunHistory:
        """Of all whole lines so far. Its columns are shared with the reader, which only appends to them."""
        state, config = self._cached(STATE_FILE, read_json), self._cached(CONFIG_FILE, read_yaml)
        with self.lock:
            history = RunHistory(self.run_dir, list(self._rows.values()), state, config)
            history.columns = dict(self._columns)
        return history

    def age(self) -> float | None:
        """Seconds since metrics.jsonl was written to."""
        path = self.run_dir / METRICS_FILE
        return max(0.0, time.time() - path.stat().st_mtime) if path.exists() else None

    def thresholds(self) -> Thresholds:
        config = self._cached(CONFIG_FILE, read_yaml)
        return success_threshold(config), success_threshold(config, held_out=True)

    def statuses(self) -> list[str]:
        with self.lock:
            return sorted({entry.status for entry in self.entries if entry.status})

    def search(self, wanted: Filter, before: int | None, limit: int) -> tuple[list[tuple[int, Entry]], int | None]:
        """The newest matching samples with numbers below `before` (None: from the end), newest first, and the number to
        go on from (None: that was the last). A search in text reads the file; it stops after SEARCH_S."""
        with self.lock:
            entries = self.entries
            end = len(entries) if before is None else min(before, len(entries))
        found: list[tuple[int, Entry]] = []
        deadline = time.monotonic() + SEARCH_S
        thresholds = self.thresholds()
        for number in range(end - 1, -1, -1):
            entry = entries[number]
            if self._matches(entry, wanted, thresholds):
                found.append((number, entry))
            if len(found) == limit or (wanted.text and time.monotonic() > deadline):
                return found, number or None
        return found, None

    def record(self, entry: Entry) -> Record | None:
        return self._samples.at(entry.place)

    @property
    def token_lines(self) -> int:
        """How many samples have token log-probs. They are logged with the update, later than the sample."""
        return len(self._token_places)

    def has_tokens(self, entry: Entry) -> bool:
        return entry.phase == "train" and entry.key in self._token_places

    def tokens(self, entry: Entry) -> Record | None:
        """The line of tokens.jsonl that belongs to a training sample."""
        with self.lock:
            place = self._token_places[entry.key] if self.has_tokens(entry) else None
        return None if place is None else self._tokens.at(place)

    def _matches(self, entry: Entry, wanted: Filter, thresholds: Thresholds) -> bool:
        plain = (
            (not wanted.phase or entry.phase.startswith(wanted.phase))
            and (not wanted.status or entry.status == wanted.status)
            and (wanted.step is None or entry.step == wanted.step)
            and (not wanted.taught or entry.taught)
            and (not wanted.tokens or self.has_tokens(entry))
            and (not wanted.outcome or outcome(entry, thresholds) == wanted.outcome)
        )
        return plain and (not wanted.text or self._says(entry, wanted.text.casefold()))

    def _says(self, entry: Entry, text: str) -> bool:
        line = self._samples.raw(entry.place)
        if text.isascii() and json.dumps(text)[1:-1].encode() not in line.lower():
            return False  # most lines need no parsing
        return any(text in value.casefold() for value in _texts(decode(line)))

    def _cached(self, name: str, read: Any) -> dict[str, Any]:
        path = self.run_dir / name
        changed = path.stat().st_mtime if path.exists() else 0.0
        if self._files.get(name, (None,))[0] != changed:
            self._files[name] = changed, read(path)
        return self._files[name][1]


def outcome(entry: Entry, thresholds: Thresholds) -> str:
    if entry.reward is None:
        return "ungraded"
    return "solved" if is_solved(entry.reward, thresholds[entry.phase != "train"]) else "failed"


def _key(record: Record) -> Key:
    """As `Entry.key`."""
    return _whole(record.get("policy_version")), str(record.get("uid", "")), _whole(record.get("index"))


def _entry(place: Place, record: Record) -> Entry:
    reward = record.get("reward")
    return Entry(
        place=place,
        step=_whole(record.get("step")),
        phase=intern(str(record.get("phase", ""))),
        uid=intern(str(record.get("uid", ""))),
        index=_whole(record.get("index")),
        reward=float(reward) if isinstance(reward, int | float) else None,
        status=intern(str(record.get("status") or "")),
        policy_version=_whole(record.get("policy_version")),
        taught=record.get("teacher_prompt") is not None,
    )


def _whole(value: Any) -> int:
    return value if isinstance(value, int) else 0


def _texts(value: Any) -> Iterator[str]:
    """Every text in a record, not the names of its fields."""
    if isinstance(value, str):
        yield value
    elif isinstance(value, dict):
        for item in value.values():
            yield from _texts(item)
    elif isinstance(value, list):
        for item in value:
            yield from _texts(item)


def _behind(tail: Tail) -> bool:
    """Whether there is more to read. A torn last line is no reason to hurry."""
    return tail.size() - tail.offset > SLICE
