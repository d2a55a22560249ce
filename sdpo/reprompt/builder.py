"""A graded group to one teacher prompt per sample."""

from __future__ import annotations

import random
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from sdpo.config.schema import SelfDistillationConfig
from sdpo.errors import ConfigError, DataError, problem
from sdpo.records import Group, Prompt, Reprompt, Sample
from sdpo.reprompt.demonstrations import CHOICES, demonstration_text, route
from sdpo.reprompt.feedback import feedback_for
from sdpo.reprompt.templates import Templates
from sdpo.tokens.chat import ChatRenderer

TRUNCATIONS = ("right", "left", "error")
COUNTS = ("samples", "demonstrations", "feedback", "both", "none", "ungraded", "trimmed", "masked_overlong")


@dataclass(frozen=True)
class _Told:
    """What one sample's teacher is told beside the problem."""

    demonstration: str | None
    feedback: str | None

    @property
    def nothing(self) -> bool:
        return self.demonstration is None and self.feedback is None


class RepromptBuilder:
    """Builds the teacher's prompts.

    The last user message becomes the reprompt template around its own text; all other messages, the tools and the
    template options stay those of the student's prompt, and the same renderer writes both. `demonstrations` False:
    feedback alone, whatever the siblings have.
    """

    def __init__(
        self, config: SelfDistillationConfig, chat: ChatRenderer, seed: int = 0, demonstrations: bool = True
    ) -> None:
        section = "actor_rollout_ref.actor.self_distillation"
        if config.reprompt_truncation not in TRUNCATIONS:
            raise ConfigError(
                problem(f"{section}.reprompt_truncation", config.reprompt_truncation, " | ".join(TRUNCATIONS))
            )
        if config.demonstration_choice not in CHOICES:
            raise ConfigError(
                problem(f"{section}.demonstration_choice", config.demonstration_choice, " | ".join(CHOICES))
            )
        self._config = config
        self._chat = chat
        self._seed = seed
        self._demonstrations = demonstrations
        self._templates = Templates(config)

    def build(self, group: Group, step: int = 0) -> tuple[list[Reprompt | None], dict[str, float]]:
        """One reprompt per sample, in the order of `group.samples`; None where there is no signal.

        Counts, in samples: `demonstrations` and `feedback` (used), `both`, `none` (graded, nothing to tell), `ungraded`
        (the grader failed), `trimmed` (cut to fit), `masked_overlong` (nothing to tell fits), `samples`. `step` seeds
        the random choice of demonstrations.
        """
        rng = random.Random(f"{self._seed}:{step}:{group.prompt.uid}")
        sources = route(group, self._config, rng) if self._demonstrations else [None] * len(group.samples)
        counts = dict.fromkeys(COUNTS, 0.0)
        counts["samples"] = float(len(group.samples))
        reprompts: list[Reprompt | None] = []
        for sample, source in zip(group.samples, sources, strict=True):
            reprompt = self._build_one(group, sample, source, counts)
            reprompts.append(reprompt)
            if reprompt is not None:
                shown = reprompt.demonstration_index is not None
                counts["demonstrations"] += shown
                counts["feedback"] += reprompt.used_feedback
                counts["both"] += shown and reprompt.used_feedback
                counts["trimmed"] += reprompt.trimmed_tokens > 0
        return reprompts, counts

    def _build_one(self, group: Group, sample: Sample, source: int | None, counts: dict[str, float]) -> Reprompt | None:
        if sample.grade is None or not sample.grade.graded:
            counts["ungraded"] += 1
            return None
        sibling = None if source is None else group.samples[source]
        demonstration = None if sibling is None else demonstration_text(sibling, self._config)
        told = _Told(demonstration, feedback_for(sample, sibling is not None, self._config))
        hinted = [at for at, turn in enumerate(sample.turns) if turn.feedback.strip()]
        if not self._config.include_environment_feedback:
            hinted = []
        if told.nothing and not hinted:
            counts["none"] += 1
            return None
        found = ((at, self._before_turn(group.prompt, sample, at)) for at in hinted)
        turns = {at: context for at, context in found if context is not None}
        fitted = None if told.nothing else self._fit(group.prompt, told)
        if fitted is None and not turns:
            counts["masked_overlong"] += 1
            return None
        told, ids, trimmed = fitted or (_Told(None, None), [], 0)
        shown = self._messages(group.prompt, told), group.prompt.tools, group.prompt.template_kwargs
        hints = [self._chat.decode(context, skip_special_tokens=False) for context in turns.values()]
        return Reprompt(
            prompt_ids=ids,
            text="\n\n".join([*([self._chat.render_text(*shown)] if ids else []), *hints]),
            demonstration_index=None if sibling is None or told.demonstration is None else sibling.index,
            used_feedback=told.feedback is not None or bool(turns),
            trimmed_tokens=trimmed,
            turns=turns,
        )

    def _before_turn(self, prompt: Prompt, sample: Sample, at: int) -> list[int] | None:
        """What the teacher reads before a turn that has feedback of its own: history as it was, then, in or behind the
        last message, the hint. None when nothing of it fits."""
        turn = sample.turns[at]
        said = turn.said
        if said is None:
            return None
        if not said:
            fitted = self._fit(prompt, _Told(None, turn.feedback))
            return fitted and fitted[1]
        ids, start = sample.sequences[turn.sequence], turn.span[0]
        began = max(t.span[1] for t in sample.turns if t.sequence == turn.sequence and t.span[1] <= start)
        # The end of the answer before, where the model wrote it itself.
        written = len(self._chat.continuation_ids(prompt, said)) - (start - began)

        def context(piece: str) -> list[int]:
            told = with_hint(said, self._templates.hint(piece))
            return [*ids[:began], *self._chat.continuation_ids(prompt, told)[written:]]

        room = self._config.max_reprompt_len - len(sample.prompt_ids) + start
        if len(whole := context(turn.feedback)) <= room:
            return whole
        piece = self._longest(turn.feedback, lambda text: len(context(text)) <= room)
        return None if piece is None else context(piece)

    def _fit(self, prompt: Prompt, told: _Told) -> tuple[_Told, list[int], int] | None:
        """Trim to `max_reprompt_len`: what is told, the prompt ids, the tokens cut. None when nothing told fits.

        Only what is told is cut, the feedback first, each down to nothing if need be; the problem, the closing
        instruction and the generation header are never touched.
        """
        ids = self._ids(prompt, told)
        limit = self._config.max_reprompt_len
        if len(ids) <= limit:
            return told, ids, 0
        if self._config.reprompt_truncation == "error":
            raise DataError(
                f"prompt {prompt.uid}: the reprompt has {len(ids)} tokens, max_reprompt_len is {limit}; raise the limit"
                " or set actor_rollout_ref.actor.self_distillation.reprompt_truncation=right"
            )
        whole = len(ids)
        if told.feedback is not None:
            shown = told.demonstration
            told = _Told(shown, self._longest(told.feedback, lambda text: self._fits(prompt, _Told(shown, text))))
        if told.demonstration is not None and not self._fits(prompt, told):
            told = _Told(self._longest(told.demonstration, lambda text: self._fits(prompt, _Told(text, None))), None)
        ids = self._ids(prompt, told)
        return None if told.nothing or len(ids) > limit else (told, ids, whole - len(ids))

    def _longest(self, text: str, fits: Callable[[str], bool]) -> str | None:
        """The longest piece of `text` that fits, by bisection over characters; None when none does."""
        left = self._config.reprompt_truncation == "left"

        def piece(length: int) -> str | None:
            cut = text[len(text) - length :] if left else text[:length]
            return cut if cut.strip() else None

        good, too_long = 0, len(text)
        while too_long - good > 1:
            middle = (good + too_long) // 2
            cut = piece(middle)
            if cut is None or fits(cut):
                good = middle
            else:
                too_long = middle
        return piece(good)

    def _fits(self, prompt: Prompt, told: _Told) -> bool:
        return len(self._ids(prompt, told)) <= self._config.max_reprompt_len

    def _ids(self, prompt: Prompt, told: _Told) -> list[int]:
        return self._chat.prompt_ids(self._messages(prompt, told), prompt.tools, prompt.template_kwargs)

    def _messages(self, prompt: Prompt, told: _Told) -> list[dict[str, Any]]:
        last = max((i for i, message in enumerate(prompt.messages) if message["role"] == "user"), default=None)
        if last is None:
            raise DataError(f"prompt {prompt.uid}: no user message to put the reprompt into")
        text = self._templates.user_message(_text_of(prompt.messages[last]), told.demonstration, told.feedback)
        return [{**m, "content": text} if i == last else m for i, m in enumerate(prompt.messages)]


def with_hint(said: tuple[dict[str, Any], ...], hint: str) -> list[dict[str, Any]]:
    """The messages before a turn, the last one told by the user: two in a row from one side many templates refuse."""
    *before, last = said
    if last["role"] != "user":
        return [*said, {"role": "user", "content": hint}]
    return [*before, {**last, "content": f"{_text_of(last)}\n\n{hint}"}]


def _text_of(message: dict[str, Any]) -> str:
    """Content as text; the parts of a list of text parts are joined, as chat templates do."""
    content = message["content"]
    return content if isinstance(content, str) else "".join(part.get("text", "") for part in content)
