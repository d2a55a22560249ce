"""The teacher's average beside other work on an NVIDIA GPU: nobody reads or overwrites weights too early."""

from __future__ import annotations

import pytest
import torch
from transformers import LlamaConfig, LlamaForCausalLM

from sdpo.models.forward import PolicyModule
from sdpo.teacher.teachers import EmaTeacher
from sdpo.tokens.packing import pack_responses

WIDTH = 4096  # of a square matrix whose products keep the GPU busy for a while


def module(dtype=torch.float32) -> PolicyModule:
    torch.manual_seed(0)
    config = LlamaConfig(
        vocab_size=512, hidden_size=512, intermediate_size=2048, num_hidden_layers=4, num_attention_heads=8
    )
    made = PolicyModule(LlamaForCausalLM(config), vocab_size=512).cuda()
    for p in made.parameters():
        p.data = p.data.to(dtype)
    return made


def busy(matrix: torch.Tensor) -> torch.Tensor:
    """A late zero on the current stream."""
    for _ in range(20):
        matrix = matrix @ matrix * 0.0
    return matrix[0, 0]


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_the_average_takes_the_weights_between_two_optimizer_steps(dtype):
    student, matrix = module(), torch.randn(WIDTH, WIDTH, device="cuda")
    teacher = EmaTeacher(module(dtype), 0.5, student)
    wanted = {name: p.detach().double() for name, p in student.named_parameters()}
    with torch.no_grad():
        for number in range(1, 4):
            teacher.synchronize()
            for p in student.parameters():  # as late as an optimizer step that waits for a backward pass
                p.fill_(float(number)).add_(busy(matrix))
            teacher.update(student)
            wanted = {name: value.lerp(torch.full_like(value, float(number)), 0.5) for name, value in wanted.items()}
    found = teacher.state()
    for name, value in wanted.items():
        torch.testing.assert_close(found[name].double(), value, rtol=2**-15, atol=1e-6)


def test_scores_wait_for_the_average():
    student, side = module(), pack_responses([[1, 2, 3]], [[5, 6]]).to("cuda")
    teacher = EmaTeacher(module(), 1.0, student)
    with torch.no_grad():
        late = busy(torch.randn(WIDTH, WIDTH, device="cuda"))
        for p in student.parameters():
            p.mul_(0.5).add_(late)
        teacher.update(student)
        torch.testing.assert_close(teacher.scores(side).logits(), student.scores(side).logits())
