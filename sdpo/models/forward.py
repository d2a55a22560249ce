"""From packed token ids to what the loss needs: the hidden states that predict the response tokens, and the head.

Prompts never go through the head: the vocabulary is multiplied at response positions only, by the loss, as it sees fit.
"""

from __future__ import annotations

import math

import torch
from torch import nn
from torch.distributed.fsdp import FSDPModule
from transformers import PreTrainedConfig, PreTrainedModel

from sdpo.errors import ModelError
from sdpo.kernels.lazy_logits import ResponseScores
from sdpo.models.load import FIELD
from sdpo.models.tree_attention import read_trees
from sdpo.models.tree_plan import TreePlan, reading
from sdpo.offload.file_weights import FileWeights
from sdpo.tokens.packing import PackedSide

SOFT_CAPS = ("final_logit_softcapping", "logits_soft_cap", "output_logit_soft_cap")  # Gemma 2, RecurrentGemma, xLSTM


class PolicyModule(nn.Module):
    """A causal language model seen as (hidden states at response positions, head).

    One module, so that FSDP2's root covers the embedding and the head together (they may be tied).
    """

    def __init__(self, lm: PreTrainedModel, vocab_size: int) -> None:
        super().__init__()
        self.lm = lm
        rows = getattr(getattr(lm.get_output_embeddings(), "weight", None), "shape", [0])[0]
        if not rows:
            raise ModelError(f"{FIELD}: {type(lm).__name__} has no output head; use a causal language model")
        self.vocab_size = min(vocab_size, rows)  # the tokenizer's; padded rows of the head take no probability
        self.in_file: FileWeights | None = None  # a teacher's, when they are not kept in memory
        self.prefix_sharing_unsupported = read_trees(lm)  # None: give it prefix trees

    def forward(self, side: PackedSide) -> torch.Tensor:
        """Hidden states [N, H] that predict the N response tokens of the micro-batch, in row order."""
        rows, plan = {"attention_mask": side.attention_mask}, None
        if side.tree is not None:  # else positions are the model's own: from 0, or whatever its family counts from
            rows, plan = {"position_ids": side.position_ids}, TreePlan(side.tree)
            rows["attention_mask"] = torch.ones_like(side.input_ids)  # one row: transformers would look for several
        with reading(plan):
            hidden = self._backbone()(input_ids=side.input_ids, use_cache=False, **rows).last_hidden_state
        return hidden.flatten(0, 1).index_select(0, side.selected)

    def _backbone(self) -> nn.Module:
        """The model without its head. Families disagree on where it is, and some name their head a decoder."""
        found = (self.lm.get_decoder(), self.lm.base_model, getattr(self.lm, "model", None))
        return next(part for part in found if isinstance(part, PreTrainedModel) and part is not self.lm)

    def scores(self, side: PackedSide, in_place: bool = False) -> ResponseScores:
        """Runs the forward pass and pairs it with the head, ready for a loss.

        in_place: the loss may add to the gradient of the head itself (`ResponseScores.weight_gradient`)."""
        hidden = self(side)
        head, config = self.lm.get_output_embeddings(), self.lm.config
        return ResponseScores(
            hidden,
            head.weight,
            getattr(head, "bias", None),
            self.vocab_size,
            scale=_scale(config),
            soft_cap=next(filter(None, (getattr(config, name, None) for name in SOFT_CAPS)), None),
            weight_gradient=self._head_gradient(head.weight) if in_place else None,
        )

    def _head_gradient(self, weight: torch.Tensor) -> torch.Tensor | None:
        """`weight.grad`, which exists from now on; None where autograd (LoRA) or FSDP2 takes the gradient further."""
        if isinstance(self, FSDPModule) or not (weight.is_leaf and weight.requires_grad):
            return None
        if weight.dtype != torch.float32:
            return None
        if weight.grad is None:
            weight.grad = torch.zeros_like(weight)
        return weight.grad


def _scale(config: PreTrainedConfig) -> float:
    """What the logits are multiplied by. `trial.check_scores` finds the families that do more than is known here."""
    multiply = getattr(config, "logit_scale", None), getattr(config, "lm_head_multiplier", None)  # Cohere, Falcon-H1
    return math.prod(factor or 1.0 for factor in multiply) / (getattr(config, "logits_scaling", None) or 1.0)  # Granite
