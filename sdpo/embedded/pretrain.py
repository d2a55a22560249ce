"""Makes the built-in model: `python -m sdpo.embedded.pretrain --setting hard --out DIR`, minutes on two cores.

The folder is an ordinary Hugging Face one; `pretrain.json` beside the weights records seed, steps, mix and accuracies.
"""

from __future__ import annotations

import argparse
import dataclasses
import json
import math
import time
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch

from sdpo.embedded.architecture import build_model, round_to_bfloat16, save_model
from sdpo.embedded.corpus import FIRST_PHASE, SECOND_PHASE, Corpus, Mix, Text
from sdpo.embedded.evaluate import measure
from sdpo.embedded.tokenizer import save_tokenizer

if TYPE_CHECKING:
    from transformers import LlamaForCausalLM, PreTrainedTokenizerFast

BATCHES_PER_BUCKET = 8  # texts drawn together and sorted by length, so that little is padded


@dataclasses.dataclass(frozen=True)
class Phase:
    """How long and how fast: Muon for the matrices, AdamW for embedding and norms, linear warm-up, cosine to a tenth.

    Muon needs a quarter of AdamW's steps here. Only the answers count in the loss: in a loss on what the user says, the
    sentence followed by a demonstration would teach what `hard` must not know.
    """

    steps: int
    muon_lr: float
    adamw_lr: float
    warmup: int
    batch: int = 64
    muon_momentum: float = 0.95
    adamw_betas: tuple[float, float] = (0.9, 0.98)
    weight_decay: float = 0.01
    clip_grad: float = 1.0
    kept: float = 1.0  # share of the way, from the weights before the phase to those behind it, that the model goes


FIRST = Phase(steps=1200, muon_lr=0.02, adamw_lr=3e-3, warmup=30)  # the same for every setting
_SECOND = Phase(steps=600, muon_lr=0.015, adamw_lr=2e-3, warmup=20)
# Makes the setting. One answer of `rare` in a hundred is right; at 0.3 of the way to `hard` it would be one in 400, at
# 0.5 one in ten. (Fewer sentences of three steps make it one in 400 or one in ten, for a single sentence more.)
SECOND = {"hard": _SECOND, "easy": _SECOND, "rare": dataclasses.replace(_SECOND, kept=0.35)}
SECOND_SEED = 77  # added to the seed: other texts than in the first phase


def encode(tokenizer: PreTrainedTokenizerFast, text: Text) -> tuple[list[int], int]:
    """Ids of a conversation, with the end token, and how many of them are the prompt."""
    messages = [{"role": "user", "content": text.user}]
    prompt = tokenizer.apply_chat_template(messages, add_generation_prompt=True, tokenize=False)
    prompt_ids = tokenizer.encode(prompt, add_special_tokens=False)
    answer_ids = tokenizer.encode(text.answer, add_special_tokens=False)
    return [*prompt_ids, *answer_ids, tokenizer.eos_token_id], len(prompt_ids)


def batches(tokenizer: PreTrainedTokenizerFast, corpus: Corpus, batch: int) -> Iterator[list[tuple[list[int], int]]]:
    """Endless batches of texts of like length, their order shuffled."""
    order = torch.Generator().manual_seed(0)
    while True:
        rows = [encode(tokenizer, corpus.draw()) for _ in range(batch * BATCHES_PER_BUCKET)]
        rows.sort(key=lambda row: len(row[0]))
        for i in torch.randperm(BATCHES_PER_BUCKET, generator=order).tolist():
            yield rows[i * batch : (i + 1) * batch]


def batch_loss(model: LlamaForCausalLM, rows: list[tuple[list[int], int]]) -> torch.Tensor:
    """Mean next-token loss over the answers. Padded on the right, so causality hides the padding."""
    longest = max(len(ids) for ids, _ in rows)
    ids = torch.zeros(len(rows), longest, dtype=torch.long)
    in_answer = torch.zeros(len(rows), longest, dtype=torch.bool)
    for i, (row, prompt_length) in enumerate(rows):
        ids[i, : len(row)] = torch.tensor(row)
        in_answer[i, prompt_length : len(row)] = True
    hidden = model.model(input_ids=ids[:, :-1], use_cache=False).last_hidden_state
    logits = model.lm_head(hidden[in_answer[:, 1:]])
    return torch.nn.functional.cross_entropy(logits, ids[in_answer])


