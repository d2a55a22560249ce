"""One row of a file to a `Prompt` and back, in verl's RL schema. A row that cannot be used is refused with its number.

Columns: `data_source` (text), `prompt` (chat messages, or text: one user message), `reward_model` with `ground_truth`
(and, ours, `encoding`: "json" when the ground truth is JSON text), `extra_info`, and the optional `tools` and
`chat_template_kwargs` (lists and dicts, or JSON text). Other columns are ignored. See docs/data.md.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping
from typing import Any

from sdpo.data.long_integers import read_json
from sdpo.errors import DataError
from sdpo.records import Prompt

_LAST_ROLES = ("user", "tool")
_DEEPEST = 100  # levels of nesting; the templates' own recursion ends some hundreds further on


def to_prompt(
    row: Mapping[str, Any], uid: str, where: str, prompt_key: str = "prompt", from_table: bool = False
) -> Prompt:
    """A validated prompt.

    Args:
        where: file and row number, e.g. "train.parquet row 3"; starts every error message.
        from_table: the row comes from a table format, which gives every nested dict the keys of all others, with
            null in the absent ones; such nulls are dropped. A null that was meant looks the same there: store arguments
            as JSON text, as `to_row` does.

    Raises DataError naming row, field and problem.
    """
    data_source = row.get("data_source")
    if not isinstance(data_source, str) or not data_source.strip():
        raise DataError(f"{where}: data_source: got {data_source!r}; it must be text that names the grader")
    if row.get(prompt_key) is None:
        columns = ", ".join(sorted(map(str, row)))
        raise DataError(f"{where}: {prompt_key}: missing; the row has {columns} (data.prompt_key names the column)")
    reward_model = row.get("reward_model") or {}
    extra_info = row.get("extra_info") or {}
    for name, value in (("reward_model", reward_model), ("extra_info", extra_info)):
        if not isinstance(value, Mapping):
            raise DataError(f"{where}: {name}: got {type(value).__name__}; it must be an object")
    tools = _decoded(row.get("tools"), f"{where}: tools", list, from_table)
    for number, tool in enumerate(tools or [], 1):
        if not isinstance(tool, Mapping):
            raise DataError(f"{where}: tools: entry {number}: got {_short(tool)}; a tool's schema is an object")
    return Prompt(
        uid=uid,
        messages=_messages(row[prompt_key], f"{where}: {prompt_key}", from_table),
        data_source=data_source,
        ground_truth=_ground_truth(reward_model, where),
        extra_info=_without_nulls(extra_info) if from_table else dict(extra_info),
        tools=tuple(tools) if tools else None,
        template_kwargs=_decoded(row.get("chat_template_kwargs"), f"{where}: chat_template_kwargs", dict, from_table)
        or {},
    )


def to_row(prompt: Prompt) -> dict[str, Any]:
    """The row that `to_prompt` reads back unchanged (but for the uid), also through a table format: what has no fixed
    schema - tool-call arguments, tools, template options, a ground truth that is not text - becomes JSON text."""
    truth = prompt.ground_truth
    is_json = truth is not None and not isinstance(truth, str)
    return {
        "data_source": prompt.data_source,
        "prompt": [_encoded_message(message) for message in prompt.messages],
        "reward_model": {
            "style": "rule",
            "ground_truth": json.dumps(truth, ensure_ascii=False) if is_json else truth,
            "encoding": "json" if is_json else "text",
        },
        "extra_info": dict(prompt.extra_info) or None,  # a table cannot hold an object without fields
        "tools": json.dumps(prompt.tools, ensure_ascii=False) if prompt.tools else None,
        "chat_template_kwargs": json.dumps(prompt.template_kwargs, ensure_ascii=False)
        if prompt.template_kwargs
        else None,
    }


def question_key(prompt: Prompt) -> bytes:
    """What makes two questions the same: their last user message, whatever its case and blanks. A digest: sixteen
    bytes for each of millions."""
    content = next(m["content"] for m in reversed(prompt.messages) if m["role"] == "user")
    folded = " ".join(content.casefold().split())
    return hashlib.blake2b(folded.encode("utf-8", "surrogatepass"), digest_size=16).digest()


def _messages(value: Any, where: str, from_table: bool) -> tuple[dict[str, Any], ...]:
    if isinstance(value, str):
        value = [{"role": "user", "content": value}]
    if not isinstance(value, list | tuple) or not value:
        raise DataError(f"{where}: got {_short(value)}; it must be text or a list of messages with role and content")
    messages = tuple(_message(m, f"{where} message {i}", from_table) for i, m in enumerate(value, 1))
    roles = [message["role"] for message in messages]
    if roles[-1] not in _LAST_ROLES or "user" not in roles:
        raise DataError(
            f"{where}: roles {roles}; a prompt holds a user message and ends with one (or with a tool's answer)"
        )
    last = max(i for i, role in enumerate(roles) if role == "user")
    if not messages[last]["content"].strip():
        raise DataError(f"{where}: the last user message is blank")
    return messages


def _message(value: Any, where: str, from_table: bool) -> dict[str, Any]:
    if not isinstance(value, Mapping):
        raise DataError(f"{where}: got {_short(value)}; it must be an object with role and content")
    # An absent key and a null one mean the same in a message.
    message = {key: item for key, item in value.items() if item is not None}
    role = message.get("role")
    if not isinstance(role, str) or not role:
        raise DataError(f"{where}: role: got {role!r}; it must be text such as user")
    calls = message.get("tool_calls")
    if calls:
        message["tool_calls"] = [_tool_call(call, f"{where}: tool_calls", from_table) for call in calls]
        _check_texts(message["tool_calls"], f"{where}: tool_calls")
    elif "content" not in message:
        raise DataError(f"{where}: content: missing")
    message["content"] = _content(message.get("content", ""), where)
    _check_texts(message["content"], f"{where}: content")
    return message


def _check_texts(value: Any, where: str, depth: int = 0) -> None:
    """Raises DataError for what no tokenizer or no template takes."""
    if isinstance(value, str):
        try:
            value.encode()
        except UnicodeEncodeError as error:
            why = f"half of a surrogate pair at character {error.start}; no tokenizer takes it"
            raise DataError(f"{where}: {why}") from error
    elif depth > _DEEPEST:
        raise DataError(f"{where}: nested more than {_DEEPEST} levels deep")
    elif isinstance(value, Mapping):
        for key, item in value.items():
            _check_texts(key, where, depth + 1)
            _check_texts(item, where, depth + 1)
    elif isinstance(value, list | tuple):
        for item in value:
            _check_texts(item, where, depth + 1)


def _content(value: Any, where: str) -> str:
    """Text, or the joined texts of a list of text parts: chat templates and reprompts then see the same."""
    if isinstance(value, str):
        return value
    parts = value if isinstance(value, list | tuple) else [None]
    found = [part.get("text") if isinstance(part, Mapping) else None for part in parts]
    texts = [text for text in found if isinstance(text, str)]
    if len(texts) < len(found):
        raise DataError(f"{where}: content: got {_short(value)}; only text and lists of text parts can be used")
    return "".join(texts)


def _tool_call(value: Any, where: str, from_table: bool) -> dict[str, Any]:
    """{"name", "arguments"}, bare or under "function". Arguments as JSON text are decoded: templates write objects."""
    if not isinstance(value, Mapping):
        raise DataError(f"{where}: got {_short(value)}; it must be an object with name and arguments")
    call = {key: item for key, item in value.items() if item is not None}
    if isinstance(call.get("function"), Mapping):
        call["function"] = _tool_call(call["function"], where, from_table)
    arguments = call.get("arguments")
    if isinstance(arguments, str):
        try:
            decoded = json.loads(arguments)
        except (ValueError, RecursionError):
            decoded = None  # a recorded call that was not valid JSON stays as it was written
        call["arguments"] = decoded if isinstance(decoded, dict) else arguments
    elif from_table and isinstance(arguments, Mapping):
        call["arguments"] = _without_nulls(arguments)
    return call


def _encoded_message(message: Mapping[str, Any]) -> dict[str, Any]:
    encoded = dict(message)
    if encoded.get("tool_calls"):
        encoded["tool_calls"] = [_encoded_call(call) for call in encoded["tool_calls"]]
    return encoded


def _encoded_call(call: Mapping[str, Any]) -> dict[str, Any]:
    encoded = dict(call)
    if isinstance(encoded.get("function"), Mapping):
        encoded["function"] = _encoded_call(encoded["function"])
    if "arguments" in encoded and not isinstance(encoded["arguments"], str):
        encoded["arguments"] = json.dumps(encoded["arguments"], ensure_ascii=False)
    return encoded


def _ground_truth(reward_model: Mapping[str, Any], where: str) -> Any:
    truth: Any = reward_model.get("ground_truth")
    if reward_model.get("encoding") != "json":
        return truth
    try:
        return read_json(truth)
    except (TypeError, ValueError, RecursionError) as error:
        raise DataError(
            f"{where}: reward_model.ground_truth: encoding is json, but {_short(truth)} is not: {error}"
        ) from error


def _decoded(value: Any, where: str, kind: type, from_table: bool) -> Any:
    """A list or dict that may be written as JSON text."""
    if value is None or value == "":
        return None
    if isinstance(value, str):
        try:
            value = read_json(value)
        except (ValueError, RecursionError) as error:
            raise DataError(f"{where}: not valid JSON: {error}") from error
    elif from_table:
        value = _without_nulls(value)
    if not isinstance(value, kind):
        raise DataError(f"{where}: got {_short(value)}; it must be a {kind.__name__} or JSON text of one")
    _check_texts(value, where)
    return value


def _without_nulls(value: Any) -> Any:
    """`value` without the null fields of its objects, at any depth."""
    if isinstance(value, Mapping):
        return {key: _without_nulls(item) for key, item in value.items() if item is not None}
    if isinstance(value, list | tuple):
        return [_without_nulls(item) for item in value]
    return value


def _short(value: Any, limit: int = 60) -> str:
    text = repr(value)
    return text if len(text) <= limit else text[: limit - 3] + "..."
