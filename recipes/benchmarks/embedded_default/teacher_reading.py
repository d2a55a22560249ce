"""How well student and teacher still read a reprompt, along the checkpoints of a run of the embedded task.

    python recipes/benchmarks/embedded_default/teacher_reading.py RUN_FOLDER [--problems 200]

For each checkpoint and network: the probability of the intended program's whole text, mean over held-out problems,
asked directly, shown the solution, and shown feedback on a wrong answer; in brackets the entropy in nats per token.
Writes `teacher_reading.json` into the folder. Runs keep checkpoints with `trainer.max_actor_ckpt_to_keep=null`.
"""

from __future__ import annotations

import argparse
import json
import random
import sys
import tempfile
from pathlib import Path
from typing import Any

import torch
import yaml
from torch.distributed.checkpoint.format_utils import dcp_to_torch_save
from transformers import AutoModelForCausalLM, AutoTokenizer

from sdpo.embedded.attempts import wrong_answer
from sdpo.embedded.corpus import Text, reprompt_text
from sdpo.embedded.pretrain import encode
from sdpo.embedded.programs import body, problems, steps_of
from sdpo.models.load import resolve_model_path

Row = tuple[list[int], int]  # ids of a conversation, and how many of them are the prompt


def main(argv: list[str] | None = None) -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("run", type=Path)
    parser.add_argument("--problems", type=int, default=200, help="held-out problems")
    options = parser.parse_args(argv)
    config = yaml.safe_load((options.run / "resolved_config.yaml").read_text())
    folder = resolve_model_path(config["actor_rollout_ref"]["model"]["path"])
    model = AutoModelForCausalLM.from_pretrained(folder, dtype=torch.float32).eval()
    texts = contexts(AutoTokenizer.from_pretrained(folder), options.problems)
    found = [{"step": 0, "network": "both", **measure(model, texts)}]
    print(line(found[0]), flush=True)
    for checkpoint in sorted(options.run.glob("checkpoints/step_*"), key=lambda path: int(path.name[5:])):
        for network, weights in networks(checkpoint).items():
            model.load_state_dict(weights, strict=False)  # tied weights are stored once
            found.append({"step": int(checkpoint.name[5:]), "network": network, **measure(model, texts)})
            print(line(found[-1]), flush=True)
    (options.run / "teacher_reading.json").write_text(json.dumps(found, indent=1) + "\n")


def contexts(tokenizer: Any, count: int) -> dict[str, list[Row]]:
    """The intended program behind each thing that the model can be told."""
    rng, rows = random.Random(0), {"direct": [], "solution": [], "feedback": []}
    for prompt in problems("hard", "test")[:count]:
        question, answer = prompt.messages[0]["content"], body(steps_of(prompt))
        feedback = wrong_answer(prompt, steps_of(prompt), rng)[1].feedback
        users = (question, reprompt_text(question, answer, None), reprompt_text(question, None, feedback))
        for name, user in zip(rows, users, strict=True):
            rows[name].append(encode(tokenizer, Text(name, user, answer)))
    return rows


def networks(checkpoint: Path) -> dict[str, dict[str, torch.Tensor]]:
    """Weights of the student and, where it has its own, the teacher, under the model's own names."""
    with tempfile.TemporaryDirectory() as place:
        dcp_to_torch_save(str(checkpoint / "actor"), f"{place}/state.pt")
        state = torch.load(f"{place}/state.pt", weights_only=False)
    names = [name for name in ("student", "teacher") if name in state]
    return {name: {key.removeprefix("lm."): value for key, value in state[name].items()} for name in names}


@torch.no_grad()
def measure(model: Any, texts: dict[str, list[Row]]) -> dict[str, float]:
    result = {}
    for name, rows in texts.items():
        longest = max(len(ids) for ids, _ in rows)
        batch = torch.zeros(len(rows), longest, dtype=torch.long)
        for i, (ids, _) in enumerate(rows):
            batch[i, : len(ids)] = torch.tensor(ids)
        log_probs = model(batch).logits.log_softmax(-1)
        whole, entropies = [], []
        for row, (ids, prompt) in zip(log_probs, rows, strict=True):
            at = row[prompt - 1 : len(ids) - 1]
            whole.append(at.gather(-1, torch.tensor(ids[prompt:])[:, None]).sum().exp())
            entropies.append(-(at.exp() * at).sum(-1))
        result[name] = float(torch.stack(whole).mean())
        result[f"{name}_entropy"] = float(torch.cat(entropies).mean())
    return {name: round(value, 4) for name, value in result.items()}


def line(row: dict[str, Any]) -> str:
    values = (f"{name} {row[name]:.3f} ({row[f'{name}_entropy']:.4f})" for name in ("direct", "solution", "feedback"))
    return f"step {row['step']:4d} {row['network']:8s} " + "  ".join(values)


if __name__ == "__main__":
    sys.exit(main())
