"""Replies of services, every one taken for hostile: its size, its time and its shape."""

from __future__ import annotations

import contextlib
import json
import socket
import threading
import zlib
from collections.abc import Iterator, Mapping
from typing import Any

import httpx

from .retry import TransportFault

# A connection of its own for every request: the deadline has to know the socket.
FRESH_CONNECTIONS = httpx.Limits(max_keepalive_connections=0)
UNPACKED_AT_ONCE = 1 << 16


class ReplyTooLarge(Exception):
    """More bytes than any honest answer has: a second try would bring them again. `is_object`: what came of it
    looks like JSON."""

    def __init__(self, cap: int, beginning: bytes) -> None:
        super().__init__(f"the reply is larger than {cap} bytes")
        self.is_object = beginning.lstrip().startswith(b"{")


def post(
    client: httpx.Client, url: str, request: Any, *, seconds: float, cap: int, headers: Mapping[str, str] | None = None
) -> tuple[int, bytes]:
    """Status and body of a POST. `seconds` bound all of it, also a reply that comes in drips; `cap` bounds the bytes of
    the body after unpacking. Raises TransportFault."""
    sockets: list[socket.socket] = []
    over = threading.Event()

    def note_socket(event: str, info: Mapping[str, Any]) -> None:
        if event.endswith((".connect_tcp.complete", ".start_tls.complete")):
            sockets.append(info["return_value"].get_extra_info("socket"))
            if over.is_set():  # it took too long to connect
                hang_up()

    def hang_up() -> None:
        over.set()
        for each in sockets:
            with contextlib.suppress(OSError):  # it is closed already
                each.shutdown(socket.SHUT_RDWR)

    timer = threading.Timer(seconds, hang_up)
    timer.daemon = True
    timer.start()
    options: dict[str, Any] = {"timeout": seconds, "extensions": {"trace": note_socket}}
    options["headers"] = {**(headers or {}), "Accept-Encoding": "identity", "Content-Type": "application/json"}
    content = json.dumps(request).encode()  # not by httpx: lone surrogates are text that a model may write
    try:
        with client.stream("POST", url, content=content, **options) as response:
            body = bytearray()
            for part in _parts(response):
                body += part
                if len(body) > cap:
                    raise ReplyTooLarge(cap, bytes(body[:100]))
                if over.is_set():
                    raise TransportFault(f"no whole reply in {seconds:g} s")
            return response.status_code, bytes(body)
    except (httpx.HTTPError, httpx.StreamError, zlib.error, OSError) as error:
        late = f"no whole reply in {seconds:g} s: " if over.is_set() else ""
        raise TransportFault(f"{late}{type(error).__name__}: {error}") from None
    finally:
        timer.cancel()


def _parts(response: httpx.Response) -> Iterator[bytes]:
    """The body, unpacked a little at a time: a kilobyte can hold a megabyte."""
    if response.is_stream_consumed:  # it never was on a wire
        yield response.content
        return
    encoding = response.headers.get("content-encoding", "identity").strip().lower()
    if encoding == "identity":
        yield from response.iter_raw()
        return
    if encoding not in ("gzip", "deflate"):
        raise TransportFault(f"the reply is encoded as {encoding[:20]!r}, which was not asked for")
    unpacker = zlib.decompressobj(wbits=47)
    for part in response.iter_raw():
        while part and not unpacker.eof:
            yield unpacker.decompress(part, UNPACKED_AT_ONCE)
            part = unpacker.unconsumed_tail


def read_object(body: bytes) -> dict[str, Any]:
    """Raises TransportFault for anything but a JSON object."""
    try:
        answer = json.loads(body)
    except (ValueError, RecursionError) as error:
        raise TransportFault(f"the reply is not JSON ({type(error).__name__})") from None
    if not isinstance(answer, dict):
        raise TransportFault("the reply is not an object")
    return answer
