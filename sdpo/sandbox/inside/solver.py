"""Functions of a solution, called one input at a time. What is sent back is only an answer: the expected value is not
here."""

from __future__ import annotations

import types
from collections.abc import Callable
from typing import Any

from . import faults, stage
from .frames import FrameReader, decode, encode, write_frame


def run() -> None:
    source = stage.read_source()
    stage.set_streams()
    module = stage.new_module("solution")
    if "class Solution" in source:
        stage.offer_usual_names()
    faults.load_source(source)
    loaded = load(source, module)
    write_frame(stage.CHANNEL, loaded)
    if "error" in loaded:
        stage.finish(1)
    answer_calls(module)


def load(source: str, module: types.ModuleType) -> dict[str, Any]:
    """Runs the module; {"loaded": 1} or {"error": ...}."""
    try:
        exec(compile(source, faults.FILE, "exec", dont_inherit=True), vars(module))
    except BaseException as error:  # foreign code may raise anything
        return {"error": faults.fault(error)}
    return {"loaded": 1}


def answer_calls(module: types.ModuleType) -> None:
    """One request frame, one answer frame, until the other side hangs up."""
    reader = FrameReader(stage.CHANNEL)
    while True:
        try:
            question = reader.read()
        except (EOFError, OSError):
            stage.finish(0)
        write_frame(stage.CHANNEL, answer(module, question))


class MissingName(Exception):
    """The solution does not define what the tests call."""


def answer(module: types.ModuleType, question: dict) -> dict[str, Any]:
    try:
        value = find(module, question["name"])(*[decode(item) for item in question["args"]])
        return {"value": encode(value)}
    except MissingName as error:
        return {"missing": str(error)}
    except BaseException as error:  # foreign code may raise anything
        return {"error": faults.fault(error)}


def find(module: types.ModuleType, name: str) -> Callable[..., Any]:
    """A module-level function, else the method of that name of a fresh `Solution` instance (`Class.method` is also
    taken)."""
    holder: Any = module
    if "." in name:
        class_name, name = name.rsplit(".", 1)
        if class_name not in vars(module):
            raise MissingName(f"class {class_name}")
        holder = vars(module)[class_name]()
    elif name not in vars(module) and "Solution" in vars(module):
        holder = vars(module)["Solution"]()
    if holder is module and name not in vars(module) or not hasattr(holder, name):
        raise MissingName(name)
    return getattr(holder, name)
