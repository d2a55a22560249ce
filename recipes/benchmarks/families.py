"""Every causal language model family of the installed transformers, built with a few thousand weights, as this program
scores it: trained with the log-probs of the model itself, or refused by name.

python recipes/benchmarks/families.py                # writes the table of docs/models.md
python recipes/benchmarks/families.py gpt2 cohere    # prints the lines of some families
"""

from __future__ import annotations

import argparse
import re
import sys
import warnings
from pathlib import Path
from typing import Any

import torch
import transformers
from transformers import CONFIG_MAPPING, AutoModelForCausalLM, PreTrainedConfig, PreTrainedModel
from transformers.models.auto.modeling_auto import MODEL_FOR_CAUSAL_LM_MAPPING_NAMES

from sdpo.errors import ModelError, first_line
from sdpo.models.dropout import switch_off_dropout
from sdpo.models.forward import PolicyModule
from sdpo.models.trial import check_scores

PAGE = Path(__file__).parents[2] / "docs" / "models.md"
START, END = "<!-- families: begin -->\n", "<!-- families: end -->\n"
FAMILIES = tuple(MODEL_FOR_CAUSAL_LM_MAPPING_NAMES)
VOCAB = 211
RATE = 0.5  # of every kind of dropout

# Fields of a configuration, and what they are in a small one.
SIZES = {
    r"(.*_)?vocab_size(_per_layer_input)?": VOCAB,
    r"num_key_value_heads|num_kv_heads|num_query_groups|num_global_key_value_heads": 2,
    r".*attention_heads|n_heads?|linear_num_.*_heads|num_heads|index_n_heads": 4,
    r"(.*_)?(num_hidden_layers|num_layers|n_layers?)|(en|de)coder_layers|num_blocks": 2,
    r"first_k_dense_replace|num_dense_layers|max_window_layers|num_hash_layers": 2,
    r".*hidden_size|n_embd|(.*_)?d_model|dim_model|.*embedding_size|emb_dim|word_embed_proj_dim|lru_width": 64,
    r"embedding_dim|hidden_size_per_layer_input": 64,
    r".*intermediate_size.*|n_inner|.*ffn_dim|.*ffn_hidden_size|dim_ff|dff|d_inner|feed_forward_size|mamba_d_ssm": 128,
    r".*(head_dim|d_head|dim_head|kv_channels|head_size|headdim)": 16,
    r"(num_|n_|moe_num_)?(local_|routed_)?experts|zero_expert_num": 4,
    r".*(experts_per_tok|experts_per_token|top_?k|topk_group|n_group)|moe_k": 2,
    r".*lora_rank|adapter_rank|laurel_rank|mamba_d_state|(ssm_)?state_size|time_step_rank|mamba_dt_rank": 16,
    r"qk_rope_head_dim|rotary_dim": 8,
    r"qk_head_dim": 24,
    r"mamba_n_heads": 8,
}
SIZES = {re.compile(pattern): size for pattern, size in reversed(SIZES.items())}  # the special ones first
TOKEN_ID = re.compile(r"(bos|eos|pad|sep|cls|unk|decoder_start)_token_id")
RANDOM = re.compile(r"drop|jitter")
SPREAD = re.compile(r"init(ializer)?_(range|std)")  # of the weights: far from uniform, or nothing would be seen
HYBRID = {"num_hidden_layers": 4, "layer_types": ["mamba", "hybrid"] * 2, "attention_hidden_size": 128}
# What one field cannot say alone.
SPECIAL: dict[str, dict[str, Any]] = {
    "dbrx": {
        "attn_config": {"kv_n_heads": 2, "rope_theta": 1e4, "attn_pdrop": RATE, "clip_qkv": 8.0},
        "ffn_config": {"ffn_hidden_size": 64, "hidden_size": 64},
    },
    "deepseek_v2": {"num_experts_per_tok": 2, "num_key_value_heads": 4},
    "deepseek_v3": {"head_dim": 8, "num_key_value_heads": 4},
    "dots1": {"n_routed_experts": 4, "num_experts_per_tok": 2, "n_shared_experts": 1},
    "gemma3n_text": {"num_kv_shared_layers": 0},
    "glm4_moe_lite": {"num_key_value_heads": 4},
    "glm_moe_dsa": {"num_key_value_heads": 4, "index_topk": 64},
    "gpt_neo": {"attention_types": [[["global", "local"], 1]]},
    "hunyuan_v1_dense": {"head_dim": 16},
    "hunyuan_v1_moe": {"head_dim": 16},
    "lfm2_moe": {"layer_types": ["conv", "full_attention"]},
    "longcat_flash": {"head_dim": 8, "num_key_value_heads": 4},
    "mamba2": {"num_heads": 8},
    "ministral": {"head_dim": 16},
    "nemotron": {"head_dim": 16, "num_key_value_heads": 2},
    "reformer": {"is_decoder": True, "attn_layers": ["local", "local"], "axial_pos_embds": False},
    "xmod": {"default_language": "en_XX"},
    "youtu": {"head_dim": 8, "num_key_value_heads": 4},
    "zamba": HYBRID | {"use_mamba_kernels": False},
    "zamba2": HYBRID,
}


