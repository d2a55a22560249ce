"""Chat messages to token ids: one renderer for the student's and the teacher's prompt.

Both sides must see the same template, options, tools and generation header, or the first response tokens are compared
under different contexts. So nothing else in the program calls `apply_chat_template`.
"""

from __future__ import annotations

import copy
import os.path
import re
from collections.abc import Mapping, Sequence
from typing import Any

from jinja2.exceptions import TemplateError

from sdpo.errors import DataError, ModelError
from sdpo.records import Prompt

# Private-use characters mark where a control string was taken out of the content while the template runs.
_OPEN, _CLOSE = "\ue000", "\ue001"


class ChatRenderer:
    """Renders chat messages with a Hugging Face tokenizer's own template.

    Content is data: a control string of the tokenizer (such as "<|im_end|>") in a message, a tool schema or a tool call
    is encoded as ordinary text, never as the special token. Everything else gets exactly the ids of
    `tokenizer.apply_chat_template(messages, add_generation_prompt=True)`.

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
        special = {str(token) for token in tokenizer.all_special_tokens}
        added = getattr(tokenizer, "added_tokens_decoder", {}).values()
        special |= {token.content for token in added if token.special}
        # longest first: "<|end|>" must not hide "<|end|><|of|>"
        self._control = re.compile(
            "|".join(re.escape(s) for s in sorted(special, key=len, reverse=True) if s) or r"(?!)"
        )

    def prompt_ids(
        self,
        messages: Sequence[Mapping[str, Any]],
        tools: Sequence[Mapping[str, Any]] | None = None,
        template_kwargs: Mapping[str, Any] | None = None,
    ) -> list[int]:
        """Token ids up to and including the generation header, with at most one BOS. The arguments stay unchanged.

        Raises DataError when the template refuses the messages (roles it does not know, no system message, ...).
        """
        rendered, taken = self._render(messages, tools, template_kwargs)
        ids: list[int] = []
        for piece in re.split(f"({_OPEN}[0-9]+{_CLOSE})", rendered) if taken else [rendered]:
            if piece in taken:
                ids += self.tokenizer.encode(taken[piece], add_special_tokens=False, split_special_tokens=True)
            elif piece:
                ids += self.tokenizer.encode(piece, add_special_tokens=False)
        bos = self.tokenizer.bos_token_id
        while bos is not None and ids[:2] == [bos, bos]:
            del ids[0]
        return ids

    def student_ids(self, prompt: Prompt) -> list[int]:
        """Token ids of the prompt as the policy sees it."""
        return self.prompt_ids(prompt.messages, prompt.tools, prompt.template_kwargs)

    def render_text(
        self,
        messages: Sequence[Mapping[str, Any]],
        tools: Sequence[Mapping[str, Any]] | None = None,
        template_kwargs: Mapping[str, Any] | None = None,
    ) -> str:
        """The rendered prompt as text, for people: control strings of the template and of the content look alike."""
        rendered, taken = self._render(messages, tools, template_kwargs)
        for mark, original in taken.items():
            rendered = rendered.replace(mark, original)
        return rendered

    def generation_header_ids(self, template_kwargs: Mapping[str, Any] | None = None) -> list[int]:
        """Ids that the template puts before a response, e.g. of "<|im_start|>assistant\\n"; [] if it puts none."""
        message = [{"role": "user", "content": "x"}]
        with_header, without = (
            self.tokenizer.encode(self._apply(message, None, template_kwargs, header), add_special_tokens=False)
            for header in (True, False)
        )
        return with_header[len(os.path.commonprefix([with_header, without])) :]

    def decode(self, ids: Sequence[int], skip_special_tokens: bool = True) -> str:
        """Text of token ids, blanks as they are. For people and graders; never encoded again."""
        return self.tokenizer.decode(
            list(ids), skip_special_tokens=skip_special_tokens, clean_up_tokenization_spaces=False
        )

    def _render(
        self,
        messages: Sequence[Mapping[str, Any]],
        tools: Sequence[Mapping[str, Any]] | None,
        template_kwargs: Mapping[str, Any] | None,
    ) -> tuple[str, dict[str, str]]:
        """Rendered text with a mark in place of each control string of the content, and what each mark stands for."""
        taken: dict[str, str] = {}
        safe_messages = self._take_out(list(messages), taken)
        safe_tools = None if tools is None else self._take_out(list(tools), taken)
        return self._apply(safe_messages, safe_tools, template_kwargs, header=True), taken

    def _take_out(self, value: Any, taken: dict[str, str]) -> Any:
        """A deep copy of `value` in which every string has marks in place of control strings."""
        if isinstance(value, str):
            return self._mark(value, taken)
        if isinstance(value, Mapping):
            return {self._take_out(key, taken): self._take_out(item, taken) for key, item in value.items()}
        if isinstance(value, list | tuple):
            return [self._take_out(item, taken) for item in value]
        return copy.deepcopy(value)

    def _mark(self, text: str, taken: dict[str, str]) -> str:
        def mark(found: re.Match[str]) -> str:
            key = f"{_OPEN}{len(taken)}{_CLOSE}"
            taken[key] = found.group()
            return key

        # Characters that look like a mark are taken out too, so that no text can imitate one.
        return re.sub(f"{self._control.pattern}|[{_OPEN}{_CLOSE}]", mark, text)

    def _apply(self, messages: Any, tools: Any, template_kwargs: Mapping[str, Any] | None, header: bool) -> str:
        options = {**self.template_kwargs, **(template_kwargs or {})}
        try:
            return self.tokenizer.apply_chat_template(
                messages, tools=tools, tokenize=False, add_generation_prompt=header, **options
            )
        except (TemplateError, TypeError) as error:
            roles = [message.get("role") for message in messages]
            raise DataError(f"chat template: cannot render messages with roles {roles}: {error}") from error
