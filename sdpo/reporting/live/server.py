"""The page's web server: this machine only, reading only."""

from __future__ import annotations

import json
import sys
import threading
from collections.abc import Callable
from http import HTTPStatus
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any
from urllib.parse import parse_qs, urlsplit

from sdpo.errors import ConfigError, problem
from sdpo.reporting.live import views
from sdpo.reporting.live.run import Filter, LiveRun
from sdpo.reporting.page import CHART_SCRIPT, STYLE

HOST = "127.0.0.1"
REFRESH_S = 1.0
ASSETS = Path(__file__).parent / "assets"
# Text of models is on this page: even if an escape were missed, nothing but our own files runs.
POLICY = (
    "default-src 'none'; style-src 'self'; script-src 'self'; connect-src 'self'; base-uri 'none'; form-action 'none'"
)

Query = dict[str, str]


class WatchServer(ThreadingHTTPServer):
    """Serves one run until `shutdown`. Raises ConfigError when the port is taken. `port` 0: any free one."""

    daemon_threads = True

    def __init__(self, run: LiveRun, port: int) -> None:
        self._stopping = threading.Event()
        try:
            super().__init__((HOST, port), _Handler)
        except (OSError, OverflowError) as error:
            raise ConfigError(problem("--port", port, "a free port", f"{error}; 0 takes any free one")) from error
        self.run = run
        threading.Thread(target=self._follow, name="follow", daemon=True).start()

    @property
    def url(self) -> str:
        return f"http://{HOST}:{self.server_port}/"

    def server_close(self) -> None:
        self._stopping.set()
        super().server_close()

    def handle_error(self, request: Any, client_address: Any) -> None:
        """A browser that has gone away is not news either."""
        if not isinstance(sys.exception(), ConnectionError):
            super().handle_error(request, client_address)

    def _follow(self) -> None:
        while not self._stopping.is_set():
            while self.run.refresh() and not self._stopping.is_set():
                pass
            self._stopping.wait(REFRESH_S)


class _Handler(BaseHTTPRequestHandler):
    server: WatchServer
    protocol_version = "HTTP/1.1"

    def do_GET(self) -> None:
        # Another site's name that was pointed at this machine must not read the run.
        if (self.headers.get("Host") or "").rpartition(":")[0] not in (HOST, "localhost"):
            return self._send(HTTPStatus.FORBIDDEN, "text/plain", b"only by the name of this machine")
        parts = urlsplit(self.path)
        query = {name: values[-1] for name, values in parse_qs(parts.query).items()}
        if parts.path in _FILES:
            kind, body = _FILES[parts.path]()
            return self._send(HTTPStatus.OK, kind, body)
        answer = _ANSWERS.get(parts.path)
        try:
            found = answer(self.server.run, query) if answer else None
        except ValueError as error:
            return self._send(HTTPStatus.BAD_REQUEST, "text/plain", str(error).encode())
        if found is None:
            return self._send(HTTPStatus.NOT_FOUND, "text/plain", b"not here (any more)")
        return self._send(HTTPStatus.OK, "application/json", json.dumps(found).encode())

    def _send(self, status: HTTPStatus, kind: str, body: bytes) -> None:
        self.send_response(status)
        self.send_header("Content-Type", f"{kind}; charset=utf-8")
        self.send_header("Content-Length", str(len(body)))
        self.send_header("Content-Security-Policy", POLICY)
        self.send_header("X-Content-Type-Options", "nosniff")
        self.send_header("Referrer-Policy", "no-referrer")
        self.send_header("Cache-Control", "no-store")
        self.end_headers()
        self.wfile.write(body)

    def log_message(self, *arguments: Any) -> None:
        """Requests are not news."""


def _asset(name: str, before: str = "") -> bytes:
    return (before + (ASSETS / name).read_text(encoding="utf-8")).encode()


_FILES: dict[str, Callable[[], tuple[str, bytes]]] = {
    "/": lambda: ("text/html", _asset("watch.html")),
    "/watch.css": lambda: ("text/css", _asset("watch.css", STYLE)),
    "/watch.js": lambda: ("text/javascript", _asset("watch.js", CHART_SCRIPT)),
}


def _wanted(query: Query) -> Filter:
    step = query.get("step", "")
    return Filter(
        phase=query.get("phase", ""),
        outcome=query.get("outcome", ""),
        status=query.get("status", ""),
        step=int(step) if step else None,
        taught="taught" in query,
        tokens="tokens" in query,
        text=query.get("text", "").strip(),
    )


def _number(query: Query, name: str) -> int | None:
    return int(query[name]) if query.get(name) else None


_ANSWERS: dict[str, Callable[[LiveRun, Query], Any]] = {
    "/state": lambda run, query: views.state(run),
    "/charts": lambda run, query: views.charts(run),
    "/metrics": lambda run, query: views.every_metric(run, query.get("text", "")),
    "/samples": lambda run, query: views.samples(run, _wanted(query), _number(query, "before")),
    "/sample": lambda run, query: views.sample(run, _number(query, "number") or 0, _number(query, "generation") or 0),
}
