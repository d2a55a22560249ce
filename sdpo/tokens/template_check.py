"""Does a chat template put into the prompt what it is given? Asked once, before anything is rendered with it.

Templates that leave something out say nothing about it: a run would train on the wrong prompts and learn from them.
"""

from __future__ import annotations

import difflib
import json
import logging
import os
import subprocess
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from sdpo.errors import ModelError, problem
from sdpo.tokens import template_trial
from sdpo.tokens.chat import ChatRenderer

log = logging.getLogger(__name__)

CPU_SECONDS = 10  # of the template
SECONDS = 120  # for the process to start and answer
FIELD = "data.apply_chat_template_kwargs"
ASK, ASK_AGAIN, ANSWER = "zebra7391", "walnut2846", "quince4820"
TOOL = {"type": "function", "function": {"name": "lemur5175", "description": "d", "parameters": {"type": "object"}}}
GIVEN = ("messages", "tools", "add_generation_prompt")


def check_template(chat: ChatRenderer) -> None:
    """Raises ModelError, in one line, for a template that fails, does not end, leaves out what a user says or what
    begins a response, and for an option that it does not read. Warns of options without effect. Rows have a check of
    their own, in `ChatRenderer.student_ids`."""
    options = chat.template_kwargs
    found, variables = _try(chat, _cases(chat, options))
    chat.options = read = set(variables).difference(GIVEN, chat.tokenizer.special_tokens_map)
    asked = found["asked"]
    if variables or "error" not in asked:  # else it does not compile
        _check_options(options, read)
    if "error" in asked:
        raise _wrong(chat, f"it cannot render a user's message: {asked['error']}")
    if ASK not in asked["text"]:
        raise _wrong(chat, "it leaves out what the user says")
    if ASK_AGAIN not in found["in turns"].get("text", ASK_AGAIN):
        raise _wrong(chat, "it leaves out what the user says last in a conversation of several turns")
    missing = _missing_header(found)
    if missing:
        raise _wrong(chat, f"it does not begin the response: {missing!r} stands before an answer, not after a question")
    for name in read.intersection(options):
        if not _has_effect(found, name):
            log.warning("%s.%s: no effect on the texts that were tried", FIELD, name)


def _check_options(options: Mapping[str, Any], read: set[str]) -> None:
    """Switching off what a template does not have (`enable_thinking=false`) changes nothing, unless it is misspelt."""
    for name in sorted(set(options) - read):
        close = difflib.get_close_matches(name, read, n=1, cutoff=0.8)
        if options[name] or name in GIVEN or close:
            allowed = f"options that the chat template reads: {', '.join(sorted(read)) or 'none'}"
            raise ModelError(problem(FIELD, name, allowed, f"nearest: {close[0]}" if close else ""))


def _cases(chat: ChatRenderer, options: Mapping[str, Any]) -> dict[str, dict[str, Any]]:
    """What is rendered: under the options as they are, and once more without each of them and with another value."""
    turns = [_user(ASK), {"role": "assistant", "content": f"<think>r</think>{ANSWER}"}, _user(ASK_AGAIN)]
    cases = {
        "asked, no header": _case(chat, [_user(ASK)], options, header=False),
        "answered": _case(chat, [_user(ASK), {"role": "assistant", "content": ANSWER}], options, header=False),
    }
    changes = {"": options}
    for name, value in options.items():
        rest = {key: other for key, other in options.items() if key != name}
        changes |= {f"without {name}: ": rest, f"other {name}: ": rest | {name: _other(value)}}
    for change, changed in changes.items():
        cases[f"{change}asked"] = _case(chat, [_user(ASK)], changed)
        cases[f"{change}with tools"] = _case(chat, [_user(ASK)], changed, tools=[TOOL])
        cases[f"{change}in turns"] = _case(chat, turns, changed)
    return cases


def _has_effect(found: Mapping[str, Any], name: str) -> bool:
    changed = {case: text for case, text in found.items() if f" {name}: " in case}
    return any(text != found[case.partition(": ")[2]] for case, text in changed.items())


def _case(
    chat: ChatRenderer,
    messages: list[dict[str, Any]],
    options: Mapping[str, Any],
    header: bool = True,
    tools: Any = None,
) -> dict[str, Any]:
    template = chat.tokenizer.get_chat_template(None, tools)
    return {"messages": messages, "tools": tools, "options": dict(options), "header": header, "template": template}


def _user(text: str) -> dict[str, Any]:
    return {"role": "user", "content": text}


def _other(value: Any) -> Any:
    if isinstance(value, bool):
        return not value
    return value + 1 if isinstance(value, int | float) else "okapi6207"


def _missing_header(found: Mapping[str, Mapping[str, str]]) -> str:
    """What comes between a question and an answer to it, but not behind a question that is to be answered."""
    asked, bare = found["asked"]["text"], found["asked, no header"].get("text", "")
    whole = found["answered"].get("text", "")
    if len(os.path.commonprefix([asked, bare])) < len(asked) or ANSWER not in whole:
        return ""
    return whole[len(os.path.commonprefix([asked, whole])) :].partition(ANSWER)[0].strip()


def _try(chat: ChatRenderer, cases: Mapping[str, Any]) -> tuple[dict[str, dict[str, str]], list[str]]:
    special = {name: str(token) for name, token in chat.tokenizer.special_tokens_map.items()}
    asked = {"cases": cases, "special_tokens": special, "template": cases["asked"]["template"], "seconds": CPU_SECONDS}
    try:
        child = subprocess.run(
            [sys.executable, "-P", str(Path(template_trial.__file__))],
            input=json.dumps(asked),
            capture_output=True,
            text=True,
            timeout=SECONDS,
            check=True,
        )
        answer = json.loads(child.stdout)
    except (subprocess.SubprocessError, ValueError) as error:
        why = f"within {CPU_SECONDS} s and {template_trial.MEMORY // 2**30} GiB"
        raise _wrong(chat, f"it does not come to an end {why}") from error
    return answer["cases"], answer["variables"]


def _wrong(chat: ChatRenderer, why: str) -> ModelError:
    name = getattr(chat.tokenizer, "name_or_path", "") or type(chat.tokenizer).__name__
    fix = "repair chat_template.jinja beside the tokenizer (actor_rollout_ref.model.tokenizer_path)"
    return ModelError(f"chat template of {name}: {why}; {fix}")
