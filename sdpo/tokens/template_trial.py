"""Renders chat templates in a process that may fail: `python -P template_trial.py`, cases in, texts out, both JSON.

A template is a program of whoever made the model. Compiling it runs its constant expressions, so not even that happens
elsewhere first. It gets some seconds of processor time, and 1 GiB above what the imports have taken.
"""

from __future__ import annotations

import json
import resource
import sys
import time
from typing import Any

MEMORY, LONGEST = 2**30, 2**20


def answer(asked: dict[str, Any]) -> dict[str, Any]:
    """`cases`: text or error of each; `variables`: the options that the template reads."""
    from transformers.utils import chat_template_utils as templates

    found = {name: _render(case, asked["special_tokens"]) for name, case in asked["cases"].items()}
    try:
        known = templates._compile_jinja_template(asked["template"]).environment.globals
        variables = sorted(templates._get_template_variables(asked["template"]) - set(known))
    except Exception:  # it does not compile: the cases say why
        variables = []
    return {"cases": found, "variables": variables}


def _render(case: dict[str, Any], special_tokens: dict[str, str]) -> dict[str, str]:
    from transformers.utils.chat_template_utils import render_jinja_template

    try:
        texts, _ = render_jinja_template(
            [case["messages"]],
            case["tools"],
            chat_template=case["template"],
            add_generation_prompt=case["header"],
            **(special_tokens | case["options"]),
        )
    except Exception as error:  # whatever a template does
        return {"error": f"{type(error).__name__}: {' '.join(str(error).split())[:300]}".removesuffix(": ")}
    return {"text": texts[0]} if len(texts[0]) <= LONGEST else {"error": f"it makes {len(texts[0])} characters of it"}


def main() -> None:
    from transformers.utils import chat_template_utils  # noqa: F401 - before anything is limited

    asked = json.load(sys.stdin)
    seconds = int(time.process_time()) + asked["seconds"]
    with open("/proc/self/statm", encoding="ascii") as file:
        memory = int(file.read().split()[0]) * resource.getpagesize() + MEMORY
    resource.setrlimit(resource.RLIMIT_CPU, (seconds, seconds))
    resource.setrlimit(resource.RLIMIT_AS, (memory, memory))
    json.dump(answer(asked), sys.stdout)


if __name__ == "__main__":
    main()
