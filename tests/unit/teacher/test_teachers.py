"""Teachers: rate and direction of the average, no gradients, no shared mode (numbers derived by hand)."""

from __future__ import annotations

import pytest
import torch
from transformers import LlamaConfig, LlamaForCausalLM

from sdpo.config.schema import SelfDistillationConfig
from sdpo.models.forward import PolicyModule
from sdpo.teacher.teachers import (
    EmaTeacher,
    FrozenTeacher,
    LiveTeacher,
    TrustRegionTeacher,
    _joined,
    _split_,
    build_teacher,
)
from sdpo.tokens.packing import pack_responses


def _module(seed: int = 0, dropout: float = 0.0) -> PolicyModule:
    torch.manual_seed(seed)
    config = LlamaConfig(
        vocab_size=11,
        hidden_size=16,
        intermediate_size=32,
        num_hidden_layers=2,
        num_attention_heads=2,
        num_key_value_heads=2,
        attention_dropout=dropout,
    )
    return PolicyModule(LlamaForCausalLM(config).train(), vocab_size=11)


def _constant(module: PolicyModule, value: float) -> PolicyModule:
    with torch.no_grad():
        for p in module.parameters():
            p.fill_(value)
    return module


SIDE = pack_responses([[1, 2, 3], [4]], [[5, 6], [7]])
OTHER = pack_responses([[9, 9, 1, 2, 3], [8, 4]], [[5, 6], [7]])


@pytest.mark.parametrize(("updates", "expected"), [(1, 0.05), (10, 0.401263)])
def test_ema_moves_by_the_rate_towards_the_student(updates, expected):
    student = _constant(_module(), 1.0)
    teacher = EmaTeacher(_constant(_module(), 0.0), 0.05, student)
    for _ in range(updates):
        teacher.update(student)
    for p in teacher.module.parameters():
        torch.testing.assert_close(p, torch.full_like(p, expected), atol=1e-6, rtol=0)


def test_a_small_rate_is_not_lost_beside_a_bfloat16_student():
    """In bfloat16 the teacher would stand still: 0.05 * 0.01 is less than half a unit in the last place of 1."""
    near = 1.0078125  # the next number after 1 in bfloat16
    stuck = torch.ones((), dtype=torch.bfloat16).lerp_(torch.tensor(near, dtype=torch.bfloat16), 0.05)
    assert stuck == 1.0
    student = _constant(_module(), near).to(torch.bfloat16)
    teacher = EmaTeacher(_constant(_module(), 1.0), 0.05, student)
    for _ in range(20):
        teacher.update(student)
    for p in teacher.module.parameters():
        assert p.dtype == torch.float32
        torch.testing.assert_close(p, torch.full_like(p, near + 0.95**20 * (1 - near)), atol=1e-6, rtol=0)


class _Pair(torch.nn.Module):
    """Two weights of one shape, in the order of their names."""

    in_file = None

    def __init__(self, **values: float) -> None:
        super().__init__()
        for name, value in values.items():
            setattr(self, name, torch.nn.Parameter(torch.full((3,), value)))


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_the_average_pairs_weights_by_name_whatever_their_order(dtype):
    student = _Pair(first=1.0, second=-1.0)
    teacher = EmaTeacher(_Pair(second=0.0, first=0.0).to(dtype), 0.5, _Pair(first=0.0, second=0.0))
    teacher.update(student)
    assert teacher.module.first.tolist() == [0.5] * 3 and teacher.module.second.tolist() == [-0.5] * 3


def _bfloat16(module: PolicyModule) -> PolicyModule:
    for p in module.parameters():
        p.data = p.data.bfloat16()
    return module


def test_a_bfloat16_teacher_remembers_what_its_rounding_cuts_off():
    student = _module(1)
    exact, kept = EmaTeacher(_module(1), 0.01, student), EmaTeacher(_bfloat16(_module(1)), 0.01, student)
    forgetful = [p.bfloat16() for p in student.parameters()]
    start = [p.clone() for p in student.parameters()]
    smallest = {name: p.abs() * 2**-22 for name, p in student.named_parameters()}  # two units in the last place
    for _ in range(200):
        with torch.no_grad():
            for p in student.parameters():
                p.mul_(1.0 + 1e-4)
        exact.update(student)
        kept.update(student)
        torch._foreach_lerp_(forgetful, [p.detach().bfloat16() for p in student.parameters()], 0.01)
    wanted, found, names = exact.state(), kept.state(), dict(exact.module.named_parameters())
    assert all(p.dtype == torch.bfloat16 for p in kept.module.parameters())
    for (name, p), first, lost in zip(names.items(), start, forgetful, strict=True):
        moved = (p - first).norm()
        assert moved > 5e-3 * first.norm()
        assert ((found[name] - wanted[name]).abs() <= smallest[name]).all()
        assert torch.equal(kept.module.get_parameter(name), found[name].bfloat16())
        assert (lost - wanted[name]).norm() > 0.2 * moved


