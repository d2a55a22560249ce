from __future__ import annotations

import math

import pytest
import torch

from sdpo.rollout.engine import SamplingSpec
from sdpo.rollout.noise import ROWS_AT_ONCE, RequestStreams, process_logits


def log_prob(logits: list[float], token: int, spec: SamplingSpec) -> float:
    return process_logits(torch.tensor([logits]), [spec]).log_softmax(-1)[0, token].item()


def test_temperature_divides_the_logits_once():
    assert log_prob([2.0, 0.0], 0, SamplingSpec(temperature=0.5)) == pytest.approx(-0.018150, abs=1e-5)
    assert log_prob([2.0, 0.0], 0, SamplingSpec(temperature=1.0)) == pytest.approx(-0.126928, abs=1e-5)


def test_temperature_zero_is_greedy_and_finite():
    ids, log_probs = RequestStreams([SamplingSpec(temperature=0.0)], torch.device("cpu")).draw(
        torch.tensor([[2.0, 0.0, 3.0]])
    )
    assert ids.tolist() == [2]
    assert log_probs[0].item() == pytest.approx(torch.tensor([2.0, 0.0, 3.0]).log_softmax(0)[2].item())


def test_top_k_keeps_the_k_most_likely_and_minus_one_and_zero_keep_all():
    scores = process_logits(torch.tensor([[1.0, 4.0, 2.0, 3.0]] * 3), [SamplingSpec(top_k=k) for k in (2, -1, 0)])
    assert torch.isinf(scores).tolist() == [[True, False, True, False], [False] * 4, [False] * 4]


def test_top_p_keeps_the_smallest_set_that_reaches_p_and_at_least_one():
    logits = torch.tensor([[0.5, 0.3, 0.15, 0.05]]).log()
    for p, kept in ((0.01, 1), (0.45, 1), (0.55, 2), (0.75, 2), (0.9, 3), (0.99, 4), (1.0, 4)):
        assert torch.isfinite(process_logits(logits, [SamplingSpec(top_p=p)])).sum() == kept, p


def test_top_p_works_on_what_temperature_and_top_k_left():
    # After top-k 2 at T=1 the two left have 0.625 and 0.375: the first alone reaches 0.6, but would not among all four.
    logits = torch.tensor([[0.5, 0.3, 0.15, 0.05]]).log()
    assert torch.isfinite(process_logits(logits, [SamplingSpec(top_k=2, top_p=0.6)])).tolist() == [
        [True, False, False, False]
    ]


def test_each_row_has_its_own_settings():
    logits = torch.tensor([[2.0, 0.0]] * 3)
    rows = process_logits(logits, [SamplingSpec(temperature=t) for t in (0.5, 1.0, 2.0)])
    assert rows[:, 0].tolist() == [4.0, 2.0, 1.0]


def test_draws_follow_the_distribution():
    probabilities = torch.tensor([0.6, 0.3, 0.1])
    n = 4000
    streams = RequestStreams([SamplingSpec(seed=seed * 7919) for seed in range(n)], torch.device("cpu"))
    ids, log_probs = streams.draw(probabilities.log().expand(n, 3))
    for token, p in enumerate(probabilities.tolist()):
        assert (ids == token).float().mean().item() == pytest.approx(p, abs=4 * math.sqrt(p * (1 - p) / n))
    assert torch.allclose(log_probs, probabilities.log()[ids])


def test_noise_is_that_of_the_exponential_distribution_of_torch_bit_for_bit():
    """From which vLLM draws too; one row is greedy, and there are more rows than are drawn at once."""
    seeds = [None if row == 3 else 17 * row for row in range(ROWS_AT_ONCE + 5)]
    specs = [SamplingSpec(temperature=0.0) if seed is None else SamplingSpec(seed=seed) for seed in seeds]
    streams = RequestStreams(specs, torch.device("cpu"))
    generators = [torch.Generator().manual_seed(seed or 0) for seed in seeds]
    for _ in range(3):  # the streams go on where they were
        wanted = [
            torch.ones(3001) if seed is None else torch.empty(3001).exponential_(generator=generator)
            for seed, generator in zip(seeds, generators, strict=True)
        ]
        assert torch.equal(streams._noise(torch.zeros(len(seeds), 3001)), torch.stack(wanted))


def test_a_request_draws_the_same_tokens_whoever_is_beside_it():
    torch.manual_seed(1)
    logits = torch.randn(5, 4, 50)  # steps, rows, vocabulary
    specs = [SamplingSpec(seed=seed) for seed in (3, 4, 5, 6)]
    together = RequestStreams(specs, torch.device("cpu"))
    alone = RequestStreams(specs[2:3], torch.device("cpu"))
    expected = [alone.draw(step[2:3])[0].item() for step in logits]
    assert [together.draw(logits[0])[0][2].item()] == expected[:1]
    together.keep([0, 2])
    assert [together.draw(step[[0, 2]])[0][1].item() for step in logits[1:]] == expected[1:]
