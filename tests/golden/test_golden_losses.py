from __future__ import annotations

import copy
import json
import math
from dataclasses import replace
from pathlib import Path

import pytest
import torch

from sdpo.cli.golden import Inputs, compare_file, evaluate, main
from sdpo.kernels import choice

RECORDED = Path(__file__).with_name("loss_golden.json")


def test_all_recorded_settings_agree_to_1e_9(capsys):
    assert main([str(RECORDED)]) == 0
    assert "33 settings, all within 1e-09" in capsys.readouterr().out


@pytest.mark.parametrize("entry", ["loss", "gradient"])
def test_a_single_wrong_digit_is_found(tmp_path, entry, capsys):
    cases = json.loads(RECORDED.read_text())
    expected = cases[1]["expected"][4]
    if entry == "loss":
        expected["loss"] += 2e-9
    else:
        expected["grad_student_logits"][0][0][0] -= 2e-9
    (tmp_path / "wrong.json").write_text(json.dumps(cases))
    assert main([str(tmp_path / "wrong.json")]) == 1
    assert "1 of them outside" in capsys.readouterr().out


def recorded_settings():
    cases = json.loads(RECORDED.read_text())
    return [(case["inputs"], expected) for case in cases for expected in case["expected"]]


@pytest.mark.parametrize("through_head", [False, True])
@pytest.mark.parametrize("compiled", [False, True])
def test_float32_is_within_1e_5_of_every_recorded_loss_and_gradient(through_head, compiled, monkeypatch):
    """compiled: by Numba's kernels, which otherwise take larger vocabularies only."""
    if compiled:
        pytest.importorskip("numba")
    monkeypatch.setattr(choice, "MIN_COMPILED", 1 if compiled else 10**9)
    for inputs, expected in recorded_settings():
        read = Inputs.read(inputs, torch.float32)
        head = torch.eye(read.student.shape[-1]) if through_head else None
        loss, gradient = evaluate(read, expected, head)
        wanted = torch.tensor(expected["grad_student_logits"], dtype=torch.float64)
        assert loss.item() == pytest.approx(expected["loss"], rel=1e-5, abs=1e-12), expected
        assert (gradient - wanted).norm() <= 1e-5 * wanted.norm(), expected


def test_bfloat16_logits_differ_from_float64_by_the_rounding_of_the_gradient_only():
    for inputs, expected in recorded_settings():
        rounded = Inputs.read(inputs, torch.bfloat16)
        same = replace(rounded, student=rounded.student.double(), teacher=rounded.teacher.double())
        (loss, gradient), (wanted, exact) = (evaluate(each, expected) for each in (rounded, same))
        assert loss.item() == pytest.approx(wanted.item(), rel=1e-5, abs=1e-12), expected
        torch.testing.assert_close(gradient.double(), exact, rtol=2**-8, atol=1e-8)


def independent_loss(case, setting):
    """The published definition over padded tensors, by autograd: shares no code with the package."""
    inputs, temperature = case["inputs"], setting["temperature"]
    student = torch.tensor(inputs["student_logits"], dtype=torch.float64).requires_grad_()
    teacher, labels = torch.tensor(inputs["teacher_logits"], dtype=torch.float64), torch.tensor(inputs["labels"])
    mask = torch.tensor(inputs["response_mask"]).double() * torch.tensor(inputs["self_distillation_mask"])[:, None]
    log_p, log_q = (torch.log_softmax(x / temperature, -1) for x in (student, teacher))
    own, other = (x.gather(-1, labels[..., None])[..., 0] for x in (log_p, log_q))
    if setting["mode"] == "token":
        values = (own - other).detach() * own
    else:
        if setting["mode"] == "topk":
            ids = student.topk(min(setting["topk"], student.shape[-1]), -1).indices
            log_p, log_q = (close(x.gather(-1, ids), setting["add_tail"]) for x in (log_p, log_q))
        values = jsd(log_p, log_q, setting["alpha"])
    if setting["is_clip"] is not None:
        old = torch.tensor(inputs["old_log_probs"], dtype=torch.float64)
        values = values * (own - old).clamp(-20, 20).exp().clamp(max=setting["is_clip"]).detach()
    lengths = mask.sum(-1)
    sums, rows = (values * mask).sum(-1), (lengths > 0).sum().clamp(min=1)
    loss = {
        "token-mean": sums.sum() / mask.sum().clamp(min=1),
        "seq-mean-token-mean": (sums / (lengths + 1e-8)).sum() / rows,
        "seq-mean-token-sum": sums.sum() / rows,
        "seq-mean-token-sum-norm": sums.sum() / mask.shape[1],
    }[setting["loss_agg_mode"]]
    return loss.item(), torch.autograd.grad(loss, student)[0].tolist()


