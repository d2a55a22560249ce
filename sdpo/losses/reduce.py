"""From token losses to one number, as fixed weights: loss = sum over tokens of weight * token loss.

The denominators are those of the whole optimizer step, so that the split into micro-batches and ranks, packing and
padding change neither the loss nor the gradient.
"""

from __future__ import annotations

import torch

from sdpo.errors import ConfigError, problem
from sdpo.losses.token_batch import TokenBatch

AGG_MODES = ("token-mean", "seq-mean-token-mean", "seq-mean-token-sum", "seq-mean-token-sum-norm")
LENGTH_EPSILON = 1e-8  # added to the length of a row in seq-mean-token-mean, as the reference does


def token_weights(batch: TokenBatch, mode: str, normalization: str, dtype: torch.dtype) -> torch.Tensor:
    """[N] in `dtype`, the batch's own weights included.

    | mode | weight of a token of a row with n tokens |
    |---|---|
    | token-mean | 1 / tokens of the step |
    | seq-mean-token-mean | 1 / (n * rows of the step) |
    | seq-mean-token-sum | 1 / rows of the step |
    | seq-mean-token-sum-norm | 1 / max_response_length (a plain sum over rows, in spite of its name) |

    normalization="micro_batch" takes the denominators of the reference's micro-batches and multiplies by their share of
    the step's responses (`micro_batch_shares`). The other two are a choice of denominators (`MiniBatch.denominators`).
    """
    weights = batch.weights.to(dtype)
    if normalization in ("component", "all"):
        tokens, sequences, share = max(batch.tokens, 1), max(batch.sequences, 1), 1.0
    elif normalization == "micro_batch":
        tokens, sequences, share = _of_micro_batches(batch).to(dtype)[batch.row].unbind(-1)
    else:
        allowed = "component, all or micro_batch"
        raise ConfigError(problem("self_distillation.loss_normalization", normalization, allowed))
    if mode == "token-mean":
        return weights * (share / tokens)
    if mode == "seq-mean-token-mean":
        return weights * share / ((batch.row_lengths.to(dtype)[batch.row] + LENGTH_EPSILON) * sequences)
    if mode == "seq-mean-token-sum":
        return weights * (share / sequences)
    if mode == "seq-mean-token-sum-norm":
        return weights * (share / batch.max_response_length)
    raise ConfigError(problem("actor.loss_agg_mode", mode, ", ".join(AGG_MODES)))


def _of_micro_batches(batch: TokenBatch) -> torch.Tensor:
    """[R, 3]: tokens, rows and share of each row's micro-batch. Without them the whole batch is one, and its rows
    without tokens are responses without a signal."""
    if batch.micro_batches is not None:
        return batch.micro_batches
    rows = batch.row_lengths.shape[0]
    own = [batch.row.shape[0], int((batch.row_lengths > 0).sum()), rows / max(batch.sequences, 1)]
    return batch.weights.new_tensor(own, dtype=torch.float64).expand(rows, 3)


def metric_sums(values: dict[str, torch.Tensor]) -> dict[str, tuple[float, float]]:
    """Values [N] by name -> (sum, count), or (maximum, 1) for names in `_max`; one transfer from the device."""
    names = [name for name, value in values.items() if value.numel()]
    if not names:
        return {}
    parts = [values[n].detach().max() if n.endswith("_max") else values[n].detach().sum() for n in names]
    numbers = torch.stack([part.double() for part in parts]).tolist()
    counts = [1.0 if name.endswith("_max") else float(values[name].numel()) for name in names]
    return dict(zip(names, zip(numbers, counts, strict=True), strict=True))
