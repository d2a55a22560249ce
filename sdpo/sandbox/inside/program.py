"""A whole program, standard input to standard output. Its verdict is made elsewhere, from the output and the exit
status; the channel only carries a description of an uncaught exception."""

from __future__ import annotations

import contextlib

from . import faults, stage
from .frames import write_frame


def run() -> None:
    source = stage.read_source()
    stage.set_streams()
    module = stage.new_module("__main__")
    faults.load_source(source)
    code = 0
    try:
        exec(compile(source, faults.FILE, "exec", dont_inherit=True), vars(module))
    except SystemExit as error:
        code = stage.exit_code(error)
        if code:
            report(error)
    except BaseException as error:  # foreign code may raise anything
        report(error)
        code = 1
    stage.finish(code)


def report(error: BaseException) -> None:
    stage.flush()
    with contextlib.suppress(OSError):  # the program closed the channel: no details then
        write_frame(stage.CHANNEL, {"error": faults.fault(error)})
