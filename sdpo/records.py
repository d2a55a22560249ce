"""The records that travel between the parts of the program. Plain data: no tensors, only the standard library.

The life of one problem: a `Prompt` is sampled n times into `Sample`s, each gets a `Grade`; together they are a `Group`.
The reprompt builder turns a group into one `Reprompt` (or None) per sample, the algorithm turns groups into a
`TrainBatch`, the actor answers with a `StepReport`.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from enum import StrEnum
from typing import Any, Literal, NamedTuple

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

    @property
    def graded(self) -> bool:
        return self.status not in UNGRADED


@dataclass
class Sample:
    """One response to one prompt. `sampler_logprobs[t]` belongs to `response_ids[t]` (natural log, at the rollout
    temperature, from the inference engine)."""

    prompt_uid: str
    index: int  # position in its group, from 0
    prompt_ids: list[int]
    response_ids: list[int]  # with the end-of-sequence id when the model wrote one
    response_text: str  # decoded, behind the mark of reasoning that the prompt left open (sdpo.tokens.response)
    finish_reason: FinishReason
    policy_version: int  # number of optimizer steps behind the weights that sampled it
    sampler_logprobs: list[float] | None = None
    grade: Grade | None = None

    @property
    def truncated(self) -> bool:
        return self.finish_reason == "length"


@dataclass
class Group:
    """All samples of one prompt in one step."""

    prompt: Prompt
    samples: list[Sample]


@dataclass(frozen=True)
class Reprompt:
    """What the teacher is shown for one sample.

    Example: with a sibling's solution and no feedback,
    Reprompt([1, 512, ...], "<user>2+2?\\nCorrect solution:\\n\\n4 ...", demonstration_index=3, used_feedback=False)
    """

    prompt_ids: list[int]  # ends with the generation header; the student's response ids follow verbatim
    text: str  # the same, decoded for people
    demonstration_index: int | None  # index of the sibling in the group
    used_feedback: bool
    trimmed_tokens: int = 0  # cut from feedback and demonstration to fit `max_reprompt_len`


class MicroBatchShare(NamedTuple):
    """Of the reference's micro-batch that a row would be in, for `loss_normalization=micro_batch`."""

    tokens: int  # response tokens of its rows with a signal
    sequences: int  # rows with a signal
    share: float  # of the step's responses, those without a signal too


@dataclass
class TrainRow:
    """One response as the actor trains on it. Rows without any signal are never made."""

    prompt_uid: str
    sample_index: int
    prompt_ids: list[int]
    response_ids: list[int]
    teacher_prompt_ids: list[int] | None = None  # None: no distillation target, no teacher forward
    advantage: float | None = None  # None: no policy-gradient term
    weight: float = 1.0  # multiplies the row's token losses
    sampler_logprobs: list[float] | None = None
    micro_batch: MicroBatchShare | None = None  # None: denominators are the step's


@dataclass
class MiniBatch:
    """The rows of one optimizer step, over all ranks, with the denominators that make the loss independent of how they
    are split into micro-batches and ranks (algorithm page, "Aggregation")."""

    rows: list[TrainRow]

    @property
    def tokens(self) -> int:
        """Response tokens of all rows: the denominator of `token-mean`."""
        return sum(len(row.response_ids) for row in self.rows)

    @property
    def sequences(self) -> int:
        """Rows: the denominator of the `seq-mean-*` modes."""
        return len(self.rows)


@dataclass
class TrainBatch:
    """What one rollout batch becomes. An empty mini-batch is dropped and counted in `metrics`."""

    mini_batches: list[MiniBatch]
    metrics: dict[str, float] = field(default_factory=dict)
    reprompts: dict[tuple[str, int], Reprompt] = field(
        default_factory=dict
    )  # by (prompt uid, sample index), for the log


@dataclass
class StepReport:
    """What the actor says after an update. `metrics` are already reduced over micro-batches, mini-batches and ranks."""

    policy_version: int
    optimizer_steps: int
    skipped_steps: int  # non-finite gradient: neither student nor teacher moved
    metrics: dict[str, float] = field(default_factory=dict)
    tokens: list[dict[str, Any]] = field(default_factory=list)  # lines of tokens.jsonl, without their step
