"""The teachers of `teacher_regularization` that live beside the student (algorithm page, "The teacher")."""

from __future__ import annotations

from collections.abc import Callable, Iterable

import torch
from torch.distributed.checkpoint.state_dict import get_model_state_dict, set_model_state_dict

from sdpo.config.adapters import MOVING
from sdpo.config.schema import SelfDistillationConfig
from sdpo.kernels.lazy_logits import InterpolatedScores, LazyLogits, ResponseScores
from sdpo.models.forward import PolicyModule
from sdpo.models.shard import local, part_of, reshard
from sdpo.offload.side_stream import SideStream
from sdpo.teacher.base import Teacher, score_in_eval_mode
from sdpo.tokens.packing import PackedSide
from sdpo.weights.source import Group
from sdpo.weights.target import by_own_name

LOW_BITS = 16  # of a float32, below those that it has in common with a bfloat16


class FrozenTeacher(Teacher):
    """The initial weights, for ever."""

    module: PolicyModule

    def __init__(self, module: PolicyModule) -> None:
        self.module = module.requires_grad_(False).eval()

    def scores(self, side: PackedSide) -> LazyLogits:
        return score_in_eval_mode(self.module, side)

    def release(self) -> None:
        if self.module.in_file:
            self.module.in_file.give_back(self.module.parameters())

    def state(self) -> dict[str, torch.Tensor]:
        state = get_model_state_dict(self.module)
        return {name: value.float() if value.is_floating_point() else value for name, value in state.items()}

    def load_state(self, state: dict[str, torch.Tensor]) -> None:
        set_model_state_dict(self.module, state)


class EmaTeacher(FrozenTeacher):
    """theta' <- (1 - rate) theta' + rate theta at each update; theta' starts as `student`.

    A module in bfloat16 has an int16 number for each weight, what rounding has cut off of a float32's bits: the average
    is that of float32, where bfloat16 alone would not move at all for small steps.
    """

    def __init__(self, module: PolicyModule, rate: float, student: PolicyModule) -> None:
        super().__init__(module)
        self.rate = rate
        self.stream = SideStream(next(module.parameters()).device)
        rounded = {p: torch.zeros_like(p, dtype=torch.int16) for p in module.parameters() if p.dtype != torch.float32}
        named = module.named_parameters(remove_duplicate=False)  # a tied weight has two names and one remainder
        self.remainders = {name: rounded[p] for name, p in named if p in rounded}
        if self.remainders:
            self._average(student, 1.0)

    def scores(self, side: PackedSide) -> LazyLogits:
        self.synchronize()
        return super().scores(side)

    def update(self, student: PolicyModule) -> None:
        reshard(self.module)
        with self.stream.run():
            self._average(student, self.rate)

    def follow(self, groups: Iterable[Group]) -> None:
        """As `update`, with a student that is elsewhere: its whole float32 weights as they arrive."""
        reshard(self.module)
        own = dict(self.module.lm.named_parameters(remove_duplicate=False))
        with self.stream.run():
            for group in by_own_name(self.module.lm, groups):
                for name in group.keys() & own.keys():
                    self._move(f"lm.{name}", local(own[name]), part_of(group[name], own[name]), self.rate)

    def synchronize(self) -> None:
        self.stream.join()

    @torch.no_grad()
    def _average(self, student: PolicyModule, rate: float) -> None:
        theirs = dict(student.named_parameters())
        pairs = [(name, local(p), local(theirs[name])) for name, p in self.module.named_parameters()]
        here = not self.module.in_file and all(m.device == t.device for _, m, t in pairs)
        if here and not self.remainders:
            torch._foreach_lerp_([m for _, m, _ in pairs], [t.to(m.dtype) for _, m, t in pairs], rate)
            return
        for name, m, t in pairs:  # a tensor at a time, or all would be here, or in float32, together
            self._move(name, m, t, rate)

    @torch.no_grad()
    def _move(self, name: str, mine: torch.Tensor, theirs: torch.Tensor, rate: float) -> None:
        theirs = theirs.to(mine.device, torch.float32)
        if name in self.remainders:
            rest = local(self.remainders[name])
            _split_(_joined(mine, rest).lerp_(theirs, rate), mine, rest)
        else:
            mine.lerp_(theirs, rate)
        if self.module.in_file:
            self.module.in_file.give_back([mine])

    def state(self) -> dict[str, torch.Tensor]:
        self.synchronize()
        state = super().state()
        for name in self.remainders.keys() & state.keys():  # in float32 these are no longer the module's own tensors
            local(state[name]).copy_(_joined(*map(local, (self.module.get_parameter(name), self.remainders[name]))))
        return state

    @torch.no_grad()
    def load_state(self, state: dict[str, torch.Tensor]) -> None:
        self.synchronize()
        super().load_state(state)
        for name, value in state.items():
            if name in self.remainders:
                _split_(local(value), local(self.module.get_parameter(name)), local(self.remainders[name]))


def _joined(weight: torch.Tensor, rest: torch.Tensor) -> torch.Tensor:
    """The float32 number whose bits are those of the bfloat16 `weight` plus `rest`."""
    return (weight.view(torch.int16).int() << LOW_BITS).add_(rest).view(torch.float32)


def _split_(exact: torch.Tensor, weight: torch.Tensor, rest: torch.Tensor) -> None:
    """Sets `weight` to a float32 tensor, rounded, and `rest` so that `_joined` gives it back. (The number just below it
    where it lies in the middle between two weights and the smaller was taken: 2**15 is no int16.)"""
    weight.copy_(exact)
    high = weight.view(torch.int16).int() << LOW_BITS
    rest.copy_(torch.sub(exact.view(torch.int32), high, out=high).clamp_(max=2**15 - 1))


class LiveTeacher(Teacher):
    """The student's current weights: no lag at all. The paper reports divergence with it."""

    def __init__(self, student: PolicyModule) -> None:
        self.student = student

    def scores(self, side: PackedSide) -> ResponseScores:
        return score_in_eval_mode(self.student, side)


class TrustRegionTeacher(FrozenTeacher):
    """softmax(lerp(reference logits, student logits, rate)): both see the reprompt, neither gets a gradient."""

    def __init__(self, module: PolicyModule, student: PolicyModule, rate: float) -> None:
        super().__init__(module)
        self.student = student
        self.rate = rate

    def scores(self, side: PackedSide) -> LazyLogits:
        reference = score_in_eval_mode(self.module, side)
        return InterpolatedScores(reference, score_in_eval_mode(self.student, side), self.rate)


def build_reference(teacher: Teacher | None, copy: Callable[[], PolicyModule]) -> FrozenTeacher:
    """The policy that the run started from; a teacher that holds those weights lends them."""
    if isinstance(teacher, FrozenTeacher) and not isinstance(teacher, EmaTeacher):
        return FrozenTeacher(teacher.module)
    return FrozenTeacher(copy())


def build_teacher(config: SelfDistillationConfig, student: PolicyModule, copy: Callable[[], PolicyModule]) -> Teacher:
    """The teacher that the configuration names. `copy()` makes a second module with the initial weights; only the
    kinds that hold weights of their own call it."""
    kind, rate = config.teacher_regularization, config.teacher_update_rate
    if kind in MOVING:
        return EmaTeacher(copy(), rate if kind == "ema" else 1.0, student)
    if kind == "frozen":
        return FrozenTeacher(copy())
    if kind == "trust-region":
        return TrustRegionTeacher(copy(), student, rate)
    return LiveTeacher(student)