def close(log_probs, tail):
    inside = log_probs.logsumexp(-1, keepdim=True)
    if not tail:
        return log_probs - inside
    return torch.cat([log_probs, (-torch.expm1(inside.clamp(max=-1e-7))).log()], -1)


def jsd(log_p, log_q, alpha):
    def kl(a, b):
        return (a.exp() * (a - b)).sum(-1)

    if alpha in (0.0, 1.0):
        return kl(log_q, log_p) if alpha == 0.0 else kl(log_p, log_q)
    log_m = ((1 - alpha) * log_p.exp() + alpha * log_q.exp()).log()
    return alpha * kl(log_q, log_m) + (1 - alpha) * kl(log_p, log_m)


def random_case(shape, mask, seed):
    generator = torch.Generator().manual_seed(seed)
    rows, length, vocab = shape
    student = (3 * torch.randn(shape, generator=generator, dtype=torch.float64)).round(decimals=4)
    noise = torch.randn(shape, generator=generator, dtype=torch.float64)
    labels = torch.randint(0, vocab, (rows, length), generator=generator)
    old = torch.log_softmax(student, -1).gather(-1, labels[..., None])[..., 0] + 0.7 * noise[..., 0]
    inputs = {
        "student_logits": student.tolist(),
        "teacher_logits": (student + noise).round(decimals=4).tolist(),
        "labels": labels.tolist(),
        "response_mask": mask,
        "self_distillation_mask": [1.0] * rows,
        "old_log_probs": old.tolist(),
    }
    return {"seed": seed, "inputs": inputs, "expected": []}


HOLES = [[1.0, 0.0, 1.0, 1.0, 0.0], [0.0, 0.0, 1.0, 0.0, 1.0]]
SHAPES = {
    "one token": ((1, 1, 5), [[1.0]]),
    "holes in the mask": ((2, 5, 9), HOLES),
    "a row without tokens": ((3, 2, 30), [[1.0, 1.0], [0.0, 0.0], [1.0, 0.0]]),
    "nothing at all": ((2, 2, 6), [[0.0, 0.0], [0.0, 0.0]]),
    "wide": ((2, 5, 257), HOLES),
}


@pytest.mark.parametrize("name", SHAPES)
def test_other_shapes_masks_and_settings_agree_with_an_independent_evaluation(name, tmp_path):
    case = random_case(*SHAPES[name], seed=len(name))
    modes = ("token-mean", "seq-mean-token-mean", "seq-mean-token-sum", "seq-mean-token-sum-norm")
    for number, agg in enumerate(modes):
        for temperature in (0.5, 1.0, 2.0):
            common = {"loss_agg_mode": agg, "temperature": temperature, "is_clip": (None, 1.5)[number % 2]}
            settings = [{"mode": "token", "alpha": 1.0, "topk": None, "add_tail": True}]
            settings += [{"mode": "full", "alpha": a, "topk": None, "add_tail": True} for a in (0.0, 0.1, 0.9, 1.0)]
            settings += [
                {"mode": "topk", "alpha": a, "topk": k, "add_tail": tail}
                for a in (0.0, 0.6, 1.0)
                for k in (1, 4, 100)
                for tail in (True, False)
            ]
            for setting in settings:
                loss, gradient = independent_loss(case, setting | common)
                case["expected"].append(setting | common | {"loss": loss, "grad_student_logits": gradient})
    path = tmp_path / "case.json"
    path.write_text(json.dumps([case]))
    results = compare_file(path)
    assert len(results) == len(case["expected"])
    assert max(result.worst for result in results) < 1e-9


def test_undefined_values_recorded_for_an_empty_mask_count_as_zero_but_nowhere_else(tmp_path):
    path = tmp_path / "nan.json"
    setting = {"mode": "full", "alpha": 0.5, "topk": None, "add_tail": True, "is_clip": None, "temperature": 1.0}
    case = random_case(*SHAPES["nothing at all"], seed=0)
    undefined = torch.full((2, 2, 6), math.nan).tolist()
    case["expected"] = [setting | {"loss_agg_mode": "token-mean", "loss": math.nan, "grad_student_logits": undefined}]
    path.write_text(json.dumps(case))
    assert main([str(path)]) == 0
    filled = copy.deepcopy(case)
    filled["inputs"]["response_mask"] = [[1.0, 1.0], [1.0, 1.0]]
    path.write_text(json.dumps(filled))
    assert main([str(path)]) == 1


@pytest.mark.parametrize("content", ["", "[]", "{}", '[{"inputs": {}, "expected": []}]', '[{"inputs": 3}]'])
def test_a_file_in_another_format_is_one_line_and_a_failure(tmp_path, content, capsys):
    path = tmp_path / "bad.json"
    path.write_text(content)
    assert main([str(path)]) not in (0, 1)
    assert capsys.readouterr().err.startswith("error: ")
    assert main([str(tmp_path / "absent.json")]) not in (0, 1)
