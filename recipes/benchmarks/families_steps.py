"""Two SDPO steps of a small model of each of the families that people train, through vLLM where its CPU build has the
family: how far the engine's log-probs are from the trainer's, before and after new weights went to it.

python recipes/benchmarks/families_steps.py                # all; writes the table of docs/models.md and docs/figures
python recipes/benchmarks/families_steps.py qwen3_moe      # prints the lines of some
"""

from __future__ import annotations

import argparse
import json
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Any

import torch
from transformers import CONFIG_MAPPING, AutoModelForCausalLM, AutoTokenizer

from sdpo.models.load import resolve_model_path
from sdpo.tracking.history import RunHistory

PAGE = Path(__file__).parents[2] / "docs" / "models.md"
FIGURES = PAGE.parent / "figures" / "families_steps.json"
START, END = "<!-- steps: begin -->\n", "<!-- steps: end -->\n"
SLIDING = {"sliding_window": 16, "layer_types": ["sliding_attention", "full_attention"]}  # shorter than any row
EXPERTS = {"num_experts_per_tok": 2, "num_hidden_layers": 2}
# Family -> its name, and what one of its small models has that others have not.
FAMILIES: dict[str, tuple[str, dict[str, Any]]] = {
    "olmo3": ("OLMo-3", SLIDING),
    "gemma2": ("Gemma-2", SLIDING | {"query_pre_attn_scalar": 32}),
    "gemma3_text": ("Gemma-3", SLIDING | {"query_pre_attn_scalar": 32}),
    "gemma4_text": ("Gemma-4", SLIDING | {"global_head_dim": 64, "hidden_size_per_layer_input": 16}),
    "qwen3_5_text": ("Qwen3.5", {"layer_types": ["linear_attention", "full_attention"], "linear_num_key_heads": 2,
                                 "linear_num_value_heads": 4, "linear_key_head_dim": 32, "linear_value_head_dim": 32}),
    "gpt_oss": ("gpt-oss", SLIDING | EXPERTS | {"num_local_experts": 4}),
    "qwen3_moe": ("Qwen3-MoE", EXPERTS | {"num_experts": 4, "moe_intermediate_size": 64}),
}  # fmt: skip
SIZES = {
    "hidden_size": 128, "intermediate_size": 128, "num_hidden_layers": 2, "num_attention_heads": 4,
    "num_key_value_heads": 2, "head_dim": 32, "max_position_embeddings": 2048, "tie_word_embeddings": True,
    "initializer_range": 0.1,
}  # fmt: skip
STEPS = 2
LIMIT = 1e-4  # nats


def write_model(family: str, folder: Path) -> None:
    """Random weights, with tokenizer and template of the built-in model."""
    tokenizer = AutoTokenizer.from_pretrained(resolve_model_path("builtin://tiny/hard"))
    ids = {f"{name}_token_id": getattr(tokenizer, f"{name}_token_id") for name in ("bos", "eos", "pad")}
    kind, special = CONFIG_MAPPING[family], FAMILIES[family][1]
    size = {"vocab_size": len(tokenizer)}
    if hasattr(kind(), "vocab_size_per_layer_input"):
        size["vocab_size_per_layer_input"] = len(tokenizer)
    torch.manual_seed(0)
    lm = AutoModelForCausalLM.from_config(kind(**(SIZES | size | ids | special)))
    lm.save_pretrained(folder)
    tokenizer.save_pretrained(folder)


def steps(family: str, engine: str) -> dict[str, Any]:
    """What two steps came to, or the reason why there were none."""
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        write_model(family, folder / "model")
        words = [
            sys.executable, "-m", "sdpo.main_sdpo", f"actor_rollout_ref.model.path={folder}/model",
            "task=programs_hard", "cluster=inline", f"actor_rollout_ref.rollout.name={engine}",
            "data.train_batch_size=4", "actor_rollout_ref.rollout.n=4", "data.max_prompt_length=128",
            "data.max_response_length=48", "actor_rollout_ref.actor.self_distillation.max_reprompt_len=320",
            "actor_rollout_ref.actor.self_distillation.distillation_topk=null", "actor_rollout_ref.actor.optim.lr=1e-3",
            f"trainer.total_training_steps={STEPS}", "trainer.logger=file", "trainer.test_freq=-1",
            "trainer.save_freq=-1", "trainer.export_hf=false", "trainer.best_metric=null",
            "trainer.val_before_train=false", f"trainer.default_local_dir={folder}/run",
        ]  # fmt: skip
        done = subprocess.run(words, capture_output=True, text=True)
        if done.returncode:
            return {"engine": engine, "reason": (done.stderr.strip().splitlines() or ["?"])[-1]}
        rows = [row for row in RunHistory.load(folder / "run").rows if "actor/grad_norm" in row]
        return {
            "engine": engine,
            "difference": [row["rollout/log_prob_diff_max"] for row in rows],
            "grad_norm": [row["actor/grad_norm"] for row in rows],
            "signal": [row.get("sdpo/signal_frac") for row in rows],
        }


def measure(family: str) -> dict[str, Any]:
    found = {"family": family, **steps(family, "vllm")}
    if "reason" in found:
        found = {"family": family, "vllm": found["reason"], **steps(family, "hf")}
    return found


def line(found: dict[str, Any]) -> str:
    if "reason" in found:
        reason = f"vllm: {found.get('vllm')}; {found['engine']}: {found['reason']}"
        return f"| {FAMILIES[found['family']][0]} (`{found['family']}`) | – | – | {reason} |"
    differences = ", ".join(f"{value:.1e}" for value in found["difference"])
    note = f"not in vLLM's CPU build: {found['vllm']}" if "vllm" in found else ""
    return f"| {FAMILIES[found['family']][0]} (`{found['family']}`) | {found['engine']} | {differences} | {note} |"


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("families", nargs="*", metavar="FAMILY", help=" | ".join(FAMILIES))
    options = parser.parse_args()
    found = []
    for family in options.families or FAMILIES:
        found.append(measure(family))
        print(line(found[-1]), flush=True)
    if not options.families:
        FIGURES.write_text(json.dumps(found, indent=1) + "\n")
        heading = "| family | engine | largest difference of a log-prob, nats: step 1, step 2 | |\n|---|---|---|---|\n"
        table = heading + "".join(line(one) + "\n" for one in found)
        before, rest = PAGE.read_text().split(START)
        PAGE.write_text(before + START + table + END + rest.split(END)[1])
    return 0 if all(max(one.get("difference", [1.0])) < LIMIT for one in found) else 1


if __name__ == "__main__":
    sys.exit(main())
