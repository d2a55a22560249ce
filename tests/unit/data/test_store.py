from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor
from datetime import date

import pytest

from sdpo.data.store import PromptStore
from sdpo.records import Prompt


def prompt(i: int) -> Prompt:
    return Prompt(f"p:{i}", ({"role": "user", "content": "x" * i},), "x", extra_info={"day": date(2025, 1, 1 + i % 28)})


def test_prompts_come_back_equal_by_position_slice_and_iteration() -> None:
    prompts, store = [prompt(i) for i in range(50)], PromptStore()
    for p in prompts:
        store.append(p)
    assert len(store) == 50 and list(store) == prompts
    assert [store[i] for i in (49, 0, -1, 7)] == [prompts[i] for i in (49, 0, -1, 7)]
    assert store[10:20:3] == prompts[10:20:3]
    with pytest.raises(IndexError):
        store[50]


def test_an_empty_store_is_false_and_can_be_appended_to_after_reading() -> None:
    store = PromptStore()
    assert not store
    store.append(prompt(1))
    assert store[0] == prompt(1)
    store.append(prompt(2))
    assert list(store) == [prompt(1), prompt(2)]


def test_threads_read_whole_prompts() -> None:
    store = PromptStore()
    for i in range(200):
        store.append(prompt(i))
    with ThreadPoolExecutor(4) as pool:
        assert list(pool.map(lambda i: store[i % 200], range(2000))) == [prompt(i % 200) for i in range(2000)]
