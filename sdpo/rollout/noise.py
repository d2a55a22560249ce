"""Drawing tokens: logits to a distribution, and a distribution plus a request's own random stream to a token.

A request draws one row of exponential noise per token from a generator seeded with its seed, and takes the token with
the largest probability / noise (the exponential race; equal in law to a categorical draw). Its tokens depend on its
seed and its probabilities, not on the requests beside it. vLLM draws in the same way from the same generator, so on a
CPU the two engines agree on the tokens of a seed as far as their probabilities agree.
"""

from __future__ import annotations

from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field

import torch

from sdpo.rollout.engine import SamplingSpec

ROWS_AT_ONCE = 32  # whose noise is drawn in float64


@dataclass
class RequestStreams:
    """The sampling settings and random streams of the rows of a batch."""

    specs: list[SamplingSpec]
    device: torch.device
    generators: list[torch.Generator | None] = field(init=False)
    _buffers: tuple[torch.Tensor, torch.Tensor] | None = field(default=None, init=False)

    def __post_init__(self) -> None:
        self._cores = torch.get_num_threads()
        self._pool = ThreadPoolExecutor(self._cores)
        self.generators = [None if s.greedy else torch.Generator(self.device).manual_seed(s.seed) for s in self.specs]

    def keep(self, rows: Sequence[int]) -> None:
        """Drop every row that is not in `rows`."""
        self.specs = [self.specs[row] for row in rows]
        self.generators = [self.generators[row] for row in rows]

    def draw(self, logits: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        """Next tokens. `logits`: [R, V], any float dtype. Returns ids [R] int64 and their log-probs [R] float32 (of the
        distribution drawn from; of the plain softmax for greedy rows)."""
        probs = process_logits(logits, self.specs).softmax(dim=-1)
        noise = self._noise(probs)
        ids = torch.div(probs, noise, out=noise).argmax(dim=-1)
        return ids, probs.gather(1, ids[:, None])[:, 0].log()

    def _noise(self, like: torch.Tensor) -> torch.Tensor:
        """[R, V] float32, 1 for greedy rows; overwritten by the next call."""
        noise, wide = self._memory(like)
        drawn = [row for row, generator in enumerate(self.generators) if generator is not None]
        if len(drawn) < len(noise):
            noise.fill_(1.0)
        if like.device.type != "cpu":
            for row in drawn:
                noise[row].exponential_(generator=self.generators[row])
            return noise
        for start in range(0, len(drawn), ROWS_AT_ONCE):
            rows = drawn[start : start + ROWS_AT_ONCE]
            for row, values in zip(rows, self._uniform(rows, wide).neg_().log1p_().neg_(), strict=True):
                noise[row] = values
        return noise

    def _memory(self, like: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        """For noise like `like` [R, V], and on a CPU for some rows of it in float64. The same for every token: new
        pages would cost as much as a pass over them."""
        rows, width = like.shape
        if self._buffers is None or len(self._buffers[0]) < rows or self._buffers[0].shape[1] != width:
            wide = min(rows, ROWS_AT_ONCE) if like.device.type == "cpu" else 0
            self._buffers = torch.empty_like(like), like.new_empty(wide, width, dtype=torch.float64)
        return self._buffers[0][:rows], self._buffers[1]

    def _uniform(self, rows: list[int], wide: torch.Tensor) -> torch.Tensor:
        """[rows, V] float64, in `wide`. A generator draws on one core; the rows are spread over all. -log(1 - u) of
        these is what `exponential_` gives, bit for bit, in half of its time: it takes its logarithms one by one."""
        uniform = wide[: len(rows)]

        def fill(places: range) -> None:
            for place in places:
                uniform[place].uniform_(generator=self.generators[rows[place]])

        list(self._pool.map(fill, (range(core, len(rows), self._cores) for core in range(self._cores))))
        return uniform


def process_logits(logits: torch.Tensor, specs: Sequence[SamplingSpec]) -> torch.Tensor:
    """Logits / temperature, then top-k, then top-p; float32 [R, V], excluded tokens at -inf. Greedy rows stay as they
    are.

    top-k keeps ties with the k-th; top-p keeps the smallest set of most likely tokens whose probability reaches p, at
    least one.
    """
    scores = logits.to(torch.float32)
    temperatures = [1.0 if s.greedy else s.temperature for s in specs]
    cut = [row for row, s in enumerate(specs) if not s.greedy and (0 < s.top_k < scores.shape[1] or s.top_p < 1)]
    if cut or set(temperatures) != {1.0}:
        scores = scores / torch.tensor(temperatures, device=scores.device)[:, None]
    for row in cut:
        scores[row] = _cut(scores[row], specs[row])
    return scores


def _cut(scores: torch.Tensor, spec: SamplingSpec) -> torch.Tensor:
    """One row [V] with the tokens outside top-k and top-p at -inf."""
    if 0 < spec.top_k < scores.shape[0]:
        scores = scores.masked_fill(scores < scores.topk(spec.top_k).values[-1], -torch.inf)
    if spec.top_p < 1:
        ascending, order = scores.sort()
        outside = ascending.softmax(dim=-1).cumsum(dim=-1) <= 1 - spec.top_p
        outside[-1] = False
        scores = scores.scatter(0, order, ascending.masked_fill(outside, -torch.inf))
    return scores
