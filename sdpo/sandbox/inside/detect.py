"""Finds the walls that can be built on this machine, by building them in throw-away processes.

Settings files do not tell: a user namespace may be creatable and yet useless, a mount may be refused by a filter of the
container, Landlock may be compiled in and switched off. A half-made namespace cannot be left either, so every attempt
runs in a child of its own.
"""

from __future__ import annotations

import os
from collections.abc import Callable
from typing import Any

from . import kernel, landlock, namespaces, seccomp
from .plan import Features, Plan
from .walls import Walls, make_ruleset

CAP_SETUID, CAP_SETGID, CAP_SYS_ADMIN = 7, 6, 21


def attempt(action: Callable[..., None], *arguments: Any) -> str:
    """Runs an action in a fork; "" when it worked, else the error's text."""
    read, write = os.pipe()
    child = os.fork()
    if child == 0:
        text = "died"
        try:
            action(*arguments)
            text = ""
        except OSError as error:
            text = str(error)
        finally:
            os.write(write, text.encode()[:400] or b"+")
            os._exit(0)
    os.close(write)
    answer = os.read(read, 500).decode()
    os.close(read)
    os.waitpid(child, 0)
    return "" if answer == "+" else answer.removeprefix("[Errno 1] ") or "killed"


def capabilities() -> int:
    with open("/proc/self/status") as status:
        for line in status:
            if line.startswith("CapEff:"):
                return int(line.split()[1], 16)
    return 0


def find(plan: Plan, proc_fd: int) -> Features:
    """The best features up to the plan's ceiling; L0 is no walls at all."""
    features = Features()
    if plan.ceiling == "L0":
        return features
    caps = capabilities()
    features.seccomp = _works(features, "seccomp", _try_seccomp)
    if plan.ceiling != "L1":
        _find_landlock(features)
    if plan.ceiling in ("L3", "L3-"):
        _find_namespaces(features, plan, proc_fd, bool(caps >> CAP_SYS_ADMIN & 1))
    if not features.namespaces and plan.uid_base and caps >> CAP_SETUID & 1 and caps >> CAP_SETGID & 1:
        features.slot_uids = _works(features, "user id per run", lambda: os.setresuid(*[plan.uid_base + 1] * 3))
    paths = features.mounts or features.landlock > 0
    features.readable = paths and not attempt(lambda: rehearse(plan, features, proc_fd, read=True))
    if plan.ceiling == "L1":
        features.refused.setdefault("landlock", "not tried: level capped at L1")
    if plan.ceiling in ("L2", "L1"):
        features.refused.setdefault("namespaces", f"not tried: level capped at {plan.ceiling}")
    return features


def _works(features: Features, name: str, action: Callable[[], None]) -> bool:
    text = attempt(action)
    if text:
        features.refused[name] = text
    return not text


def _try_seccomp() -> None:
    kernel.prctl(kernel.PR_SET_NO_NEW_PRIVS, 1)
    kernel.install_filter(seccomp.build(seccomp.Policy(os.getpid(), paths=False)))
    try:
        os.open("/", os.O_RDONLY)
    except PermissionError:
        return
    raise OSError(1, "the filter is installed and refuses nothing")


def _try_landlock() -> None:
    ruleset = landlock.create(landlock.abi())
    kernel.prctl(kernel.PR_SET_NO_NEW_PRIVS, 1)
    landlock.prepared_restrict(ruleset)()
    try:
        os.listdir("/")
    except PermissionError:
        return
    raise OSError(1, "the rule set is taken on and refuses nothing")


def _find_landlock(features: Features) -> None:
    if _works(features, "landlock", _try_landlock):
        features.landlock = landlock.abi()


def _find_namespaces(features: Features, plan: Plan, proc_fd: int, admin: bool) -> None:
    users = ["range", "none", "single"] if admin and plan.uid_base else ["none", "single"] if admin else ["single"]
    for mounts in (True, False):
        if mounts and plan.ceiling == "L3-":
            features.refused.setdefault("mounts", "not tried: level capped at L3-")
            continue
        for user in users:
            nested = user == "single"
            for nested_user in (True, False) if nested else (False,):
                candidate = Features(
                    user,
                    True,
                    mounts,
                    features.landlock,
                    features.seccomp,
                    not nested and plan.uid_base > 0,
                    nested_user,
                )
                text = attempt(rehearse, plan, candidate, proc_fd)
                if not text:
                    candidate.refused = features.refused
                    features.__dict__.update(candidate.__dict__)
                    return
                name = "mounts" if mounts else "namespaces"
                features.refused.setdefault(name if user != "range" else "user id range", text)


def rehearse(plan: Plan, features: Features, proc_fd: int, read: bool = False) -> None:
    """The whole way of a run: namespaces, server process, child with its walls. OSError where it stops. `read`: the
    child also has to read a file of the interpreter."""
    ruleset = -1 if features.mounts else make_ruleset(plan, features)

    def server() -> None:
        rules = make_ruleset(plan, features) if features.mounts else ruleset
        child(Walls(plan, features, proc_fd, rules), os.getpid())

    def child(walls: Walls, server_pid: int) -> None:
        pid = walls.clone()
        if pid == 0:
            code = 1
            try:
                run(walls, 0 if features.namespaces else server_pid)
                code = 0
            except OSError as error:
                code = min(error.errno or 1, 255)
            finally:
                os._exit(code)
        code = os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1])
        if code:
            raise OSError(code, f"a run cannot be confined: {os.strerror(code)}")

    def run(walls: Walls, parent: int) -> None:
        walls.confine(0, 5, 64, 1, 8, parent)
        if read:
            os.close(os.open(os.__file__, os.O_RDONLY))

    if features.namespaces:
        namespaces.enter(plan, features.user, features.mounts, proc_fd)
    fail_with(attempt(server))


def fail_with(text: str) -> None:
    if text:
        raise OSError(1, text)
