"""The records that travel between the parts of the program. Plain data: no tensors, only the standard library.

The life of one problem: a `Prompt` is sampled n times into `Sample`s, each gets a `Grade`; together they are a `Group`.
The reprompt builder turns a group into one `Reprompt` (or None) per sample, the algorithm turns groups into
`TrainRow`s, those become the mini-batches of a `TrainBatch`, the actor answers with a `StepReport`.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from enum import StrEnum
from typing import Any, Literal, NamedTuple

from sdpo.packed import LogProbs, TokenIds

FinishReason = Literal["stop", "length", "abort"]


class GradeStatus(StrEnum):
    """Why a grade is what it is."""

    OK = "ok"
    WRONG = "wrong"
    RUNTIME_ERROR = "runtime_error"
    TIMEOUT = "timeout"
    OUTPUT_LIMIT = "output_limit"
    MEMORY_LIMIT = "memory_limit"
    FORMAT_ERROR = "format_error"
    TRUNCATED = "truncated"
    NO_TESTS = "no_tests"
    INVALID_GOLD = "invalid_gold"
    INFRA_ERROR = "infra_error"


# The grader or the row failed, not the answer: out of rewards, statistics, demonstrations and loss.
UNGRADED = frozenset({GradeStatus.NO_TESTS, GradeStatus.INVALID_GOLD, GradeStatus.INFRA_ERROR})


@dataclass(frozen=True)
class Prompt:
    """One problem.

    Example: Prompt("train-7", ({"role": "user", "content": "2+2?"},), data_source="gsm8k", ground_truth="4")
    """

    uid: str  # unique in its data set; group statistics and demonstrations never cross it
    messages: tuple[dict[str, Any], ...]  # chat messages, last one from the user
    data_source: str  # picks the grader
    ground_truth: Any = None  # what the grader needs: an answer, tests, ...; never shown to the policy
    extra_info: dict[str, Any] = field(default_factory=dict)
    tools: tuple[dict[str, Any], ...] | None = None  # tool schemas for the chat template
    template_kwargs: dict[str, Any] = field(default_factory=dict)  # e.g. {"enable_thinking": False}
    as_text: bool = False  # the row has text where others have messages: reward functions of TRL's signature get text
    feedback: str = ""  # of the row: what the teacher is told about every failure, beside what the grader says
    solution: str = ""  # of the row: the teacher's demonstration where no sibling has one


@dataclass(frozen=True)
class TestOutcome:
    """One test of one program. `hidden` tests never appear in feedback when `grading.public_only` is on."""

    __test__ = False  # not a pytest class

    status: GradeStatus
    input: str = ""
    expected: str = ""
    got: str = ""
    error: str = ""  # own frames of the traceback, with source lines
    seconds: float = 0.0
    hidden: bool = False


@dataclass(frozen=True)
class Grade:
    """The verdict on one response.

    Example: Grade(GradeStatus.WRONG, reward=0.0, passed_fraction=0.5, feedback="Wrong answer\\nInput: f(2)\\n...")
    """

    status: GradeStatus
    reward: float | None  # None exactly when the status is in UNGRADED
    passed_fraction: float = 0.0  # reported beside the reward, never instead of it
    feedback: str = ""  # text for the teacher; "" when there is nothing to say
    tests: tuple[TestOutcome, ...] = ()
    seconds: float = 0.0
    flags: tuple[str, ...] = ()  # e.g. "integrity: weak", "unsafe sandbox"
    extra: dict[str, Any] = field(default_factory=dict)  # what else a custom grader says; numbers are logged as means

    @property
    def graded(self) -> bool:
        return self.status not in UNGRADED


Span = tuple[int, int]  # half-open range of a sequence of token ids


@dataclass
class Turn:
    """One answer of the policy in an episode of several."""

    sequence: int  # which of the sample's token sequences it is in
    span: Span  # where
    text: str
    finish_reason: FinishReason
    said: tuple[dict[str, Any], ...] | None = None  # the messages since the turn before; None: nobody knows
    feedback: str = ""  # of the environment: what the teacher is told just before this turn

    @property
    def truncated(self) -> bool:
        return self.finish_reason == "length"


@dataclass
class Sample:
    """One response to one prompt, or one episode. `sampler_logprobs[t]` belongs to `response_ids[t]` (natural log, at
    the rollout temperature, from the inference engine)."""

    prompt_uid: str
    index: int  # position in its group, from 0
    prompt_ids: Sequence[int]
    response_ids: Sequence[int]  # with the end-of-sequence id when the model wrote one; of all turns, and nothing else
    response_text: str  # decoded, behind the mark of reasoning that the prompt left open; of an episode: the answer
    finish_reason: FinishReason
    policy_version: int  # number of optimizer steps behind the weights that sampled it
    sampler_logprobs: Sequence[float] | None = None
    grade: Grade | None = None
    turns: list[Turn] = field(default_factory=list)  # of an episode of several; empty: the response follows the prompt
    sequences: Sequence[Sequence[int]] = ()  # its tokens as the engine saw them; more than one: forks
    staleness: int = 0  # rollout batches that the actor has learned from since it was drawn
    kl: float = 0.0  # nats over its tokens, estimated, of the policy against the reference; 0: not asked for

    def __post_init__(self) -> None:
        self.prompt_ids, self.response_ids = TokenIds.of(self.prompt_ids), TokenIds.of(self.response_ids)
        self.sampler_logprobs = None if self.sampler_logprobs is None else LogProbs.of(self.sampler_logprobs)
        self.sequences = [TokenIds.of(ids) for ids in self.sequences]

    @property
    def truncated(self) -> bool:
        return self.finish_reason == "length"

    @property
    def reward(self) -> float | None:
        """None when it could not be graded, or nobody tried."""
        return self.grade.reward if self.grade is not None and self.grade.graded else None


@dataclass
class Group:
    """All samples of one prompt in one step."""

    prompt: Prompt
    samples: list[Sample]
    reprompts: Reprompts | None = None  # where the rollout has made them already


@dataclass(frozen=True)
class Reprompt:
    """What the teacher is shown for one sample.

    Example: with a sibling's solution and no feedback,
    Reprompt([1, 512, ...], "<user>2+2?\\nCorrect solution:\\n\\n4 ...", demonstration_index=3, used_feedback=False)
    """

    prompt_ids: Sequence[int]  # ends with the generation header; the student's ids follow verbatim. [] : only `turns`
    text: str  # the same, decoded for people
    demonstration_index: int | None  # index of the sibling in the group
    used_feedback: bool
    trimmed_tokens: int = 0  # cut from feedback and demonstration to fit `max_reprompt_len`
    turns: dict[int, Sequence[int]] = field(default_factory=dict)  # turn with a hint of its own -> all that precedes it
    stored_solution: bool = False  # the demonstration is the row's own

    def __post_init__(self) -> None:
        object.__setattr__(self, "prompt_ids", TokenIds.of(self.prompt_ids))
        object.__setattr__(self, "turns", {turn: TokenIds.of(ids) for turn, ids in self.turns.items()})

    @property
    def demonstrates(self) -> bool:
        return self.stored_solution or self.demonstration_index is not None


# Of a group: one per sample (None: no signal), and counts for the metrics.
Reprompts = tuple[list[Reprompt | None], dict[str, float]]


class MicroBatchShare(NamedTuple):
    """Of the reference's micro-batch that a row would be in, for `loss_normalization=micro_batch`."""

    tokens: int  # distilled tokens of its rows with a signal
    sequences: int  # rows with a signal
    share: float  # of the step's responses, those without a signal too


