"""A teacher in processes of its own, seen from the actor: what it says comes as data.

The loss asks for hidden states, which the actor multiplies with the teacher's head that it holds (the whole vocabulary,
exactly), or for log-probs at a few ids (`target_of`). The student's weights go the other way, in float32.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, fields, replace
from typing import Any, Protocol

import torch
import torch.distributed as dist

from sdpo.algorithms.registry import descriptor_of
from sdpo.config.adapters import MOVING
from sdpo.config.schema import Config
from sdpo.kernels.chunk_terms import LogProbs
from sdpo.kernels.divergence import Divergence
from sdpo.kernels.lazy_logits import ALL, InterpolatedScores, ResponseScores, TeacherScores
from sdpo.kernels.policy import loss_temperature
from sdpo.kernels.support import top_ids
from sdpo.models.forward import PolicyModule
from sdpo.teacher.base import Teacher, score_in_eval_mode
from sdpo.tokens.packing import PackedSide
from sdpo.weights.source import WeightSource
from sdpo.weights.transport import publish, transport_of


class Servers(Protocol):
    """The ranks of the teacher's group (`workers.teacher_server.TeacherServer`), wherever they run.

    Raises ClusterError when one of them has died, and what they raise themselves."""

    def open_transfer(self) -> str:
        """The base, of a transport (`weights.transport`), for the next weights from this rank, the first."""
        ...

    def ask(self, method: str, *arguments: Any) -> Callable[[], Any]:
        """Calls a method of the servers that work for this rank of the actor; the returned function waits for what the
        first of them answers."""
        ...

    def tell(self, method: str, *arguments: Any) -> Callable[[], None]:
        """Calls a method of all servers; the returned function waits for the last."""
        ...


@dataclass
class HiddenAnswer:
    """`version` counts the teacher's averages; its head comes along when the asking rank has that of another."""

    hidden: torch.Tensor  # [N, H], after the final norm
    version: int
    head: ResponseScores | None = None  # without hidden states


def is_remote(config: Config) -> bool:
    return descriptor_of(config).needs_teacher and config.actor_rollout_ref.ref.placement == "remote"


def divergence_of(config: Config) -> Divergence:
    rollout, actor = config.actor_rollout_ref.rollout, config.actor_rollout_ref.actor
    return Divergence.from_config(actor.self_distillation, loss_temperature(rollout.temperature))


def target_of(config: Config) -> str:
    """What the loss needs of a teacher elsewhere: hidden (the logits, also those of a mixture) | log_probs."""
    mixed = config.actor_rollout_ref.actor.self_distillation.teacher_regularization == "trust-region"
    return "hidden" if mixed or divergence_of(config).mode == "full" else "log_probs"


