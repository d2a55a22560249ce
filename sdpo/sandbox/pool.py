"""Fork servers, started when needed and replaced when they die."""

from __future__ import annotations

import dataclasses
import logging
import random
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import TypeVar

from .inside.plan import Features, Plan
from .outcome import SandboxFault, SickServer
from .server import Server

logger = logging.getLogger(__name__)
Result = TypeVar("Result")
RUNS_PER_SERVER = 12
RETRY_SECONDS = 0.05  # first pause; doubled each time, with jitter


class ServerPool:
    """At most `concurrency` runs at once, one server per twelve. `flavor` names what a server has imported
    beforehand."""

    def __init__(self, plans: dict[str, Plan], concurrency: int, retries: int) -> None:
        self.plans = plans
        self.retries = retries
        self.per_flavor = max(1, -(-concurrency // RUNS_PER_SERVER))
        self.counters = {"runs": 0, "retries": 0, "recovered": 0, "failed": 0, "servers_started": 0, "servers_died": 0}
        self._servers: dict[str, list[Server]] = {flavor: [] for flavor in plans}
        self._lock = threading.Lock()
        self._room = threading.BoundedSemaphore(concurrency)
        self._closed = False

    def fix_features(self, features: Features) -> None:
        """Later servers build the walls that the first one found, instead of looking again."""
        self.plans = {flavor: dataclasses.replace(plan, features=features) for flavor, plan in self.plans.items()}

    def run(self, flavor: str, action: Callable[[Server], Result]) -> Result:
        """Runs an action on a server; a fault of the sandbox is retried on a fresh one. Raises SandboxFault at the
        end."""
        self._count("runs")
        for attempt in range(self.retries + 1):
            try:
                with self._lease(flavor) as server:
                    result = action(server)
                if attempt:
                    self._count("recovered")
                return result
            except SandboxFault:
                if attempt == self.retries or self._closed:
                    self._count("failed")
                    raise
                self._count("retries")
                time.sleep(RETRY_SECONDS * 2**attempt * random.uniform(0.5, 1.5))
        raise AssertionError("unreachable")

    @contextmanager
    def _lease(self, flavor: str) -> Iterator[Server]:
        with self._room:
            server = self._choose(flavor)
            try:
                yield server
            except SandboxFault as fault:
                self._discard(flavor, server, isinstance(fault, SickServer))
                raise
            finally:
                with self._lock:
                    server.active -= 1

    def _choose(self, flavor: str) -> Server:
        with self._lock:
            if self._closed:
                raise SandboxFault("the sandbox is closed")
            servers = self._servers[flavor]
            for dead in [server for server in servers if not server.alive]:
                self._remove(flavor, dead)
            best = min(servers, key=lambda server: server.active, default=None)
            if best is None or (best.active >= RUNS_PER_SERVER and len(servers) < self.per_flavor):
                best = Server(self.plans[flavor])
                self.counters["servers_started"] += 1
                servers.append(best)
            best.active += 1
            return best

    def _discard(self, flavor: str, server: Server, sick: bool) -> None:
        """Drops a server that is dead or does not do its work; its other runs are repeated elsewhere."""
        time.sleep(0.01)  # a killed process is a moment later seen as dead
        with self._lock:
            if server in self._servers[flavor] and (sick or not server.alive):
                self._remove(flavor, server)

    def _remove(self, flavor: str, server: Server) -> None:
        self._servers[flavor].remove(server)
        self.counters["servers_died"] += 1
        words = server.last_words()
        logger.warning("a fork server died: %s", words or "killed from outside")
        server.kill()

    def _count(self, name: str) -> None:
        with self._lock:
            self.counters[name] += 1

    def processes(self) -> list[int]:
        """Process ids of the servers, for tests that kill them."""
        with self._lock:
            return [server.process.pid for servers in self._servers.values() for server in servers]

    def close(self) -> None:
        with self._lock:
            self._closed = True
            for servers in self._servers.values():
                for server in servers:
                    server.kill()
                servers.clear()
