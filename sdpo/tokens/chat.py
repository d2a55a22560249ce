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
from functools import cached_property
from typing import Any, NamedTuple

from sdpo.errors import DataError, ModelError
from sdpo.packed import TokenIds
from sdpo.records import Prompt
from sdpo.tokens.borders import has_borders, pieces_of

# Private-use characters mark where a control string was taken out of the content while the template runs.
_OPEN, _CLOSE = "\ue000", "\ue001"
_ANSWER = "\ue002"  # stands for an answer while the template runs
_MARK = f"{_OPEN}[0-9]+{_CLOSE}"
_TRIED = 100  # words that are looked for in a longer one
_BRACKETED = re.compile(r"[^\w\s].*[^\W\d].*[^\w\s]", re.DOTALL)


class Rendered(NamedTuple):
    """A prompt as the template wrote it, with a mark in place of each control string of the content."""

    marked: str
    taken: dict[str, str]  # what each mark stands for

    @property
    def text(self) -> str:
        """For people: control strings of the template and of the content look alike."""
        return _with_originals(self.marked, self.taken)


class Part(NamedTuple):
    """Of a rendered prompt, encoded by itself."""

    text: str
    control: bool = False  # a control string of the content: to be encoded as text


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
        self._core = backend if _encodes_in_backend(tokenizer) else None

    def prompt_ids(
        self,
        messages: Sequence[Mapping[str, Any]],
        tools: Sequence[Mapping[str, Any]] | None = None,
        template_kwargs: Mapping[str, Any] | None = None,
    ) -> list[int]:
        """Token ids up to and including the generation header, with at most one BOS. The arguments stay unchanged.

        Raises DataError when the template refuses the messages (roles it does not know, no system message, ...).
        """
        return self.encode([self.render(messages, tools, template_kwargs)])[0].tolist()

    def student_ids(self, prompt: Prompt) -> list[int]:
        """Token ids of the prompt as the policy sees it. Raises DataError when the template leaves out what a user or
        the system says, the tools, or an option of the row."""
        rendered = self.render(prompt.messages, prompt.tools, prompt.template_kwargs)
        self._check_complete(prompt, rendered.text)
        return self.encode([rendered])[0].tolist()

    def render_text(
        self,
        messages: Sequence[Mapping[str, Any]],
        tools: Sequence[Mapping[str, Any]] | None = None,
        template_kwargs: Mapping[str, Any] | None = None,
    ) -> str:
        """The rendered prompt as text, for people."""
        return self.render(messages, tools, template_kwargs).text

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

    def encode(
        self, prompts: Sequence[Rendered], shared: Sequence[str] = (), known: dict[Part, TokenIds] | None = None
    ) -> list[TokenIds]:
        """The ids of each prompt, as if it were encoded by itself, with at most one BOS.

        `shared`: long texts that several of them hold; where the tokenizer allows to cut there they are encoded once.
        `known`: pieces of earlier calls; gets those of this one.
        """
        known = {} if known is None else known
        parts = [self._parts(prompt, shared) for prompt in prompts]
        new = list(dict.fromkeys(part for own in parts for part in own if part not in known))
        plain = [part for part in new if not part.control]
        encoded = dict(zip(plain, self._encode_texts([part.text for part in plain]), strict=True))
        encoded |= {part: self._ids_of_text(part.text) for part in new if part.control}
        known |= {part: TokenIds(ids) for part, ids in encoded.items()}
        return [self._joined(own, known) for own in parts]

    def _parts(self, prompt: Rendered, shared: Sequence[str]) -> list[Part]:
        if shared and not self._has_borders:
            shared = ()
        parts: list[Part] = []
        for piece in re.split(f"({_MARK})", prompt.marked) if prompt.taken else [prompt.marked]:
            if piece in prompt.taken:
                parts.append(Part(prompt.taken[piece], control=True))
            else:
                parts += map(Part, pieces_of(piece, shared))
        return parts

    @cached_property
    def _has_borders(self) -> bool:
        return has_borders(self.tokenizer)

    def _joined(self, parts: Sequence[Part], known: Mapping[Part, TokenIds]) -> TokenIds:
        ids = TokenIds()
        for part in parts:
            ids.extend(known[part])
        bos = self.tokenizer.bos_token_id
        while bos is not None and ids[:2] == [bos, bos]:
            del ids[0]
        return ids

    def _encode_texts(self, texts: list[str]) -> list[list[int]]:
        """On all cores, where the tokenizer has threads of its own."""
        if self._core is None:
            return [self.tokenizer.encode(text, add_special_tokens=False) for text in texts]
        if texts:
            self.tokenizer.encode("", add_special_tokens=False)  # sets truncation, padding and the like as for all
        return [found.ids for found in self._core.encode_batch_fast(texts, add_special_tokens=False)]

    def continuation_ids(self, prompt: Prompt, messages: Sequence[Mapping[str, Any]]) -> list[int]:
        """What the template puts behind an answer to the prompt when `messages` follow: the end of the answer, the
        messages, the generation header. Raises DataError when it refuses them, or leaves some of it out."""
        answer, others = _ANSWER, json.dumps([*prompt.messages, *messages], ensure_ascii=False, default=str)
        while answer in others:
            answer += _ANSWER
        conversation = [*prompt.messages, {"role": "assistant", "content": answer}, *messages]
        rendered, taken = self.render(conversation, prompt.tools, prompt.template_kwargs)
        _, found, behind = rendered.rpartition(answer)
        if not found:
            raise DataError("the chat template leaves out what the assistant has said: no turn can follow it")
        for message in messages:
            if lost := _left_out(message["content"], _with_originals(behind, taken)):
                raise DataError(f"the chat template leaves out {lost[:40]!r} of what the {message['role']} says")
        return self.encode([Rendered(behind, taken)])[0].tolist()

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

    def render(
        self,
        messages: Sequence[Mapping[str, Any]],
        tools: Sequence[Mapping[str, Any]] | None,
        template_kwargs: Mapping[str, Any] | None,
    ) -> Rendered:
        """The prompt up to and including the generation header. Raises DataError as `prompt_ids` does."""
        taken: dict[str, str] = {}
        safe_messages = [
            self._take_out(m, taken, self._special if m.get("role") == "assistant" else self._control) for m in messages
        ]
        safe_tools = None if tools is None else self._take_out(list(tools), taken, self._control)
        safe_options = self._take_out(dict(template_kwargs or {}), taken, self._control)
        return Rendered(self._apply(safe_messages, safe_tools, safe_options, header=True), taken)

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

        marked = text
        if control.beginning.search(text):  # few texts have one, and looking for all strings everywhere is slow
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


