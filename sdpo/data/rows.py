"""One row of a file to a `Prompt` and back, in verl's RL schema, or with the names that `Columns` gives. A row that
cannot be used is refused with its number.

Columns: `data_source` (text), `prompt` (chat messages, or text: one user message), `reward_model` with `ground_truth`
(and, ours, `encoding`: "json" when the ground truth is JSON text), `extra_info`, and the optional `tools` and
`chat_template_kwargs` (lists and dicts, or JSON text). See docs/data.md.
"""

from __future__ import annotations

import hashlib
import json
import re
from collections.abc import Mapping
from typing import Any

from sdpo.data.columns import Columns, value_of
from sdpo.data.long_integers import read_json
from sdpo.errors import DataError
from sdpo.records import Prompt

_VERL = Columns()
_LAST_ROLES = ("user", "tool")
_SHAREGPT = {"human": "user", "gpt": "assistant", "observation": "tool"}
_MESSAGES_AS_TEXT = re.compile(r"""\s*\[?\s*\{\s*\\?['"](?:role|content|from|value)\\?['"]""")
_DEEPEST = 100  # levels of nesting; the templates' own recursion ends some hundreds further on


def to_prompt(
    row: Mapping[str, Any], uid: str, where: str, columns: Columns = _VERL, from_table: bool = False
) -> Prompt:
    """A validated prompt.

    Args:
        where: file and row number, e.g. "train.parquet row 3"; starts every error message.
        from_table: the row comes from a table format, which gives every nested dict the keys of all others, with
            null in the absent ones; such nulls are dropped. A null that was meant looks the same there: store arguments
            as JSON text, as `to_row` does.

    Raises DataError naming row, field and problem.
    """
    source = columns.source_of(row, where)
    reward_model = row.get("reward_model") or {}
    extra_info = row.get("extra_info") or columns.others(row)
    for name, value in (("reward_model", reward_model), ("extra_info", extra_info)):
        if not isinstance(value, Mapping):
            raise DataError(f"{where}: {name}: got {type(value).__name__}; it must be an object")
    tools = _decoded(row.get("tools"), f"{where}: tools", list, from_table)
    for number, tool in enumerate(tools or [], 1):
        if not isinstance(tool, Mapping):
            raise DataError(f"{where}: tools: entry {number}: got {_short(tool)}; a tool's schema is an object")
    value = value_of(row, columns.prompt)
    messages, said = _conversation(value, f"{where}: {columns.prompt}", from_table, columns)
    truth = _ground_truth(reward_model, where)
    if columns.answer is not None:
        truth = said if columns.answer == columns.prompt else _answer(value_of(row, columns.answer), from_table)
    solution = said if columns.solution == columns.prompt else value_of(row, columns.solution)
    return Prompt(
        uid=uid,
        messages=messages,
        data_source=source,
        ground_truth=truth,
        extra_info=_without_nulls(extra_info) if from_table else dict(extra_info),
        tools=tuple(tools) if tools else None,
        template_kwargs=_decoded(row.get("chat_template_kwargs"), f"{where}: chat_template_kwargs", dict, from_table)
        or {},
        as_text=isinstance(value, str) and len(messages) == 1 and messages[0]["content"] == value,
        feedback=_told(value_of(row, columns.feedback), f"{where}: {columns.feedback}"),
        solution=_told(solution, f"{where}: {columns.solution}"),
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


def _conversation(
    value: Any, where: str, from_table: bool, columns: Columns
) -> tuple[tuple[dict[str, Any], ...], str | None]:
    """The messages of a prompt, and what the assistant says at their end where that is the row's answer or solution."""
    value = _read_messages(value, where)
    if not isinstance(value, list | tuple) or not value:
        raise DataError(f"{where}: got {_short(value)}; it must be text or a list of messages with role and content")
    messages = tuple(_message(m, f"{where} message {i}", from_table) for i, m in enumerate(value, 1))
    said = None
    if columns.prompt in (columns.answer, columns.solution):
        if messages[-1]["role"] != "assistant":
            raise DataError(f"{where}: the last message is the {messages[-1]['role']}'s; it must be the answer")
        messages, said = messages[:-1], messages[-1]["content"]
    roles = [message["role"] for message in messages]
    if not roles or roles[-1] not in _LAST_ROLES or "user" not in roles:
        fix = f"; data.answer_key={columns.prompt} takes the last message as the answer" if "user" in roles else ""
        raise DataError(
            f"{where}: roles {roles}; a prompt holds a user message and ends with one (or with a tool's answer){fix}"
        )
    last = max(i for i, role in enumerate(roles) if role == "user")
    if not messages[last]["content"].strip():
        raise DataError(f"{where}: the last user message is blank")
    return messages, said


def _read_messages(value: Any, where: str) -> Any:
    """Text is one user message, but for messages that somebody stored as text: JSON is read, another form refused."""
    if not isinstance(value, str):
        return value
    if value.lstrip()[:1] in ("[", "{", '"'):
        try:
            decoded = read_json(value)
        except (ValueError, RecursionError):
            decoded = None
        if isinstance(decoded, str):  # JSON text of JSON text
            inner = _read_messages(decoded, where)
            decoded = inner if inner != [{"role": "user", "content": decoded}] else ""
        messages = [decoded] if isinstance(decoded, Mapping) else decoded
        if isinstance(messages, list) and messages and all(_looks_like_message(m) for m in messages):
            return messages
        if decoded is None and _MESSAGES_AS_TEXT.match(value):
            fix = "store a list of messages, or JSON text of one"
            raise DataError(f"{where}: got {_short(value)}; it looks like messages and is no JSON: {fix}")
    return [{"role": "user", "content": value}]


def _looks_like_message(value: Any) -> bool:
    return isinstance(value, Mapping) and ({"role", "content"} <= value.keys() or {"from", "value"} <= value.keys())


def _answer(value: Any, from_table: bool) -> Any:
    """A ground truth from a column of its own; of a completion in messages, what the assistant says."""
    if isinstance(value, list) and value and all(_looks_like_message(message) for message in value):
        return str(value[-1].get("content", value[-1].get("value")))
    return _without_nulls(value) if from_table else value


def _told(value: Any, where: str) -> str:
    """Text for the teacher; "" for nothing."""
    value = _answer(value, False)
    if value is None or isinstance(value, bool):
        return ""
    if not isinstance(value, str | int | float):
        raise DataError(f"{where}: got {_short(value)}; it must be text")
    _check_texts(str(value), where)
    return str(value)


def _message(value: Any, where: str, from_table: bool) -> dict[str, Any]:
    if not isinstance(value, Mapping):
        raise DataError(f"{where}: got {_short(value)}; it must be an object with role and content")
    # An absent key and a null one mean the same in a message.
    message = {key: item for key, item in value.items() if item is not None}
    if "role" not in message and "from" in message:  # ShareGPT's names
        said_by = str(message.pop("from"))
        message |= {"role": _SHAREGPT.get(said_by, said_by), "content": message.pop("value", "")}
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
