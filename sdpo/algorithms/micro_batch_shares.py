"""The reference's denominators: `loss_normalization=micro_batch`.

The reference cuts all responses of an optimizer step into micro-batches, takes the mean over those with a signal within
each, and weighs it by the micro-batch's share of all responses. So a response without a signal takes weight from the
others. Here such responses are in no forward; what they do to the weights is counted before they go.
"""

from __future__ import annotations

from collections.abc import Sequence

from sdpo.config.schema import ActorConfig
from sdpo.records import Group, MicroBatchShare, TrainRow

LINEAR_COST = 24576  # of a token, beside the square of the length: verl's estimate for a 7B model


def set_shares(groups: Sequence[Group], rows: Sequence[Sequence[TrainRow]], actor: ActorConfig) -> None:
    """Sets `micro_batch` of all distilled rows; `rows` holds one list per group."""
    for start in range(0, len(groups), actor.ppo_mini_batch_size):
        step = range(start, min(start + actor.ppo_mini_batch_size, len(groups)))
        samples = [(place, sample) for place in step for sample in groups[place].samples]
        trained = {(place, row.sample_index): row for place in step for row in rows[place] if row.distillation}
        lengths = [len(sample.prompt_ids) + len(sample.response_ids) for _, sample in samples]
        for part in _micro_batches(lengths, actor):
            keys = [(samples[i][0], samples[i][1].index) for i in part]
            own = [trained[key] for key in keys if key in trained]
            tokens = sum(row.tokens_of("distillation") for row in own)
            for row in own:
                row.micro_batch = MicroBatchShare(tokens, len(own), len(part) / len(samples))


def _micro_batches(lengths: list[int], actor: ActorConfig) -> list[list[int]]:
    """Places of the responses, as verl cuts them on one rank: so many in a row, or balanced by their cost."""
    size = actor.ppo_micro_batch_size_per_gpu
    if size and not actor.use_dynamic_bsz:
        return [list(range(start, min(start + size, len(lengths)))) for start in range(0, len(lengths), size)]
    count = min(len(lengths), -(-sum(lengths) // actor.ppo_max_token_len_per_gpu))
    if count < 2:
        return [list(range(len(lengths)))]
    from verl.utils.seqlen_balancing import get_seqlen_balanced_partitions  # heavy: imports verl's data protocol

    return get_seqlen_balanced_partitions([LINEAR_COST * n + n * n for n in lengths], count, equal_size=False)
