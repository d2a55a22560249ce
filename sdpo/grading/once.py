"""Identical work is done once: a group often holds the same answer several times, and steps come back to the same
problem."""

from __future__ import annotations

import threading
from collections import OrderedDict
from collections.abc import Callable, Hashable
from concurrent.futures import Future
from typing import Generic, TypeVar

Value = TypeVar("Value")


class Once(Generic[Value]):
    """`get(key, make)` makes a value once per key; callers that come while it is being made wait for it. A failure is
    not kept. The least recently used of more than `size` values are forgotten."""

    def __init__(self, size: int) -> None:
        self.size = size
        self.hits = 0
        self._values: OrderedDict[Hashable, Future[Value]] = OrderedDict()
        self._lock = threading.Lock()

    def get(self, key: Hashable, make: Callable[[], Value], keep: Callable[[Value], bool] = lambda _: True) -> Value:
        with self._lock:
            future = self._values.get(key)
            owner = future is None
            if future is None:
                future = self._values[key] = Future()
                while len(self._values) > self.size:
                    self._values.popitem(last=False)
            else:
                self._values.move_to_end(key)
                self.hits += 1
        if not owner:
            return future.result()
        try:
            value = make()
        except BaseException as error:  # whatever it is, those who wait for the same value must hear of it
            self._forget(key, future)
            future.set_exception(error)
            raise
        if not keep(value):
            self._forget(key, future)
        future.set_result(value)
        return value

    def _forget(self, key: Hashable, future: Future[Value]) -> None:
        with self._lock:
            if self._values.get(key) is future:
                del self._values[key]