RowKey = tuple[str, int]  # prompt uid, index in the group: names the sample, also when it became several rows


@dataclass(frozen=True)
class PolicyGradient:
    """A row's policy tokens are pushed up or down by their advantage. One number for all of them, or one per token."""

    advantage: float | Sequence[float]
    weight: float | Sequence[float] = 1.0


@dataclass(frozen=True)
class Distillation:
    """The tokens of `span` are pulled toward what a teacher that has read `context_ids` would say in their place.

    The span lies inside one of the row's; the teacher's context takes the place of everything before it.
    """

    span: Span
    context_ids: Sequence[int]  # ends where the span begins: with the generation header, or inside a turn
    weight: float | Sequence[float] = 1.0  # one number for the span, or one per token

    def __post_init__(self) -> None:
        object.__setattr__(self, "context_ids", TokenIds.of(self.context_ids))


@dataclass(frozen=True)
class CrossEntropy:
    """The row's policy tokens are learned as they are: an expert's, or text to be predicted."""

    weight: float | Sequence[float] = 1.0


@dataclass
class TrainRow:
    """A token sequence as the engine saw it, and which parts of the loss it carries. Rows without any are never made.

    Example, a prompt [1, 2] answered by [7, 8]: TrainRow("p", 0, [1, 2, 7, 8], ((2, 4),), policy_gradient=...). With a
    tool result [5] in between two turns of the policy, [7] and [8]: token_ids [1, 2, 7, 5, 8], spans ((2, 3), (4, 5)).
    """

    prompt_uid: str
    sample_index: int
    token_ids: Sequence[int]  # prompt, responses and tool results in order; never rendered again
    spans: tuple[Span, ...]  # what the policy wrote, in order; never empty, never at 0: something must predict it
    sampler_logprobs: Sequence[float] | None = None  # of the policy's tokens, in order
    policy_gradient: PolicyGradient | None = None
    distillation: tuple[Distillation, ...] = ()
    cross_entropy: CrossEntropy | None = None
    micro_batch: MicroBatchShare | None = None  # None: denominators are the step's
    sequence: int | None = None  # a number that the rows of one sample share; None: it has no other row

    def __post_init__(self) -> None:
        self.token_ids = TokenIds.of(self.token_ids)
        self.sampler_logprobs = None if self.sampler_logprobs is None else LogProbs.of(self.sampler_logprobs)

    @classmethod
    def single_turn(
        cls,
        prompt_uid: str,
        sample_index: int,
        prompt_ids: Sequence[int],
        response_ids: Sequence[int],
        teacher_prompt_ids: Sequence[int] | None = None,
        **fields: Any,
    ) -> TrainRow:
        """One prompt, one response. With `teacher_prompt_ids` the whole response is distilled."""
        token_ids = TokenIds(prompt_ids)
        token_ids.extend(TokenIds.of(response_ids))
        response = (len(prompt_ids), len(token_ids))
        if teacher_prompt_ids is not None:
            fields["distillation"] = (Distillation(response, teacher_prompt_ids),)
        return cls(prompt_uid, sample_index, token_ids, (response,), **fields)

    @property
    def key(self) -> RowKey:
        return self.prompt_uid, self.sample_index

    @property
    def policy_ids(self) -> TokenIds:
        """What the policy wrote, flat."""
        flat = TokenIds()
        for start, stop in self.spans:
            flat.extend(self.token_ids[start:stop])
        return flat

    def places_of(self, span: Span) -> range:
        """Where the tokens of a span are in `policy_ids`. ValueError for one that the policy did not write."""
        before = 0
        for start, stop in self.spans:
            if start <= span[0] < span[1] <= stop:
                return range(before + span[0] - start, before + span[1] - start)
            before += stop - start
        raise ValueError(f"sample {self.prompt_uid}/{self.sample_index}: span {span} is in none of {self.spans}")

    def tokens_of(self, component: str) -> int:
        """Tokens that a component of the loss is about; 0: the row does not carry it."""
        if component == "distillation":
            return sum(stop - start for start, stop in (part.span for part in self.distillation))
        carried = component == "all" or getattr(self, component) is not None
        return sum(stop - start for start, stop in self.spans) if carried else 0


