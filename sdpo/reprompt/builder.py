"""A graded group to one teacher prompt per sample."""

from __future__ import annotations

import random
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

from sdpo.config.schema import SelfDistillationConfig
from sdpo.errors import ConfigError, DataError, problem
from sdpo.packed import TokenIds
from sdpo.records import Group, Prompt, Reprompt, Reprompts, Sample
from sdpo.reprompt.demonstrations import CHOICES, demonstration_text, route, stored_solution
from sdpo.reprompt.feedback import feedback_for
from sdpo.reprompt.templates import Templates
from sdpo.tokens.chat import ChatRenderer, Part

TRUNCATIONS = ("right", "left", "error")
COUNTS = ("samples", "demonstrations", "feedback", "both", "none", "ungraded", "trimmed", "masked_overlong")


@dataclass(frozen=True)
class _Told:
    """What one sample's teacher is told beside the problem."""

    demonstration: str | None = None
    feedback: str | None = None

    @property
    def nothing(self) -> bool:
        return self.demonstration is None and self.feedback is None


@dataclass(frozen=True)
class _Fitted:
    """A prompt for the teacher that is not too long."""

    told: _Told  # what is left of it
    ids: TokenIds
    text: str
    trimmed: int  # tokens that were cut


@dataclass
class _Work:
    """One group: its samples are told much of the same, which is rendered and encoded once."""

    prompt: Prompt
    shared: list[str]  # the problem and all demonstrations
    fitted: dict[_Told, _Fitted | None] = field(default_factory=dict)  # None: nothing told fits
    cut: dict[str, str | None] = field(default_factory=dict)  # demonstration -> what fits of it, without feedback
    known: dict[Part, TokenIds] = field(default_factory=dict)


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

    def build(self, group: Group, step: int = 0) -> Reprompts:
        """One reprompt per sample, in the order of `group.samples`; None where there is no signal.

        Counts, in samples: `demonstrations` and `feedback` (used), `both`, `none` (graded, nothing to tell), `ungraded`
        (the grader failed), `trimmed` (cut to fit), `masked_overlong` (nothing to tell fits), `samples`. `step` seeds
        the random choice of demonstrations.
        """
        rng = random.Random(f"{self._seed}:{step}:{group.prompt.uid}")
        sources = route(group, self._config, rng) if self._demonstrations else [None] * len(group.samples)
        counts = dict.fromkeys(COUNTS, 0.0)
        counts["samples"] = float(len(group.samples))
        told = [self._told(group, *pair) for pair in zip(group.samples, sources, strict=True)]
        problem_texts = [_text_of(message) for message in group.prompt.messages if message["role"] == "user"]
        solutions = dict.fromkeys(about.demonstration for about in told if about.demonstration is not None)
        work = _Work(group.prompt, [*problem_texts, *solutions])
        self._fit(work, told)
        reprompts: list[Reprompt | None] = []
        for sample, source, about in zip(group.samples, sources, told, strict=True):
            sibling = None if source is None else group.samples[source]
            reprompt = self._build_one(work, sample, sibling, about, counts)
            reprompts.append(reprompt)
            if reprompt is not None:
                shown = reprompt.demonstrates
                counts["demonstrations"] += shown
                counts["feedback"] += reprompt.used_feedback
                counts["both"] += shown and reprompt.used_feedback
                counts["trimmed"] += reprompt.trimmed_tokens > 0
        return reprompts, counts

    def _told(self, group: Group, sample: Sample, source: int | None) -> _Told:
        if sample.grade is None or not sample.grade.graded:
            return _Told()
        demonstration = None if source is None else demonstration_text(group.samples[source], self._config)
        if source is None and self._demonstrations:
            demonstration = stored_solution(group.prompt, self._config)
        feedback = feedback_for(sample, demonstration is not None, self._config, group.prompt.feedback)
        return _Told(demonstration, feedback)

    def _build_one(
        self, work: _Work, sample: Sample, sibling: Sample | None, told: _Told, counts: dict[str, float]
    ) -> Reprompt | None:
        if sample.grade is None or not sample.grade.graded:
            counts["ungraded"] += 1
            return None
        hinted = [at for at, turn in enumerate(sample.turns) if turn.feedback.strip()]
        if not self._config.include_environment_feedback:
            hinted = []
        if told.nothing and not hinted:
            counts["none"] += 1
            return None
        found = ((at, self._before_turn(work, sample, at)) for at in hinted)
        turns = {at: context for at, context in found if context is not None}
        fitted = work.fitted.get(told)
        if fitted is None and not turns:
            counts["masked_overlong"] += 1
            return None
        fitted = fitted or _Fitted(_Told(), TokenIds(), "", 0)
        hints = [self._chat.decode(context, skip_special_tokens=False) for context in turns.values()]
        return Reprompt(
            prompt_ids=fitted.ids,
            text="\n\n".join([fitted.text, *hints] if fitted.ids else hints),
            demonstration_index=None if sibling is None or fitted.told.demonstration is None else sibling.index,
            used_feedback=fitted.told.feedback is not None or bool(turns),
            stored_solution=sibling is None and fitted.told.demonstration is not None,
            trimmed_tokens=fitted.trimmed,
            turns=turns,
        )

    def _before_turn(self, work: _Work, sample: Sample, at: int) -> Sequence[int] | None:
        """What the teacher reads before a turn that has feedback of its own: history as it was, then, in or behind the
        last message, the hint. None when nothing of it fits."""
        prompt, turn = work.prompt, sample.turns[at]
        said = turn.said
        if said is None:
            return None
        if not said:
            fitted = self._fit(work, [_Told(None, turn.feedback)])[0]
            return None if fitted is None else fitted.ids
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

    def _fit(self, work: _Work, told: Sequence[_Told]) -> list[_Fitted | None]:
        """Each trimmed to `max_reprompt_len`; None when nothing of it fits, or there is nothing to tell."""
        new = [about for about in dict.fromkeys(told) if about not in work.fitted and not about.nothing]
        for whole in self._written(work, new):
            if len(whole.ids) <= self._config.max_reprompt_len:
                work.fitted[whole.told] = whole
            else:
                work.fitted[whole.told] = self._trimmed(work, whole)
        return [work.fitted.get(about) for about in told]

    def _trimmed(self, work: _Work, whole: _Fitted) -> _Fitted | None:
        """Only what is told is cut, the feedback first, each down to nothing if need be; the problem, the closing
        instruction and the generation header are never touched."""
        told, limit = whole.told, self._config.max_reprompt_len
        if self._config.reprompt_truncation == "error":
            raise DataError(
                f"prompt {work.prompt.uid}: the reprompt has {len(whole.ids)} tokens, max_reprompt_len is {limit}; "
                "raise the limit or set actor_rollout_ref.actor.self_distillation.reprompt_truncation=right"
            )
        shown = told.demonstration
        if told.feedback is not None:
            told = _Told(shown, self._longest(told.feedback, lambda text: self._fits(work, _Told(shown, text))))
        if shown is not None and not self._fits(work, told):
            if shown not in work.cut:
                work.cut[shown] = self._longest(shown, lambda text: self._fits(work, _Told(text)))
            told = _Told(work.cut[shown])
        left = self._written(work, [told])[0]
        trimmed = len(whole.ids) - len(left.ids)
        return None if told.nothing or len(left.ids) > limit else replace(left, trimmed=trimmed)

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

    def _fits(self, work: _Work, told: _Told) -> bool:
        return len(self._written(work, [told])[0].ids) <= self._config.max_reprompt_len

    def _written(self, work: _Work, told: Sequence[_Told]) -> list[_Fitted]:
        """Rendered and encoded, however long."""
        prompt = work.prompt
        options = prompt.tools, prompt.template_kwargs
        rendered = [self._chat.render(self._messages(prompt, about), *options) for about in told]
        ids = self._chat.encode(rendered, work.shared, work.known)
        return [_Fitted(*parts, trimmed=0) for parts in zip(told, ids, (r.text for r in rendered), strict=True)]

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
