"""One rank of a teacher in processes of its own (`ref.placement=remote`). Knows nothing of Ray.

It holds its shards of the teacher's weights, follows the student whose weights arrive by name, and answers what
`teacher.remote.RemoteTeacher` asks. Every forward pass and every average is a collective of the group: all ranks get
equally many of them, whoever asks for what.
"""

from __future__ import annotations

import copy
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import torch

from sdpo.config.schema import Config
from sdpo.kernels.chunk_terms import LogProbs, log_probs_
from sdpo.kernels.lazy_logits import ResponseScores
from sdpo.models.forward import PolicyModule
from sdpo.models.load import load_policy, load_tokenizer
from sdpo.models.shard import DTYPES, shard
from sdpo.teacher.remote import HiddenAnswer, divergence_of, moved, target_of
from sdpo.teacher.teachers import EmaTeacher, build_teacher
from sdpo.tokens.packing import PackedSide
from sdpo.weights import in_process
from sdpo.weights.transport import transport_of
from sdpo.workers.actor_state import TEACHER, read_state, teacher_in, write_state


class TeacherServer:
    def __init__(self, config: Config, rank: int, world_size: int, device: str) -> None:
        self.config, self.rank, self.world_size, self.device = config, rank, world_size, device
        self.divergence, self.target = divergence_of(config), target_of(config)
        settings = config.actor_rollout_ref.actor.self_distillation
        if settings.teacher_regularization == "trust-region":  # its other half is the actor's
            settings = replace(settings, teacher_regularization="frozen")
        dtype = settings.teacher_master_dtype
        initial = self._module("float32")  # also for what rounding cuts off
        self.teacher = build_teacher(settings, initial, lambda: initial if dtype == "float32" else self._module(dtype))
        self.version = 0
        self._held: dict[int, ResponseScores] = {}  # of each asking rank, for its micro-batch

    def _module(self, dtype: str) -> PolicyModule:
        settings = self.config.actor_rollout_ref
        module = PolicyModule(load_policy(self.config, DTYPES[dtype]), len(load_tokenizer(settings.model)))
        fsdp = replace(settings.actor.fsdp_config, fsdp_size=-1)  # over this group's own ranks
        return shard(module, fsdp, self.world_size, self.device)

    def score(self, asking: int, side: PackedSide, head_version: int) -> HiddenAnswer | None:
        """The forward pass. Hidden states go to the asking rank; where it wants log-probs, they stay for its questions.

        head_version: of the head that it holds."""
        self._held.pop(asking, None)
        scores = self.teacher.scores(side.to(self.device))
        assert isinstance(scores, ResponseScores)  # mixtures are the actor's
        if self.target == "log_probs":
            self._held[asking] = scores
            return None
        head = None
        if head_version != self.version:
            head = moved(replace(scores, hidden=scores.hidden[:0]), "cpu")
        return HiddenAnswer(scores.hidden.cpu(), self.version, head)

    def log_probs(self, asking: int, part: slice, sampled: torch.Tensor, student_ids: torch.Tensor | None) -> LogProbs:
        """Of the tokens in `part` of the rank's last forward pass. See `LazyLogProbs`. On the way ids are int32;
        what the asking rank knows already, or does not look at, is left out."""
        ids, own = (None if i is None else i.to(self.device, torch.int64) for i in (sampled, student_ids))
        said = log_probs_(self._held[asking].logits(part), ids, self.divergence, own)
        if self.divergence.mode == "token":
            said = said._replace(ids=None, at_ids=None, others=None)
        else:
            asked = 0 if own is None else own.shape[1]
            said = said._replace(ids=said.ids[:, asked:].to(torch.int32))
        return LogProbs(*(None if tensor is None else tensor.cpu() for tensor in said))

    def follow(self, place: str, number: int) -> None:
        """Averages with the student's weights at `place`, the `number`-th that were sent."""
        assert isinstance(self.teacher, EmaTeacher)
        self.teacher.follow(transport_of(place).receive(place, number))
        self.teacher.synchronize()  # whoever waits for this may take the weights away
        self._changed()

    def _changed(self) -> None:
        self.version += 1
        self._held.clear()

    def save(self, folder: str) -> None:
        """In a folder of its own in that of the actor."""
        write_state({TEACHER: self.teacher.state()}, str(Path(folder) / TEACHER), self.world_size == 1)

    def load(self, folder: str) -> None:
        """What either kind of placement has written."""
        state = {TEACHER: self.teacher.state()}
        read_state(state, teacher_in(folder), self.world_size == 1)
        self.teacher.load_state(state[TEACHER])
        self._changed()


class InlineServers:
    """A group of one, in the actor's process. Answers are copies, as if they had come from elsewhere."""

    def __init__(self, server: TeacherServer) -> None:
        self.server, self._base = server, in_process.new_base()

    def open_transfer(self) -> str:
        return self._base

    def ask(self, method: str, *arguments: Any) -> Callable[[], Any]:
        answer = copy.deepcopy(getattr(self.server, method)(*arguments))
        return lambda: answer

    def tell(self, method: str, *arguments: Any) -> Callable[[], None]:
        return self.ask(method, *arguments)
