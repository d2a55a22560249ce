"""The order that a side stream asks for. Streams are doubles here; `tests/gpu/test_teacher_on_gpu.py` has real ones."""

from __future__ import annotations

from contextlib import contextmanager

import pytest
import torch

from sdpo.offload.side_stream import SideStream


class RecordedStream:
    def __init__(self, name, log):
        self.name, self.log, self.device = name, log, torch.device("cuda", 0)

    def wait_stream(self, other):
        self.log.append(f"{self.name} waits for {other.name}")


@pytest.fixture
def log(monkeypatch):
    log = []
    current, side = RecordedStream("current", log), RecordedStream("side", log)

    @contextmanager
    def entered(stream):
        log.append(f"enter {stream.name}")
        yield
        log.append(f"leave {stream.name}")

    monkeypatch.setattr(torch.cuda, "Stream", lambda device: side)
    monkeypatch.setattr(torch.cuda, "current_stream", lambda device=None: current)
    monkeypatch.setattr(torch.cuda, "stream", entered)
    return log


def test_the_side_waits_for_what_was_before_and_the_rest_waits_for_the_side_when_told(log):
    stream = SideStream(torch.device("cuda", 0))
    with stream.run():
        log.append("work")
    log.append("other work")
    stream.join()
    order = ["side waits for current", "enter side", "work", "leave side", "other work", "current waits for side"]
    assert log == order


def test_on_a_cpu_there_is_one_order(log):
    stream = SideStream(torch.device("cpu"))
    with stream.run():
        log.append("work")
    stream.join()
    assert log == ["work"]
