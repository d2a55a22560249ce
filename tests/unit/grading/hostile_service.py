"""A service on this machine that answers the way a file of tests/fixtures/hostile_replies does."""

from __future__ import annotations

import contextlib
import runpy
import socket
import threading
from collections.abc import Callable, Iterator
from pathlib import Path


@contextlib.contextmanager
def hostile_service(path: Path) -> Iterator[str]:
    """Its address, while it runs."""
    reply = runpy.run_path(str(path))["reply"]
    listener = socket.create_server(("127.0.0.1", 0))
    threading.Thread(target=_serve, args=(listener, reply), daemon=True).start()
    try:
        yield f"http://127.0.0.1:{listener.getsockname()[1]}"
    finally:
        listener.close()


def _serve(listener: socket.socket, reply: Callable) -> None:
    while True:
        try:
            connection, _ = listener.accept()
        except OSError:
            return  # closed
        threading.Thread(target=_answer, args=(connection, reply), daemon=True).start()


def _answer(connection: socket.socket, reply: Callable) -> None:
    with connection, contextlib.suppress(OSError, StopIteration):  # the client may hang up, or say nothing
        connection.settimeout(30)
        reply(connection, _request(connection))


def _request(connection: socket.socket) -> bytes:
    """The body of a request."""
    head, _, body = connection.recv(1 << 16).partition(b"\r\n\r\n")
    lines = [line.partition(b":") for line in head.split(b"\r\n")]
    size = next(int(value) for name, _, value in lines if name.lower() == b"content-length")
    while len(body) < size:
        body += connection.recv(1 << 16)
    return body