def optimizers(model: LlamaForCausalLM, phase: Phase) -> list[tuple[torch.optim.Optimizer, float]]:
    """Each optimizer with its peak learning rate."""
    matrices = [p for name, p in model.named_parameters() if p.ndim == 2 and "embed" not in name]
    chosen = {id(p) for p in matrices}
    others = [p for p in model.parameters() if id(p) not in chosen]
    muon = torch.optim.Muon(matrices, lr=phase.muon_lr, momentum=phase.muon_momentum, weight_decay=phase.weight_decay)
    adamw = torch.optim.AdamW(others, lr=phase.adamw_lr, betas=phase.adamw_betas, weight_decay=0.0)
    return [(muon, phase.muon_lr), (adamw, phase.adamw_lr)]


def schedule(step: int, phase: Phase) -> float:
    """Share of the learning rate at a step."""
    if step < phase.warmup:
        return (step + 1) / phase.warmup
    progress = (step - phase.warmup) / max(1, phase.steps - phase.warmup)
    return 0.1 + 0.45 * (1 + math.cos(math.pi * progress))


def train(model: LlamaForCausalLM, tokenizer: PreTrainedTokenizerFast, mix: Mix, phase: Phase, seed: int) -> None:
    """Trains the model in place."""
    model.train()
    pairs = optimizers(model, phase)
    source = batches(tokenizer, Corpus(mix, seed), phase.batch)
    losses, started = [], time.monotonic()
    for step in range(phase.steps):
        model.zero_grad()
        loss = batch_loss(model, next(source))
        loss.backward()
        torch.nn.utils.clip_grad_norm_(model.parameters(), phase.clip_grad)
        for optimizer, peak in pairs:
            for group in optimizer.param_groups:
                group["lr"] = peak * schedule(step, phase)
            optimizer.step()
        losses.append(loss.item())
        if step % 50 == 49:
            recent = sum(losses[-50:]) / 50
            print(f"step {step + 1}/{phase.steps}  loss {recent:.4f}  {time.monotonic() - started:.0f} s", flush=True)


@torch.no_grad()
def go_back(model: LlamaForCausalLM, before: dict[str, torch.Tensor], kept: float) -> None:
    """Keeps a share of what a phase changed, in place."""
    round_to_bfloat16(model)
    for name, weight in model.named_parameters():
        weight.copy_(before[name] + kept * (weight - before[name]))


def first_phase(tokenizer: PreTrainedTokenizerFast, seed: int, folder: Path | None) -> LlamaForCausalLM:
    """The model after the first phase: read from `folder` if it is there, else made (and kept there, if given)."""
    from transformers import LlamaForCausalLM

    if folder is not None and (folder / "config.json").exists():
        return LlamaForCausalLM.from_pretrained(folder, dtype=torch.float32)
    torch.manual_seed(seed)
    model = build_model(tokenizer)
    train(model, tokenizer, FIRST_PHASE, FIRST, seed)
    round_to_bfloat16(model)  # so that a kept first phase gives the same second one
    if folder is not None:
        save_model(model, folder)
        save_tokenizer(folder)
    return model


def main(arguments: list[str] | None = None) -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--setting", choices=(*SECOND, "unseen"), default="hard", help="unseen: phase one alone")
    parser.add_argument("--out", type=Path, required=True, help="folder to write")
    parser.add_argument("--first", type=Path, help="folder that keeps the first phase, which the settings share")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--threads", type=int, default=2)
    options = parser.parse_args(arguments)
    torch.set_num_threads(options.threads)
    options.out.mkdir(parents=True, exist_ok=True)
    tokenizer = save_tokenizer(options.out)
    started = time.monotonic()
    model = first_phase(tokenizer, options.seed, options.first)
    phases = [(FIRST_PHASE, FIRST)]
    if options.setting in SECOND_PHASE:
        phases.append((SECOND_PHASE[options.setting], SECOND[options.setting]))
        before = {name: weight.detach().clone() for name, weight in model.named_parameters()}
        train(model, tokenizer, *phases[1], options.seed + SECOND_SEED)
        go_back(model, before, phases[1][1].kept)
        round_to_bfloat16(model)
    save_model(model, options.out)
    record: dict[str, Any] = {
        "setting": options.setting,
        "seed": options.seed,
        "phases": [{"mix": dataclasses.asdict(mix), "phase": dataclasses.asdict(phase)} for mix, phase in phases],
        "parameters": sum(p.numel() for p in model.parameters()),
        "vocabulary": len(tokenizer),
        "seconds": round(time.monotonic() - started),
        "torch": torch.__version__,
    }
    record["accuracies"] = measure(model, tokenizer)
    (options.out / "pretrain.json").write_text(json.dumps(record, indent=2) + "\n")
    print(json.dumps(record["accuracies"], indent=2))


if __name__ == "__main__":
    main()
