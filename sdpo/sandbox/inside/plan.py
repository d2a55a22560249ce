"""What the grader tells a fork server at its start, and what the server found possible. Plain data, JSON both ways."""

from __future__ import annotations

import dataclasses
import json
import struct
from dataclasses import dataclass, field

# What the grader asks for a run: kind (a number: its place in KINDS), CPU seconds, memory and scratch in megabytes.
REQUEST = struct.Struct("<IIII")
# What the server says of its end: wait status, CPU seconds, largest resident size in kilobytes.
ENDING = struct.Struct("<idq")
KINDS = ("program", "solver", "remote", "judge")
LEVELS = ("L3", "L3-", "L2", "L1", "L0")


@dataclass
class Features:
    """What works on this machine, found by doing. `refused` holds the kernel's words for what does not."""

    user: str = "none"  # user namespace: range | single | none
    namespaces: bool = False  # process, network, IPC, host-name, cgroup
    mounts: bool = False  # own root and scratch directory
    landlock: int = 0  # interface version, 0: none
    seccomp: bool = False
    slot_uids: bool = False  # every concurrent run has its own user id
    nested_user: bool = False  # every run has a user namespace of its own
    readable: bool = True  # a run can read the interpreter's files; else the library is served from memory
    refused: dict[str, str] = field(default_factory=dict)

    @property
    def level(self) -> str:
        if not self.seccomp:
            return "L0"
        if self.namespaces and self.mounts:
            return "L3"
        if self.landlock:
            return "L3-" if self.namespaces else "L2"
        return "L1"


@dataclass
class Plan:
    """Example: Plan(ceiling="L3", trees=["/usr/lib/python3.11", ...], slots=16, uid_base=1879048192)"""

    ceiling: str = "L3"  # the strongest level to try
    trees: list[str] = field(default_factory=list)  # real directories a run may read
    covers: list[str] = field(default_factory=list)  # directories below them that stay hidden
    packages: list[str] = field(default_factory=list)  # third-party packages a run may read
    package_roots: list[str] = field(default_factory=list)  # their parents, for sys.path
    empty_directory: str = "/"  # working directory where there is no scratch
    uid_base: int = 0  # first of slots + 1 unused user ids; 0: none
    slots: int = 16
    preload: list[str] = field(default_factory=list)  # third-party modules to import before the first fork
    features: Features | None = None  # decided by an earlier server; None: find out

    def to_json(self) -> str:
        return json.dumps(dataclasses.asdict(self))

    @staticmethod
    def from_json(text: str) -> Plan:
        data = json.loads(text)
        features = data.pop("features")
        return Plan(**data, features=Features(**features) if features else None)
