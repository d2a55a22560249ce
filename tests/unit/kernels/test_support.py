from __future__ import annotations

import pytest
import torch

from sdpo.kernels.support import choose_support, renormalised, top_ids, with_tail


def test_each_kind_of_support_is_the_top_k_it_says():
    student, teacher = torch.tensor([[4.0, 3.0, 2.0, 1.0]]), torch.tensor([[1.0, 4.0, 2.0, 3.0]])
    assert choose_support(student, teacher, 2, "student")[0].tolist() == [[0, 1]]
    assert choose_support(student, teacher, 2, "teacher")[0].tolist() == [[1, 3]]
    ids, counted = choose_support(student, teacher, 2, "union")
    assert sorted(ids[counted].tolist()) == [0, 1, 3]


def test_k_beyond_the_vocabulary_is_the_whole_vocabulary():
    ids, counted = choose_support(torch.zeros(1, 3), torch.zeros(1, 3), 10, "student")
    assert sorted(ids[0].tolist()) == [0, 1, 2]
    assert counted.all()


def test_tail_completes_the_distribution():
    inside, outside = torch.tensor([[0.5, 0.3]], dtype=torch.float64).log(), torch.tensor([[0.2]]).double().log()
    assert with_tail(inside, outside).exp().tolist()[0] == pytest.approx([0.5, 0.3, 0.2])
    assert renormalised(inside).exp().tolist()[0] == pytest.approx([0.625, 0.375])


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_tail_stays_finite_when_the_support_holds_all_the_mass(dtype):
    inside = torch.tensor([[1.0, 0.0]], dtype=dtype).log()
    tail = with_tail(inside, torch.tensor([[-torch.inf]], dtype=dtype))[0, -1]
    assert tail.item() == pytest.approx(torch.tensor(1e-7).log().item(), abs=0.2)


@pytest.mark.parametrize(("width", "k"), [(5, 5), (1000, 3), (5001, 100), (4999, 1), (300, 250)])
def test_the_grouped_selection_finds_the_k_largest(width, k):
    values = torch.randn(7, width, generator=torch.Generator().manual_seed(width))
    values[0] = torch.arange(width)
    values[1] = -torch.arange(width).float()
    found = top_ids(values, k).sort(-1).values
    assert torch.equal(found, values.topk(k).indices.sort(-1).values)


def test_equal_values_give_k_different_ids():
    assert len(set(top_ids(torch.zeros(1, 1000), 10)[0].tolist())) == 10
