"""Two-way calls between the judge and the solver over one socket. Synchronous: while a side waits for its answer it
serves the other side's questions, so callbacks nest like ordinary calls. Answers carry the question's random number;
one sent ahead of its question fits none."""

from __future__ import annotations

import os
from collections.abc import Callable

from .frames import FrameError, FrameReader, write_frame

FRAME_CAP = 8 << 20  # bytes of one message


class Link:
    """`serve_one(question) -> answer` handles the other side's questions. EOFError when the other side is gone."""

    def __init__(self, fd: int, serve_one: Callable[[dict], dict]) -> None:
        self.fd = fd
        self.reader = FrameReader(fd, FRAME_CAP)
        self.serve_one = serve_one

    def ask(self, question: dict) -> dict:
        number = os.urandom(8).hex()
        write_frame(self.fd, {**question, "id": number})
        while True:
            frame = self._read()
            if "re" in frame:
                if frame["re"] != number:
                    raise FrameError("an answer to no question")
                return frame
            self._answer(frame)

    def serve(self) -> None:
        while True:
            self._answer(self._read())

    def _answer(self, question: dict) -> None:
        write_frame(self.fd, {**self.serve_one(question), "re": question.get("id")})

    def _read(self) -> dict:
        frame = self.reader.read()
        if not isinstance(frame, dict):
            raise FrameError("not a message")
        return frame
