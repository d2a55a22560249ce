"""What the sandbox is on this machine, in words: once in the log, in the run's metadata, and on the command line."""

from __future__ import annotations

import dataclasses
from dataclasses import dataclass
from typing import Any

from .inside.plan import Features
from .self_test import Check


@dataclass(frozen=True)
class SandboxReport:
    features: Features
    checks: tuple[Check, ...]
    unsafe: bool = False  # runs without walls, because the configuration allows it

    @property
    def level(self) -> str:
        return self.features.level

    @property
    def sound(self) -> bool:
        return all(check.stopped for check in self.checks)

    def walls(self) -> list[str]:
        f = self.features
        parts = []
        if f.namespaces:
            parts.append(
                {"range": "user namespace with an id per run", "single": "user namespace"}.get(f.user, "root")
                + ", namespaces"
            )
        if f.mounts:
            parts.append("own root")
        parts.append(f"landlock {f.landlock}" if f.landlock else "")
        parts.append("seccomp" if f.seccomp else "")
        return [part for part in [*parts, "rlimits"] if part]

    def weaker(self) -> list[str]:
        """What is not as strong as it could be, and why."""
        f = self.features
        parts = []
        if not f.namespaces:
            parts.append(f"no namespaces{self._why('namespaces', 'mounts')}")
        elif not f.mounts:
            parts.append(f"no root of its own{self._why('mounts')}")
        if not f.mounts:
            parts.append("no scratch directory")
        if not f.landlock:
            parts.append(f"no landlock{self._why('landlock')}")
        if not f.mounts and not f.landlock:
            parts.append("no file can be opened; the standard library is served from memory")
        elif not f.mounts:
            parts.append("names and sizes of host paths visible")
        if f.seccomp and not (f.slot_uids or f.nested_user):
            parts.append("concurrent runs share a user id")
        if not f.readable and f.landlock:
            parts.append("the standard library is served from memory")
        if not f.seccomp:
            parts.append(f"NO ISOLATION{self._why('seccomp')}")
        return parts

    def _why(self, *names: str) -> str:
        return next((f" ({self.features.refused[name]})" for name in names if name in self.features.refused), "")

    def line(self) -> str:
        """E.g. "sandbox L2: landlock 7 + seccomp + rlimits; no namespaces (unshare: Operation not permitted);
        self-test 19/19"."""
        stopped = sum(check.stopped for check in self.checks)
        parts = [f"sandbox {self.level}: {' + '.join(self.walls())}", *self.weaker()]
        if self.checks:
            parts.append(f"self-test {stopped}/{len(self.checks)}")
        parts += [f"not stopped: {check.name} ({check.detail})" for check in self.checks if not check.stopped]
        return "; ".join(parts)

    def to_dict(self) -> dict[str, Any]:
        """For the run's metadata."""
        return {
            "level": self.level,
            "unsafe": self.unsafe,
            "features": dataclasses.asdict(self.features),
            "weaker": self.weaker(),
            "self_test": {check.name: "stopped" if check.stopped else f"OPEN: {check.detail}" for check in self.checks},
        }
