"""From packed token ids to what the loss needs: the hidden states that predict the response tokens, and the head.

Prompts never go through the head: the vocabulary is multiplied at response positions only, by the loss, as it sees fit.
"""

from __future__ import annotations

import torch
from torch import nn
from torch.distributed.fsdp import FSDPModule

from sdpo.algorithms.scores import ResponseScores
from sdpo.models.file_weights import FileWeights
from sdpo.models.tree_attention import TreePlan, read_trees, why_padded
from sdpo.tokens.packing import PackedSide


class PolicyModule(nn.Module):
    """A causal language model seen as (hidden states at response positions, head).

    One module, so that FSDP2's root covers the embedding and the head together (they may be tied).
    """

    def __init__(self, lm: nn.Module, vocab_size: int) -> None:
        super().__init__()
        self.lm = lm
        self.vocab_size = vocab_size  # the tokenizer's; padded rows of the head take no probability
        self.in_file: FileWeights | None = None  # a teacher's, when they are not kept in memory
        self.why_padded = why_padded(lm)  # None: give it prefix trees
        if self.why_padded is None:
            read_trees(lm)

    def forward(self, side: PackedSide) -> torch.Tensor:
        """Hidden states [N, H] that predict the N response tokens of the micro-batch, in row order."""
        backbone = self.lm.get_decoder() if hasattr(self.lm, "get_decoder") else self.lm.base_model
        tree = {} if side.tree is None else {"prefix_tree": TreePlan(side.tree)}
        hidden = backbone(
            input_ids=side.input_ids,
            attention_mask=side.attention_mask,
            position_ids=side.position_ids,
            use_cache=False,
            **tree,
        ).last_hidden_state
        return hidden.flatten(0, 1).index_select(0, side.selected)

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
            # Cohere multiplies the logits, Granite divides them, Gemma 2 caps them.
            scale=getattr(config, "logit_scale", None) or 1.0 / (getattr(config, "logits_scaling", None) or 1.0),
            soft_cap=getattr(config, "final_logit_softcapping", None),
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