@pytest.mark.parametrize("rate", [0.05, 1e-2, 1e-3, 1e-4])
@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
def test_no_rate_that_is_allowed_sticks_over_3000_steps(rate, dtype):
    near = 1.0078125  # the next number after 1 in bfloat16
    student = torch.nn.Linear(3, 3)
    module = torch.nn.Linear(3, 3, dtype=getattr(torch, dtype))
    for made, value in ((student, near), (module, 1.0)):
        _constant(made, value).in_file = None
    teacher = EmaTeacher(module, rate, _constant(torch.nn.Linear(3, 3), 1.0))
    for _ in range(3000):
        teacher._average(student, rate)
    moved = (near - 1) * (1 - (1 - rate) ** 3000)  # 0.00742 at 1e-3
    for value in teacher.state().values():
        assert ((value - 1).double() / moved - 1).abs().max() < 0.02


def test_the_two_halves_of_a_float32_number_give_it_back():
    numbers = torch.randn(10_000, generator=torch.Generator().manual_seed(0))
    numbers = torch.cat([numbers, numbers.bfloat16().float(), torch.tensor([0.0, -0.0, 1e-38, -3e38])])
    weight, rest = numbers.bfloat16(), torch.zeros(len(numbers), dtype=torch.int16)
    _split_(numbers, weight, rest)
    assert torch.equal(weight, numbers.bfloat16()) and torch.equal(_joined(weight, rest), numbers)
    middle = torch.tensor([0x3F808000, 0x3F818000], dtype=torch.int32).view(torch.float32)
    for _ in range(2):  # the first is rounded down, and comes back as the number just below it, for ever
        weight, rest = middle.bfloat16(), torch.zeros(2, dtype=torch.int16)
        _split_(middle, weight, rest)
        middle = _joined(weight, rest)
        assert middle.view(torch.int32).tolist() == [0x3F807FFF, 0x3F818000]


def test_a_bfloat16_teacher_starts_as_the_float32_student():
    student = _module(1)
    teacher = EmaTeacher(_bfloat16(_module(1)), 0.01, student)
    for name, p in student.named_parameters():
        torch.testing.assert_close(teacher.state()[name], p.detach(), rtol=2**-23, atol=0)


def test_the_state_of_a_teacher_goes_into_one_of_either_dtype():
    student = _module(1)
    for first in (_module(1), _bfloat16(_module(1))):
        teacher = EmaTeacher(first, 0.5, student)
        teacher.update(_module(2))
        for second in (_module(3), _bfloat16(_module(3))):
            other = EmaTeacher(second, 0.5, student)
            other.load_state(teacher.state())
            for name, value in teacher.state().items():
                torch.testing.assert_close(other.state()[name], value, rtol=2**-23, atol=0)


@pytest.mark.parametrize("kind", ["ema", "frozen", "live", "trust-region"])
def test_a_teacher_gets_no_gradient_and_leaves_the_students_mode_alone(kind):
    student = _module(dropout=0.5)
    config = SelfDistillationConfig(teacher_regularization=kind, teacher_update_rate=0.1)
    teacher = build_teacher(config, student, lambda: _module(dropout=0.5))
    first, second = teacher.scores(OTHER).logits(), teacher.scores(OTHER).logits()
    assert student.training and all(m.training for m in student.modules())
    assert torch.equal(first, second)  # dropout is off
    assert not first.requires_grad
    student.scores(SIDE).hidden.square().sum().backward()
    assert any(p.grad.abs().sum() > 0 for p in student.parameters())
    if teacher.module is not None:
        assert all(p.grad is None for p in teacher.module.parameters())


def test_frozen_and_trust_region_keep_their_own_weights():
    for teacher in (FrozenTeacher(_module()), TrustRegionTeacher(_module(), _module(1), 0.5)):
        before = [p.clone() for p in teacher.module.parameters()]
        teacher.update(_module(1))
        assert all(torch.equal(a, b) for a, b in zip(before, teacher.module.parameters(), strict=True))


def test_trust_region_interpolates_logits_of_reference_and_student():
    reference, student = _module(0), _module(1)
    mixed = TrustRegionTeacher(reference, student, rate=0.25).scores(SIDE).logits()
    with torch.no_grad():
        expected = 0.75 * reference.scores(SIDE).logits() + 0.25 * student.scores(SIDE).logits()
    torch.testing.assert_close(mixed, expected)


def test_live_teacher_is_the_student_under_another_prompt():
    student = _module()
    with torch.no_grad():
        torch.testing.assert_close(LiveTeacher(student).scores(OTHER).logits(), student.scores(OTHER).logits())