def _encodes_in_backend(tokenizer: Any) -> bool:
    """Whether its `encode` is the library's own, which does nothing beside calling the Rust tokenizer."""
    from transformers import PreTrainedTokenizerFast as Own

    return isinstance(tokenizer, Own) and all(
        getattr(type(tokenizer), name) is getattr(Own, name) for name in ("encode", "_encode_plus")
    )


def _left_out(text: str, rendered: str) -> str:
    """A word of `text` that is not in `rendered`; "" when none is missing. Blanks may differ, quotes may be escaped."""
    if text in rendered or "".join(text.split()) in "".join(rendered.split()):
        return ""
    there = set(re.findall(r"\w+", rendered))
    missing = [word for word in dict.fromkeys(re.findall(r"\w+", text)) if word not in there]
    return next((word for word in missing[:_TRIED] if word not in rendered), "")


@dataclass(frozen=True)
class _Control:
    """Control strings: a pattern of all of them, one of what they and marks begin with, and their ids."""

    pattern: str
    beginning: re.Pattern[str]
    ids: frozenset[int]

    @classmethod
    def of(cls, texts: set[str], tokenizer: Any) -> _Control:
        # longest first: "<|end|>" must not hide "<|end|><|of|>"
        longest_first = sorted(filter(None, texts), key=len, reverse=True)
        ids = {*tokenizer.convert_tokens_to_ids(longest_first)} - {None, tokenizer.unk_token_id}
        beginnings = sorted({_OPEN, _CLOSE, *(text[:2] for text in longest_first)})
        found = re.compile("|".join(map(re.escape, beginnings)))
        return cls("|".join(map(re.escape, longest_first)) or r"(?!)", found, frozenset(ids))
