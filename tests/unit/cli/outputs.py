"""Runs every entry point as a program of its own, with its standard output in a given state: `outputs.py FOLDER CASES`.

CASES is a file of JSON: {name: [module, arguments, state of the output]}. One process imports the modules, a child for
each case runs `main()`: it has file descriptors of its own, and nothing is imported twice.
"""

from __future__ import annotations

import importlib
import json
import os
import signal
import sys
import time
from pathlib import Path

PATIENCE_S = 60  # a child that takes longer hangs


def set_up(state: str, errors: Path) -> None:
    """Descriptors 1 and 2, then the streams over them, as the interpreter makes them."""
    os.dup2(os.open(errors, os.O_WRONLY | os.O_CREAT), 2)
    if state == "closed":
        os.close(1)
    elif state == "reader gone":
        reader, writer = os.pipe()
        os.dup2(writer, 1)
        os.close(reader)
    else:
        os.dup2(os.open("/dev/full", os.O_WRONLY), 1)
    out = None if state == "closed" else open(1, "w", closefd=False)  # noqa: SIM115
    sys.stdout = sys.__stdout__ = out
    sys.stderr = sys.__stderr__ = open(2, "w", closefd=False)  # noqa: SIM115
    signal.alarm(PATIENCE_S)


def run(folder: Path, name: str, module: str, arguments: list[str], state: str) -> dict[str, object]:
    errors, began = folder / f"{name}.err", time.monotonic()
    child = os.fork()
    if child == 0:
        code = 99
        try:
            set_up(state, errors)
            sys.argv = [module, *arguments]
            code = sys.modules[module].main()
            sys.stdout.flush()
        except BaseException:
            sys.excepthook(*sys.exc_info())
        finally:
            sys.stderr.flush()
            os._exit(code)
    _, status = os.waitpid(child, 0)
    code = os.waitstatus_to_exitcode(status)
    return {"code": code, "errors": errors.read_text(), "seconds": time.monotonic() - began}


if __name__ == "__main__":
    folder, cases = Path(sys.argv[1]), json.loads(Path(sys.argv[2]).read_text())
    for module, *_ in cases.values():
        importlib.import_module(module)
    print(json.dumps({name: run(folder, name, *case) for name, case in cases.items()}))
