"""Into training and test rows: by question, or by the tests of each question; seeded, whatever the rows' order."""

from __future__ import annotations

import random
from collections.abc import Iterator, Mapping
from dataclasses import replace
from typing import Any

from sdpo.data.rows import question_key, to_row
from sdpo.data.store import PromptStore
from sdpo.errors import DataError, problem
from sdpo.records import Prompt


class StoredRows:
    """The rows of some prompts of a store; can be iterated again and again. `part` names the half of the tests."""

    def __init__(self, store: PromptStore, places: list[int], part: TestHalf | None = None) -> None:
        self.store, self.places, self.part = store, places, part

    def __iter__(self) -> Iterator[dict[str, Any]]:
        for place in self.places:
            prompt = self.store[place]
            yield to_row(self.part.of(prompt) if self.part else prompt)


class TestHalf:
    """What a row keeps of its tests: for training a share of them, for evaluation all, the others marked hidden."""

    __test__ = False  # not a pytest class

    def __init__(self, fraction: float, seed: int, training: bool) -> None:
        self.fraction, self.seed, self.training = fraction, seed, training

    def of(self, prompt: Prompt) -> Prompt:
        cases = prompt.ground_truth["cases"]
        chosen = self.chosen(prompt, cases)
        kept = [
            {**case, "hidden": place not in chosen}
            for place, case in enumerate(cases)
            if not self.training or place in chosen
        ]
        split = "train" if self.training else "test"
        return replace(
            prompt,
            ground_truth={**prompt.ground_truth, "cases": kept},
            extra_info={**prompt.extra_info, "split": split},
        )

    def chosen(self, prompt: Prompt, cases: list[Mapping[str, Any]]) -> set[int]:
        """Places of the tests to train on: at least one; those that the publisher shows come first."""
        order = list(range(len(cases)))
        random.Random(f"tests:{self.seed}:{question_key(prompt).hex()}").shuffle(order)
        order.sort(key=lambda place: bool(cases[place].get("hidden")))
        return set(order[: max(1, round(self.fraction * len(cases)))])


def by_tests(store: PromptStore, fraction: float, seed: int) -> dict[str, StoredRows]:
    """Every question in both parts. Raises DataError for a row without a list of test cases."""
    for prompt in store:
        if not isinstance(prompt.ground_truth, dict) or not prompt.ground_truth.get("cases"):
            raise DataError(f"{prompt.data_source}: its rows have no list of test cases to divide; divide by questions")
    places = list(range(len(store)))
    return {
        "train": StoredRows(store, places, TestHalf(fraction, seed, training=True)),
        "test": StoredRows(store, places, TestHalf(fraction, seed, training=False)),
    }


def by_questions(store: PromptStore, fraction: float, seed: int) -> dict[str, StoredRows]:
    """Rows with the same question stay together. Raises DataError when one part would be empty."""
    names = [question_key(prompt) for prompt in store]
    questions = sorted(set(names))
    random.Random(f"split:{seed}").shuffle(questions)
    chosen = set(questions[: round(fraction * len(questions))])
    train = [place for place, name in enumerate(names) if name in chosen]
    rest = [place for place, name in enumerate(names) if name not in chosen]
    if not train or not rest:
        raise DataError(problem("train fraction", fraction, f"one that leaves some of {len(names)} rows on both sides"))
    return {"train": StoredRows(store, train), "test": StoredRows(store, rest)}
