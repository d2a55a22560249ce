"""The process that reads tool calls with vLLM's parsers: one JSON request a line in, one JSON answer a line out.

Importing them takes seconds and half a gigabyte, and some need time that grows with the square of what a model wrote.
So it is never the grader's process, and a response may take `SECONDS` of CPU time; `math_pool` ends one that hangs.
"""

from __future__ import annotations

import json
import logging
import os
import resource
import signal
import sys
from pathlib import Path
from types import FrameType
from typing import Any

SECONDS = 0.5
EXTRA_MEMORY = 1 << 30


class TooLong(BaseException):
    """Not an Exception: the parsers swallow those."""


class AnyVocabulary(dict[str, int]):
    """Has every token. The parsers ask only whether their marks are tokens; what they read is text."""

    def __contains__(self, token: object) -> bool:
        return True

    def __missing__(self, token: str) -> int:
        return self.setdefault(token, len(self) + 100)

    def get(self, token: str, default: Any = None) -> int:
        return self[token]


class AnyTokenizer:
    """So nothing depends on the model: stored answers are read like fresh ones."""

    is_fast = True
    eos_token_id = 1
    chat_template = ""
    name_or_path = ""

    def __init__(self) -> None:
        self.vocab = AnyVocabulary()
        self.init_kwargs: dict[str, Any] = {}
        self.all_special_tokens: list[str] = []
        self.all_special_ids: list[int] = []

    def get_vocab(self) -> AnyVocabulary:
        return self.vocab

    def convert_tokens_to_ids(self, token: str | list[str]) -> Any:
        return self.vocab[token] if isinstance(token, str) else [self.vocab[part] for part in token]

    def encode(self, text: str, **_: Any) -> list[int]:
        return [self.vocab[character] for character in text]

    def decode(self, ids: list[int], **_: Any) -> str:
        texts = {token: text for text, token in self.vocab.items()}
        return "".join(texts.get(token, "") for token in ids)


def read(parser: str, text: str, tools: list[dict[str, Any]] | None) -> list[list[str]]:
    """[name, arguments as JSON text] of every call."""
    from pydantic import ValidationError
    from vllm.entrypoints.openai.chat_completion.protocol import ChatCompletionRequest
    from vllm.tool_parsers import ToolParserManager

    message = [{"role": "user", "content": ""}]
    try:
        request = ChatCompletionRequest(messages=message, model="", tools=tools)
    except ValidationError:  # schemas of a row that OpenAI's form does not have
        request = ChatCompletionRequest(messages=message, model="")
    found = ToolParserManager.get_tool_parser(parser)(AnyTokenizer(), request.tools)
    return [[c.function.name, c.function.arguments] for c in found.extract_tool_calls(text, request).tool_calls]


def stop(number: int, frame: FrameType | None) -> None:
    raise TooLong


def main() -> None:
    answers = os.fdopen(os.dup(1), "w")
    os.dup2(2, 1)  # what the libraries print is no answer
    logging.disable(logging.CRITICAL)
    read("hermes", "", None)
    used = int(Path("/proc/self/statm").read_text().split()[0]) * resource.getpagesize()
    resource.setrlimit(resource.RLIMIT_AS, (used + EXTRA_MEMORY, used + EXTRA_MEMORY))
    signal.signal(signal.SIGVTALRM, stop)
    for line in sys.stdin:
        request = json.loads(line)
        signal.setitimer(signal.ITIMER_VIRTUAL, SECONDS)
        try:
            result: dict[str, Any] = {"calls": read(request["parser"], request["text"], request["tools"])}
        except TooLong:
            result = {"fault": f"reading it takes longer than {SECONDS} s"}
        except Exception as error:  # whatever a parser raises on this text says that it cannot be read
            result = {"fault": f"{type(error).__name__}: {error}"[:300]}
        finally:
            signal.setitimer(signal.ITIMER_VIRTUAL, 0)
        answers.write(json.dumps({"result": result}) + "\n")
        answers.flush()


if __name__ == "__main__":
    main()
