"""A few tokens through a model that has just been loaded: does this program score them as the model itself does?

Families differ in what they do to the last hidden states (scales, caps, biases, further layers), in what their
attention sees, and in what they do in training mode. What is not known is found here, before a run is built on it.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

import torch
from torch import nn

from sdpo.errors import ModelError, first_line
from sdpo.models.dropout import evaluating
from sdpo.models.forward import PolicyModule
from sdpo.models.load import FIELD
from sdpo.models.tree_attention import NAMES
from sdpo.models.tree_mixers import LEAST
from sdpo.tokens.packing import pack_responses

TOLERANCE = 1e-4  # nats, and that share of a log-prob: float32 has seven digits of -30, and layers lose some
PROMPT, RESPONSES = LEAST + 1, (7, 4)  # tokens; of unequal length, behind the same prompt, whose state is handed on


def check_scores(module: PolicyModule, path: str) -> None:
    """Runs two rows together, as in training, and each alone through the model's own forward pass; the whole model must
    be in this process, in float32. Random numbers that the user wants (`enable_dropout`) are left out of both.

    A model that cannot take its rows as a prefix tree after all gets padded rows. Raises ModelError, in one line with
    the family's name, when a pass fails or the log-probs differ.
    """
    lm = module.lm
    draw = torch.Generator().manual_seed(0)
    prompt, *responses = (
        torch.randint(module.vocab_size, (length,), generator=draw).tolist() for length in (PROMPT, *RESPONSES)
    )
    with torch.no_grad(), _attention_of_a_cpu(lm), evaluating(lm):
        try:
            own = [_own(module, [*prompt, *response]) for response in responses]
            prefix = _own(module, prompt)
        except Exception as error:  # a model's own code may raise anything; the answer is the same: not this family
            raise _refused(lm, path, f"its own forward pass fails: {_reason(error)}") from error
        if not _close(own[0][: len(prompt)], prefix):
            raise _refused(lm, path, "what it predicts depends on tokens behind, so no text can be generated with it")
        wanted = torch.cat([row[len(prompt) - 1 : -1] for row in own])
        lm.train(hasattr(lm, "configured_rates"))  # the mode of training, where that is without dropout
        why_not = _difference(module, wanted, prompt, responses)
        if why_not and module.prefix_sharing_unsupported is None:
            module.prefix_sharing_unsupported = f"with a prefix tree {why_not}"
            why_not = _difference(module, wanted, prompt, responses)
    if why_not:
        raise _refused(lm, path, why_not)


def _own(module: PolicyModule, row: list[int]) -> torch.Tensor:
    """Log-probs [tokens, V] of the model's own forward pass of one row."""
    logits = module.lm(input_ids=torch.tensor([row]), use_cache=False).logits[0]
    return logits[:, : module.vocab_size].float().log_softmax(-1)


def _difference(
    module: PolicyModule, wanted: torch.Tensor, prompt: list[int], responses: list[list[int]]
) -> str | None:
    side = pack_responses([prompt] * len(responses), responses, padded=module.prefix_sharing_unsupported is not None)
    try:
        found = module.scores(side).logits().log_softmax(-1)
    except Exception as error:  # as above
        return f"the pass of training fails: {_reason(error)}"
    if _close(found, wanted):
        return None
    return f"log-probs are {(found - wanted).abs().max().item():.2g} nats off those of its own forward pass"


def _close(found: torch.Tensor, wanted: torch.Tensor) -> bool:
    return torch.allclose(found, wanted, rtol=TOLERANCE, atol=TOLERANCE)


def _reason(error: Exception) -> str:
    return f"{type(error).__name__}: {first_line(error)}"


def _refused(lm: nn.Module, path: str, why: str) -> ModelError:
    family = f"{lm.config.model_type} ({type(lm).__name__})"
    fix = "use another model, or try actor_rollout_ref.model.attn_implementation=eager"
    return ModelError(f"{FIELD}: got {path!r}; this model of the family {family} cannot be trained: {why}; {fix}")


@contextmanager
def _attention_of_a_cpu(lm: nn.Module) -> Iterator[None]:
    """Flash attention runs on a GPU only, and the weights are still in CPU memory."""
    before = lm.config._attn_implementation
    if "flash" in str(before):
        lm.config._attn_implementation = NAMES["sdpa"] if before in NAMES.values() else "sdpa"
    try:
        yield
    finally:
        lm.config._attn_implementation = before
