"""The same step with TRL's SDPOTrainer, for `step.py --trl`. Runs under an interpreter that has trl 1.16.

TRL's feedback is a column of the data set: all responses to a prompt get the same one, here as there. Rewards are 0.
"""

from __future__ import annotations

import os
import sys
import time

os.environ.setdefault("TRL_EXPERIMENTAL_SILENCE", "1")

import step_case as case
import torch
from transformers import AutoModelForCausalLM, AutoTokenizer, TrainerCallback
from trl.experimental.sdpo import SDPOConfig, SDPOTrainer


class TakeTurns(TrainerCallback):
    """Waits for a line on standard input before each step. A step lasts from there to the next wait, so that whatever
    the trainer does at its end counts."""

    def __init__(self, clock: case.PhaseClock) -> None:
        self.clock, self.start = clock, None

    def on_step_begin(self, args, state, control, **kwargs):
        if self.start is None:
            case.say({"ready": True})
        else:
            seconds = time.perf_counter() - self.start
            case.say({"seconds": seconds, "phases": self.clock.take(), "peak_rss": case.resident("VmHWM")})
        if not sys.stdin.readline():
            os._exit(0)  # the trainer has no way to stop before a step
        self.clock.take()
        self.start = time.perf_counter()


def settings(folder: str) -> SDPOConfig:
    return SDPOConfig(
        output_dir=folder,
        per_device_train_batch_size=len(case.PROMPTS) * case.RESPONSES,
        num_generations=case.RESPONSES,
        max_completion_length=case.RESPONSE_TOKENS,
        generation_kwargs={"min_new_tokens": case.RESPONSE_TOKENS},
        temperature=1.0,
        distillation_mode="topk_logits",
        distillation_topk=case.TOP_K,
        distillation_add_tail=True,
        distillation_alpha=case.ALPHA,
        teacher_model_kind="ema",
        teacher_update_rate=case.RATE,
        include_environment_feedback=True,
        learning_rate=case.LEARNING_RATE,
        lr_scheduler_type="constant",
        gradient_checkpointing=False,  # faster; with it TRL needs less memory
        bf16=False,
        use_cpu=True,
        max_steps=10_000,
        logging_steps=10_000,
        save_strategy="no",
        report_to=[],
        disable_tqdm=True,
        shuffle_dataset=False,
    )


def main() -> None:
    options = case.worker_options(__doc__)
    from datasets import Dataset

    torch.set_num_threads(options.threads)
    rows = {
        "prompt": [[{"role": "user", "content": prompt}] for prompt in case.PROMPTS],
        "privileged_context": list(case.FEEDBACK),
    }
    clock = case.PhaseClock()
    trainer = SDPOTrainer(
        model=AutoModelForCausalLM.from_pretrained(options.model, dtype=torch.float32),
        reward_funcs=lambda completions, **_: [0.0] * len(completions),
        args=settings(os.devnull + "-unused"),
        train_dataset=Dataset.from_dict(rows),
        processing_class=AutoTokenizer.from_pretrained(options.model, padding_side="left"),
        callbacks=[TakeTurns(clock)],
    )
    clock.wrap(trainer, "_generate_transformers", "rollout")
    clock.wrap(trainer, "compute_loss", "loss and forward passes")
    clock.wrap(trainer.accelerator, "backward", "backward")
    trainer.train()


if __name__ == "__main__":
    main()