def small(kind: type[PreTrainedConfig], **special: Any) -> PreTrainedConfig:
    """A configuration of a few thousand weights, with every kind of dropout switched on."""
    given: dict[str, Any] = {}
    for name, value in vars(kind()).items():
        if isinstance(value, PreTrainedConfig):
            given[name] = small(type(value))
        elif type(value) is int and value > 0:
            size = next((size for pattern, size in SIZES.items() if pattern.fullmatch(name)), value)
            given[name] = min(value, 3) if TOKEN_ID.fullmatch(name) else size
        elif type(value) is float and RANDOM.search(name):
            given[name] = RATE
        elif type(value) is float and SPREAD.fullmatch(name):
            given[name] = 0.2
    given = {name: value for name, value in given.items() if value != getattr(kind(), name)}
    return kind(**(given | special))


def build(family: str) -> PreTrainedModel:
    """A model with random weights, in training mode."""
    torch.manual_seed(0)
    return AutoModelForCausalLM.from_config(small(CONFIG_MAPPING[family], **SPECIAL.get(family, {}))).train()


def trained(lm: PreTrainedModel) -> PolicyModule:
    """As a run trains it. Raises ModelError when it cannot."""
    switch_off_dropout(lm)
    module = PolicyModule(lm, VOCAB)
    check_scores(module, lm.config.model_type)
    return module


def outcome(family: str) -> tuple[str, str]:
    """(how, why) of one family."""
    try:
        lm = build(family)
    except Exception as error:  # transformers' own code, of a hundred families
        return "not built small", f"{type(error).__name__}: {first_line(error)}"
    try:
        module = trained(lm)
    except ModelError as error:
        return "refused", str(error).split(" cannot be trained: ")[-1].rsplit("; use another", 1)[0]
    reason = module.prefix_sharing_unsupported
    return ("prefix trees", "") if reason is None else ("padded rows", reason)


def page(found: dict[str, tuple[str, str]]) -> str:
    """The tables of docs/models.md: families by how they are scored."""
    groups: dict[tuple[str, str], list[str]] = {}
    for family, (how, why) in found.items():
        why = re.sub(r"^\w+ (does not use)", r"\1", why)  # the class, which is the family again
        groups.setdefault((how, re.sub(r"[\d.e-]+ nats", "", why)[:100]), []).append(family)
    counts = {how: sum(how == one for one, _ in found.values()) for how, _ in found.values()}
    lines = [", ".join(f"{count} {how}" for how, count in sorted(counts.items())) + ".", ""]
    lines += ["| scored | why | families |", "|---|---|---|"]
    lines += [f"| {how} | {why} | {', '.join(names)} |" for (how, why), names in sorted(groups.items())]
    return "\n".join(lines) + "\n"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.split("\n", 1)[0])
    parser.add_argument("family", nargs="*", help=f"default: all {len(FAMILIES)}, into {PAGE.name}")
    asked = parser.parse_args().family
    warnings.filterwarnings("ignore")
    found = {}
    for family in asked or FAMILIES:
        found[family] = outcome(family)
        print(family, *found[family], sep=": ", flush=True)
    if not asked:
        before, rest = PAGE.read_text(encoding="utf-8").split(START)
        text = f"transformers {transformers.__version__}: {page(found)}"
        PAGE.write_text(before + START + text + END + rest.split(END)[1], encoding="utf-8")


if __name__ == "__main__":
    sys.exit(main())