# Of the loss; each has its own denominators. "all" is every policy token of every row.
COMPONENTS = ("policy_gradient", "distillation", "cross_entropy")


@dataclass(frozen=True)
class Denominators:
    """Of one component in one optimizer step, over all ranks and micro-batches.

    A sample is one sequence, however many rows it became; `lengths` says how many tokens those have, by number."""

    component: str  # the one whose tokens were counted, or "all"
    tokens: int  # of `token-mean`
    sequences: int  # of the `seq-mean-*` modes
    lengths: dict[int, int] = field(default_factory=dict)


@dataclass
class MiniBatch:
    """The rows of one optimizer step, over all ranks."""

    rows: list[TrainRow]

    def denominators(self, together: bool = False) -> dict[str, Denominators]:
        """By component, and of "all". They make the loss independent of how rows are split into micro-batches and
        ranks (algorithm page, "From tokens to the loss"). together: every component divides by those of all."""
        own = {component: self._denominators(component) for component in (*COMPONENTS, "all")}
        return dict.fromkeys(own, own["all"]) if together else own

    def _denominators(self, component: str) -> Denominators:
        lengths: dict[int, int] = {}
        tokens = alone = 0
        for row in self.rows:
            count = row.tokens_of(component)
            tokens += count
            if row.sequence is None:
                alone += bool(count)
            elif count:
                lengths[row.sequence] = lengths.get(row.sequence, 0) + count
        return Denominators(component, tokens, alone + len(lengths), lengths)


@dataclass
class RoutedRows:
    """What an algorithm makes of a rollout batch: which samples are trained on, with which components."""

    rows: list[list[TrainRow]]  # one list per group, in the order of the groups; empty: nothing to learn from it
    metrics: dict[str, float] = field(default_factory=dict)
    reprompts: dict[RowKey, Reprompt] = field(default_factory=dict)  # for the log


@dataclass
class TrainBatch:
    """What one rollout batch becomes. An empty mini-batch is dropped and counted in `metrics`."""

    mini_batches: list[MiniBatch]
    metrics: dict[str, float] = field(default_factory=dict)
    reprompts: dict[RowKey, Reprompt] = field(default_factory=dict)  # for the log


@dataclass
class StepReport:
    """What the actor says after an update. `metrics` are already reduced over micro-batches, mini-batches and ranks."""

    policy_version: int
    optimizer_steps: int
    skipped_steps: int  # non-finite gradient: neither student nor teacher moved
    metrics: dict[str, float] = field(default_factory=dict)
    tokens: list[dict[str, Any]] = field(default_factory=list)  # lines of tokens.jsonl, without their step
