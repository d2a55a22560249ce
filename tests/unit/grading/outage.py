"""Runs `main_sdpo` with a sandbox that breaks for good in a step: `outage.py STEP ARGS...`."""

from __future__ import annotations

import os
import signal
import sys

from sdpo import main_sdpo
from sdpo.sandbox import pool
from sdpo.sandbox.outcome import SandboxFault
from sdpo.training import loop


def arm(broken_step: int) -> None:
    servers: list[pool.Server] = []
    real = pool.Server
    down = False

    def start(plan):
        if down:
            raise SandboxFault("fork server did not start: the machine is out of memory")
        servers.append(real(plan))
        return servers[-1]

    pool.Server = start
    train_step = loop.TrainingLoop._train_step

    def watched(self, step: int) -> None:
        nonlocal down
        if step == broken_step:
            down = True
            for server in servers:
                if server.alive:
                    os.kill(server.process.pid, signal.SIGKILL)
        train_step(self, step)

    loop.TrainingLoop._train_step = watched


if __name__ == "__main__":
    arm(int(sys.argv[1]))
    sys.exit(main_sdpo.main(sys.argv[2:]))
