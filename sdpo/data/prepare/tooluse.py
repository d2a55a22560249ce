"""Tool use in ToolAlpaca's style, as published with the SDPO reference: JSON lines with `prompt` (tools, format and
question in one text) and `answer`, a JSON list of {"Action", "Action_Input"} whose input is JSON text."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from sdpo.data.prepare.source import Source, parse_json, text_field
from sdpo.errors import DataError
from sdpo.records import Prompt


def convert(row: Mapping[str, Any], split: str) -> Prompt:
    """The ground truth is an ordered list of {"name", "arguments"}."""
    system = row.get("system")
    messages = [{"role": "system", "content": system}] if system else []
    return Prompt(
        uid="",
        messages=(*messages, {"role": "user", "content": text_field(row, "prompt")}),
        data_source="tooluse",
        ground_truth=[_call(action) for action in _actions(text_field(row, "answer"))],
        extra_info={"index": row.get("idx"), "split": split},
    )


def _actions(answer: str) -> list[Any]:
    actions = parse_json(answer, "answer")
    if not isinstance(actions, list) or not actions:
        raise DataError(f"answer: got {answer[:60]!r}; it must be a list of actions that is not empty")
    return actions


def _call(action: Any) -> dict[str, Any]:
    if not isinstance(action, dict) or not isinstance(action.get("Action"), str):
        raise DataError(f"answer: got {action!r}; an action has Action and Action_Input")
    arguments = action.get("Action_Input", "{}")
    if isinstance(arguments, str):
        arguments = parse_json(arguments, f"answer: Action_Input {arguments!r:.60}")
    if not isinstance(arguments, dict):
        raise DataError(f"answer: Action_Input {arguments!r} must be an object")
    return {"name": action["Action"], "arguments": arguments}


SOURCE = Source(
    name="tooluse",
    convert=convert,
    origin="https://github.com/lasgroup/SDPO (after ToolAlpaca)",
    licence="Apache-2.0",
    description="tool calls as Action and Action Input lines",
)
