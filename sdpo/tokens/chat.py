"""Chat messages to token ids: one renderer for the student's and the teacher's prompt.

Both sides must see the same template, options, tools and generation header, or the first response tokens are compared
under different contexts. So nothing else in the program calls `apply_chat_template`.
"""

from __future__ import annotations

import copy
import json
import os.path
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from sdpo.errors import DataError, ModelError
from sdpo.records import Prompt

# Private-use characters mark where a control string was taken out of the content while the template runs.
_OPEN, _CLOSE = "\ue000", "\ue001"
_ANSWER = "\ue002"  # stands for an answer while the template runs
_MARK = f"{_OPEN}[0-9]+{_CLOSE}"
_TRIED = 100  # words that are looked for in a longer one
_BRACKETED = re.compile(r"[^\w\s].*[^\W\d].*[^\w\s]", re.DOTALL)


class ChatRenderer:
    """Renders chat messages with a Hugging Face tokenizer's own template.

    Content is data: a control string of the tokenizer (such as "<|im_end|>") in a message, a tool schema or a tool call
    is encoded as ordinary text, never as the special token. So are names in brackets that a tokenizer has as one token
    ("<think>", "<tool_call>"), except in what an assistant has said, where they are its marks. Everything else gets
    exactly the ids of `tokenizer.apply_chat_template(messages, add_generation_prompt=True)`.

    Args:
        tokenizer: a Hugging Face tokenizer with a chat template.
        template_kwargs: options of every rendering, e.g. {"enable_thinking": False}; a prompt's own options win.

    Raises ModelError when the tokenizer has no chat template.
    """

    def __init__(self, tokenizer: Any, template_kwargs: Mapping[str, Any] | None = None) -> None:
        if not getattr(tokenizer, "chat_template", None):
            name = getattr(tokenizer, "name_or_path", "") or type(tokenizer).__name__
            raise ModelError(
                f"tokenizer {name}: no chat template; use an instruction-tuned model, or put a chat_template.jinja"
                " beside the tokenizer (actor_rollout_ref.model.tokenizer_path)"
            )
        self.tokenizer = tokenizer
        self.template_kwargs = dict(template_kwargs or {})
        self.options: set[str] | None = None  # that the template reads; known behind `template_check.check_template`
        added = list(getattr(tokenizer, "added_tokens_decoder", {}).values())
        special = {str(token) for token in tokenizer.all_special_tokens} | {t.content for t in added if t.special}
        self._special = _Control.of(special, tokenizer)
        self._control = _Control.of(special | {t.content for t in added if _BRACKETED.fullmatch(t.content)}, tokenizer)
        # A fullwidth "＜think＞" is "<think>" to a tokenizer that looks for its tokens behind its normalizer.
        backend = getattr(tokenizer, "backend_tokenizer", None)
        self._normalizes = getattr(backend, "normalizer", None) is not None and any(t.normalized for t in added)

    def prompt_ids(
        self,
        messages: Sequence[Mapping[str, Any]],
        tools: Sequence[Mapping[str, Any]] | None = None,
        template_kwargs: Mapping[str, Any] | None = None,
    ) -> list[int]:
        """Token ids up to and including the generation header, with at most one BOS. The arguments stay unchanged.

        Raises DataError when the template refuses the messages (roles it does not know, no system message, ...).
        """
        return self._encode(*self._render(messages, tools, template_kwargs))

    def student_ids(self, prompt: Prompt) -> list[int]:
        """Token ids of the prompt as the policy sees it. Raises DataError when the template leaves out what a user or
        the system says, the tools, or an option of the row."""
        rendered, taken = self._render(prompt.messages, prompt.tools, prompt.template_kwargs)
        self._check_complete(prompt, _with_originals(rendered, taken))
        return self._encode(rendered, taken)

    def render_text(
        self,
        messages: Sequence[Mapping[str, Any]],
        tools: Sequence[Mapping[str, Any]] | None = None,
        template_kwargs: Mapping[str, Any] | None = None,
    ) -> str:
        """The rendered prompt as text, for people: control strings of the template and of the content look alike."""
        return _with_originals(*self._render(messages, tools, template_kwargs))

    def _check_complete(self, prompt: Prompt, rendered: str) -> None:
        for message in prompt.messages:
            lost = _left_out(message["content"], rendered) if message["role"] in ("user", "system") else ""
            if lost:
                where = f"the chat template leaves out {lost[:40]!r} of what the {message['role']} says"
                raise DataError(f"{where}; use a model whose template says it")
        options = self.options
        if options is not None and (unread := sorted(set(prompt.template_kwargs or {}) - options)):
            read = ", ".join(sorted(options)) or "none"
            raise DataError(f"the chat template does not read the option {unread[0]!r} (it reads {read}); leave it out")
        if prompt.tools:
            names = [tool.get("function", tool).get("name", "") for tool in prompt.tools]
            without = self.render_text(prompt.messages, None, prompt.template_kwargs)
            if rendered == without or not all(name in rendered for name in names):
                raise DataError("the chat template leaves out the tools; use a model that is made for them")

    def _encode(self, rendered: str, taken: Mapping[str, str]) -> list[int]:
        ids: list[int] = []
        for piece in re.split(f"({_MARK})", rendered) if taken else [rendered]:
            if piece in taken:
                ids += self._ids_of_text(taken[piece])
            elif piece:
                ids += self.tokenizer.encode(piece, add_special_tokens=False)
        bos = self.tokenizer.bos_token_id
        while bos is not None and ids[:2] == [bos, bos]:
            del ids[0]
        return ids

    def continuation_ids(self, prompt: Prompt, messages: Sequence[Mapping[str, Any]]) -> list[int]:
        """What the template puts behind an answer to the prompt when `messages` follow: the end of the answer, the
        messages, the generation header. Raises DataError when it refuses them, or leaves some of it out."""
        answer, others = _ANSWER, json.dumps([*prompt.messages, *messages], ensure_ascii=False, default=str)
        while answer in others:
            answer += _ANSWER
        conversation = [*prompt.messages, {"role": "assistant", "content": answer}, *messages]
        rendered, taken = self._render(conversation, prompt.tools, prompt.template_kwargs)
        _, found, behind = rendered.rpartition(answer)
        if not found:
            raise DataError("the chat template leaves out what the assistant has said: no turn can follow it")
        for message in messages:
            if lost := _left_out(message["content"], _with_originals(behind, taken)):
                raise DataError(f"the chat template leaves out {lost[:40]!r} of what the {message['role']} says")
        return self._encode(behind, taken)

    def generation_header_ids(self, template_kwargs: Mapping[str, Any] | None = None) -> list[int]:
        """Ids that the template puts before a response, e.g. of "<|im_start|>assistant\\n"; [] if it puts none."""
        message = [{"role": "user", "content": "x"}]
        with_header, without = (
            self.tokenizer.encode(self._apply(message, None, template_kwargs, header), add_special_tokens=False)
            for header in (True, False)
        )
        return with_header[len(os.path.commonprefix([with_header, without])) :]

    def generation_header(self, prompt: Prompt) -> str:
        """What the template puts between this prompt and the response, as text."""
        whole, without = (
            self._apply(list(prompt.messages), prompt.tools, prompt.template_kwargs, header) for header in (True, False)
        )
        return whole[len(os.path.commonprefix([whole, without])) :]

    def decode(self, ids: Sequence[int], skip_special_tokens: bool = True) -> str:
        """Text of token ids, blanks as they are. For people and graders; never encoded again."""
        return self.tokenizer.decode(
            list(ids), skip_special_tokens=skip_special_tokens, clean_up_tokenization_spaces=False
        )

    def _ids_of_text(self, text: str) -> list[int]:
        """Ids of a control string that is data, none of which is a control id: as it is, cut behind its first character
        (an added token that is not special is recognized otherwise), or character by character."""
        for pieces in ([text], [text[:1], text[1:]], text):
            ids = [
                i for p in pieces for i in self.tokenizer.encode(p, add_special_tokens=False, split_special_tokens=True)
            ]
            if not self._control.ids.intersection(ids):
                break
        return ids

    def _render(
        self,
        messages: Sequence[Mapping[str, Any]],
        tools: Sequence[Mapping[str, Any]] | None,
        template_kwargs: Mapping[str, Any] | None,
    ) -> tuple[str, dict[str, str]]:
        """Rendered text with a mark in place of each control string of the content, and what each mark stands for."""
        taken: dict[str, str] = {}
        safe_messages = [
            self._take_out(m, taken, self._special if m.get("role") == "assistant" else self._control) for m in messages
        ]
        safe_tools = None if tools is None else self._take_out(list(tools), taken, self._control)
        safe_options = self._take_out(dict(template_kwargs or {}), taken, self._control)
        return self._apply(safe_messages, safe_tools, safe_options, header=True), taken

    def _take_out(self, value: Any, taken: dict[str, str], control: _Control) -> Any:
        """A deep copy of `value` in which every string has marks in place of control strings."""
        if isinstance(value, str):
            return self._mark(value, taken, control)
        if isinstance(value, Mapping):
            return {
                self._take_out(k, taken, control): self._take_out(item, taken, control) for k, item in value.items()
            }
        if isinstance(value, list | tuple):
            return [self._take_out(item, taken, control) for item in value]
        return copy.deepcopy(value)

    def _mark(self, text: str, taken: dict[str, str], control: _Control) -> str:
        def mark(found: re.Match[str]) -> str:
            key = f"{_OPEN}{len(taken)}{_CLOSE}"
            taken[key] = found.group()
            return key

        # Characters that look like a mark are taken out too, so that no text can imitate one.
        marked = re.sub(f"{control.pattern}|[{_OPEN}{_CLOSE}]", mark, text)
        if self._normalizes and control.ids.intersection(self.tokenizer.encode(marked, add_special_tokens=False)):
            return re.sub(r"(?s).+", mark, text)
        return marked

    def _apply(self, messages: Any, tools: Any, template_kwargs: Mapping[str, Any] | None, header: bool) -> str:
        options = {**self.template_kwargs, **(template_kwargs or {})}
        try:
            return self.tokenizer.apply_chat_template(
                messages, tools=tools, tokenize=False, add_generation_prompt=header, **options
            )
        except Exception as error:  # a template is a program, and the messages are its input
            roles = [message.get("role") for message in messages]
            reason = " ".join(str(error).split()) or type(error).__name__
            raise DataError(f"chat template: cannot render messages with roles {roles}: {reason}") from error


def _with_originals(rendered: str, taken: Mapping[str, str]) -> str:
    return re.sub(_MARK, lambda mark: taken.get(mark[0], mark[0]), rendered) if taken else rendered


def _left_out(text: str, rendered: str) -> str:
    """A word of `text` that is not in `rendered`; "" when none is missing. Blanks may differ, quotes may be escaped."""
    if text in rendered or "".join(text.split()) in "".join(rendered.split()):
        return ""
    there = set(re.findall(r"\w+", rendered))
    missing = [word for word in dict.fromkeys(re.findall(r"\w+", text)) if word not in there]
    return next((word for word in missing[:_TRIED] if word not in rendered), "")


@dataclass(frozen=True)
class _Control:
    """Control strings: a pattern of all of them, and their ids."""

    pattern: str
    ids: frozenset[int]

    @classmethod
    def of(cls, texts: set[str], tokenizer: Any) -> _Control:
        # longest first: "<|end|>" must not hide "<|end|><|of|>"
        longest_first = sorted(filter(None, texts), key=len, reverse=True)
        ids = {*tokenizer.convert_tokens_to_ids(longest_first)} - {None, tokenizer.unk_token_id}
        return cls("|".join(map(re.escape, longest_first)) or r"(?!)", frozenset(ids))