class RemoteTeacher(Teacher):
    """For one rank of the actor."""

    def __init__(
        self, config: Config, student: PolicyModule, servers: Servers, rank: int, world_size: int, device: str
    ) -> None:
        self.student, self.servers, self.device = student, servers, device
        self.rank, self.world_size = rank, world_size
        settings = config.actor_rollout_ref.actor.self_distillation
        self.kind, self.rate = settings.teacher_regularization, settings.teacher_update_rate
        self.divergence, self.target = divergence_of(config), target_of(config)
        self.head: ResponseScores | None = None
        self.head_version = -1
        self.sent = 0  # averages that the teacher was told of
        self.bytes = self.tokens = 0
        self._following: str | None = None  # the student's weights that an average is still at work with
        self._wait: Callable[[], None] | None = None  # for it
        self._answer: _Answer | None = None

    def scores(self, side: PackedSide) -> TeacherScores:
        """Returns at once: the teacher is at work while the student is, and the first use waits."""
        self.synchronize()
        waiting = self.servers.ask("score", self.rank, side.to("cpu"), self.head_version)
        self.tokens += side.selected.shape[0]
        answer = (_Hidden if self.target == "hidden" else _AtIds)(self, waiting, side.selected.shape[0])
        self._answer = answer
        if isinstance(answer, _Hidden) and self.kind == "trust-region":
            return InterpolatedScores(answer, score_in_eval_mode(self.student, side), self.rate)
        return answer

    def release(self) -> None:
        if self._answer is not None:
            self._answer.received = None
            self._answer = None

    def update(self, student: PolicyModule) -> None:
        """The averages run in the teacher's processes, beside weight sync and rollout."""
        if self.kind not in MOVING:
            return
        self.synchronize()
        self.sent += 1
        source = WeightSource(student.lm, torch.float32)  # rounded ones would stall the average at small rates
        base = "" if self.rank else self.servers.open_transfer()
        streams = base and transport_of(base).STREAMS
        if streams:  # they take part in the sending
            self._wait = self.servers.tell("follow", base, self.sent)
        self._following = publish(source, base, self.sent, self.rank)
        if not streams:
            self._wait = None if self.rank else self.servers.tell("follow", self._following, self.sent)

    def synchronize(self) -> None:
        """One rank has told the servers of the average; another's question must not overtake it."""
        if self._following is None:
            return
        if self._wait is not None:
            self._wait()
            transport_of(self._following).forget(self._following)
        self._following = self._wait = None
        if self.world_size > 1:
            dist.barrier()

    def save(self, folder: str) -> None:
        self._tell_all("save", folder)

    def load(self, folder: str) -> None:
        self._tell_all("load", folder)

    def _tell_all(self, method: str, folder: str) -> None:
        self.synchronize()
        if self.rank == 0:
            self.servers.tell(method, folder)()

    def metrics(self) -> dict[str, tuple[float, float]]:
        found = {"sdpo/teacher_bytes_per_token": (float(self.bytes), float(self.tokens))}
        self.bytes = self.tokens = 0
        return found


class _Answer:
    """What came for one micro-batch: there until the loss is known, then let go."""

    def __init__(self, teacher: RemoteTeacher, waiting: Callable[[], Any], tokens: int) -> None:
        self.teacher = teacher
        self._waiting: Callable[[], Any] | None = waiting
        self.vocab_size = teacher.student.vocab_size
        self.received: Any = None
        self.sampled = torch.full((tokens,), torch.nan)

    def wait(self) -> Any:
        """For the forward pass, once: with the call that is waited for the object store's copy is let go, too."""
        assert self._waiting is not None
        answer, self._waiting = self._waiting(), None
        return answer


class _Hidden(_Answer):
    def logits(self, part: slice = ALL, out: torch.Tensor | None = None) -> torch.Tensor:
        """See `LazyLogits`."""
        if self.received is None:
            self.received = self._receive()
        return self.received.logits(part, out)

    def _receive(self) -> ResponseScores:
        answer, teacher = self.wait(), self.teacher
        teacher.bytes += answer.hidden.nbytes
        if answer.head is not None:
            teacher.head, teacher.head_version = moved(answer.head, teacher.device), answer.version
        assert teacher.head is not None  # it comes with the first answer
        return replace(teacher.head, hidden=answer.hidden.to(teacher.device))


class _AtIds(_Answer):
    def at(self, part: slice, ids: torch.Tensor, student_logits: torch.Tensor) -> LogProbs:
        """See `LazyLogProbs`."""
        teacher, spec = self.teacher, self.teacher.divergence
        if self._waiting:
            self.wait()
        asks = spec.mode == "topk" and spec.support != "teacher"
        own = [top_ids(student_logits, min(spec.topk, self.vocab_size))] if asks else []
        asked = [i.to("cpu", torch.int32) for i in (ids, *own)] + [None] * (not asks)
        said = teacher.servers.ask("log_probs", teacher.rank, part, *asked)()
        teacher.bytes += sum(tensor.nbytes for tensor in (*asked, *said) if tensor is not None)
        self.sampled[part] = said.sampled[:, 0]
        if spec.mode == "token":
            said = said._replace(at_ids=said.sampled, others=said.sampled)
            support = ids[:, None]
        else:
            support = torch.cat([*own, said.ids.to(ids)], -1)
        return LogProbs(support, *(tensor.to(student_logits) for tensor in said[1:]))


def moved(scores: ResponseScores, device: torch.device | str) -> ResponseScores:
    values = {field.name: getattr(scores, field.name) for field in fields(scores)}
    return replace(scores, **{k: v.to(device) for k, v in values.items() if isinstance(v, torch.Tensor)})
