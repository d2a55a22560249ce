"""Every causal language model family of the installed transformers, built with a few thousand weights, as this program
scores it: trained with the log-probs of the model itself, or refused by name; what rows begin with alike computed once
or not, how exactly and in which time.

python recipes/benchmarks/families.py                # writes the tables of docs/models.md and docs/figures
python recipes/benchmarks/families.py gpt2 cohere    # prints the lines of some families
"""

from __future__ import annotations

import argparse
import json
import re
import sys
import warnings
from pathlib import Path
from time import perf_counter
from typing import Any

import torch
import transformers
from torch.overrides import TorchFunctionMode
from transformers import CONFIG_MAPPING, AutoModelForCausalLM, PreTrainedConfig, PreTrainedModel
from transformers.models.auto.modeling_auto import MODEL_FOR_CAUSAL_LM_MAPPING_NAMES

from sdpo.errors import ModelError, first_line
from sdpo.models.dropout import switch_off_dropout
from sdpo.models.forward import PolicyModule
from sdpo.models.tree_mixers import computed_for_each_row
from sdpo.models.trial import check_scores
from sdpo.tokens.packing import PackedSide, pack_responses

PAGE = Path(__file__).parents[2] / "docs" / "models.md"
FIGURES = PAGE.parent / "figures" / "families.json"
START, END = "<!-- families: begin -->\n", "<!-- families: end -->\n"
FAMILIES = tuple(MODEL_FOR_CAUSAL_LM_MAPPING_NAMES)
VOCAB = 211
WINDOW = 7  # tokens, where layers have one; prompts and rows are longer
SHAPE = {"prompt": 256, "responses": 8, "response": 32}  # tokens of the pass whose time is taken
REPEATS = 3
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
    r"(mamba_)?chunk_size": 16,
    r"sliding_window(_size)?|attention_window_size|attention_chunk_size": WINDOW,
}
SIZES = {re.compile(pattern): size for pattern, size in reversed(SIZES.items())}  # the special ones first
TOKEN_ID = re.compile(r"(bos|eos|pad|sep|cls|unk|decoder_start)_token_id")
RANDOM = re.compile(r"drop|jitter")
SPREAD = re.compile(r"init(ializer)?_(range|std)")  # of the weights: far from uniform, or nothing would be seen
KINDS = re.compile(r"(mlp_)?layer_types|layers_block_type")  # a list, one word for each layer
LAYERS = 2
HYBRID = {"num_hidden_layers": 4, "layer_types": ["mamba", "hybrid"] * 2, "attention_hidden_size": 128}
# What one field cannot say alone.
SPECIAL: dict[str, dict[str, Any]] = {
    "bamba": {"attn_layer_indices": [1]},
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
    "jamba": {"attn_layer_period": 2, "attn_layer_offset": 1},
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
        elif KINDS.fullmatch(name) and value:  # one layer of each kind
            given[name] = (list(dict.fromkeys(value)) * LAYERS)[:LAYERS]
        elif type(value) is int and value > 0:
            size = next((size for pattern, size in SIZES.items() if pattern.fullmatch(name)), value)
            given[name] = min(value, 3) if TOKEN_ID.fullmatch(name) else size
        elif type(value) is float and RANDOM.search(name):
            given[name] = RATE
        elif type(value) is float and SPREAD.fullmatch(name):
            given[name] = 0.2
    if "use_sliding_window" in vars(kind()):
        given |= {"use_sliding_window": True, "sliding_window": WINDOW}
        if hasattr(kind(), "layer_types"):
            given["layer_types"] = ["sliding_attention", "full_attention"]
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


def rows(seed: int = 1) -> tuple[list[list[int]], list[list[int]]]:
    """Prompts and responses: two prompts that begin alike, responses that do, one that goes on where another ends; most
    prompts longer than a window, one of a single token."""
    draw = torch.Generator().manual_seed(seed)

    def ids(length: int) -> list[int]:
        return torch.randint(5, 200, (length,), generator=draw).tolist()

    system, first, second, alike = ids(19), ids(23), ids(11), ids(17)
    prompts = [system + first] * 3 + [system + second] * 3 + [ids(1)]
    return prompts, [ids(9), alike + ids(12), alike + ids(4), ids(3), alike, [*alike, 7], ids(2)]


def passed(module: PolicyModule, sides: list[PackedSide]) -> tuple[torch.Tensor, torch.Tensor]:
    """Hidden states [N, H] and the gradients of all weights, one behind the other."""
    module.zero_grad()
    states = []
    for side in sides:
        hidden = module(side)
        (hidden.tanh() * torch.linspace(-1, 1, hidden.shape[1], dtype=hidden.dtype)).sum().backward()
        states.append(hidden.detach())
    weights = [p for _, p in sorted(module.named_parameters())]
    zeros = (torch.zeros_like(p) if p.grad is None else p.grad.clone() for p in weights)
    return torch.cat(states), torch.cat([gradient.flatten() for gradient in zeros])


class InFloat64(TorchFunctionMode):
    """Within, what models compute in float32 whatever their dtype is computed in float64."""

    def __torch_function__(self, function: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        if function is torch.Tensor.float:
            return args[0].double()

        def wide(given: Any) -> Any:
            return torch.float64 if given is torch.float32 else given

        return function(*map(wide, args), **{name: wide(value) for name, value in (kwargs or {}).items()})


def exactness(family: str) -> dict[str, tuple[float, float]]:
    """What is computed shows in float64, how it is rounded in float32."""
    with InFloat64():
        exact = difference(family, torch.float64)
    return {"float32": difference(family, torch.float32), "float64": exact}


def difference(family: str, dtype: torch.dtype) -> tuple[float, float]:
    """The largest relative difference of a hidden state, and that of the gradient, by norm: a tree, against each row
    alone through transformers' own eager attention."""
    module, alone = (PolicyModule(_quiet(build(family)).to(dtype), VOCAB) for _ in range(2))
    alone.lm.config._attn_implementation = "eager"
    for one in (module, alone):
        one.lm.config._experts_implementation = "eager"  # the grouped product of torch takes no float64
    prompts, responses = rows()
    tree, tree_gradient = passed(module, [pack_responses(prompts, responses)])
    single = [pack_responses([p], [r], padded=True) for p, r in zip(prompts, responses, strict=True)]
    own, own_gradient = passed(alone, single)
    hidden = ((tree - own).norm(dim=1) / own.norm(dim=1)).max()
    return float(hidden), float((tree_gradient - own_gradient).norm() / own_gradient.norm())


def share_of_time(module: PolicyModule) -> float:
    """Forward and backward pass of one prompt with its responses: a tree's time, as a share of that of padded rows."""
    draw = torch.Generator().manual_seed(0)
    prompt, *responses = (
        torch.randint(5, 200, (length,), generator=draw).tolist()
        for length in (SHAPE["prompt"], *[SHAPE["response"]] * SHAPE["responses"])
    )
    sides = [pack_responses([prompt] * len(responses), responses, padded) for padded in (False, True)]
    times: list[list[float]] = [[], []]
    for repeat in range(REPEATS + 1):
        for side, taken in zip(sides, times, strict=True):
            began = perf_counter()
            passed(module, [side])
            if repeat:
                taken.append(perf_counter() - began)
    return min(times[0]) / min(times[1])


def _quiet(lm: PreTrainedModel) -> PreTrainedModel:
    switch_off_dropout(lm)
    return lm


def outcome(family: str, measured: bool = True) -> dict[str, Any]:
    """`scored` and `why` of one family, and what was measured of those that share prompts."""
    try:
        lm = build(family)
    except Exception as error:  # transformers' own code, of a hundred families
        return {"scored": "not built small", "why": f"{type(error).__name__}: {first_line(error)}"[:100]}
    try:
        module = trained(lm)
    except ModelError as error:
        why = str(error).split(" cannot be trained: ")[-1].rsplit("; use another", 1)[0]
        return {"scored": "refused", "why": re.sub(r"[\d.e-]+ nats ", "", why)[:100]}
    why = module.prefix_sharing_unsupported
    if why is not None:
        return {"scored": "padded rows", "why": re.sub(r"^\w+ (does not use)|[\d.e-]+ nats ", r"\1", why)[:120]}
    found: dict[str, Any] = {"scored": "shared", "why": ""}
    if computed_for_each_row(lm):
        found = {"scored": "partly shared", "why": f"{computed_for_each_row(lm)} computes whole rows"}
    if measured:
        found |= exactness(family)
        found["time"] = share_of_time(module)
    return found


def page(found: dict[str, dict[str, Any]]) -> str:
    """The tables of docs/models.md: families by how they are scored, then those that share prompts."""
    groups: dict[tuple[str, str], list[str]] = {}
    for family, one in found.items():
        groups.setdefault((one["scored"], one["why"]), []).append(family)
    kinds = [one["scored"] for one in found.values()]
    lines = [", ".join(f"{kinds.count(kind)} {kind}" for kind in sorted(set(kinds))) + ".", ""]
    lines += ["| scored | why | families |", "|---|---|---|"]
    lines += [f"| {how} | {why} | {', '.join(names)} |" for (how, why), names in sorted(groups.items())]
    lines += ["", "| family | float64 | float32 | time |", "|---|---|---|---|"]
    for family, one in sorted(found.items()):
        if "time" in one:
            pairs = (" ".join(f"{x:.0e}" for x in one[dtype]) for dtype in ("float64", "float32"))
            lines.append(f"| {family} | {' | '.join(pairs)} | {one['time']:.2f} |")
    return "\n".join(lines) + "\n"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.split("\n", 1)[0])
    parser.add_argument("family", nargs="*", help=f"default: all {len(FAMILIES)}, into {PAGE.name}")
    asked = parser.parse_args().family
    warnings.filterwarnings("ignore")
    found = {}
    for family in asked or FAMILIES:
        found[family] = outcome(family)
        print(family, *found[family].values(), sep=": ", flush=True)
    if not asked:
        before, rest = PAGE.read_text(encoding="utf-8").split(START)
        text = f"transformers {transformers.__version__}, torch {torch.__version__}: {page(found)}"
        PAGE.write_text(before + START + text + END + rest.split(END)[1], encoding="utf-8")
        FIGURES.write_text(json.dumps({"shape": SHAPE, "families": found}, indent=1) + "\n", encoding="utf-8")


if __name__ == "__main__":
    sys.exit(main())
