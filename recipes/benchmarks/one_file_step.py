"""The same step with examples/sdpo_in_one_file.py, for `step.py --one-file`: what the mathematics cost when nothing is
shared, packed or fused."""

from __future__ import annotations

import copy
import sys
import time
from functools import partial
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[2] / "examples"))

import sdpo_in_one_file as example
import step_case as case
import torch
from transformers import AutoModelForCausalLM, AutoTokenizer


class Trainer:
    def __init__(self, model: str) -> None:
        self.tokenizer = AutoTokenizer.from_pretrained(model, padding_side="left")
        self.student = AutoModelForCausalLM.from_pretrained(model, dtype=torch.float32)
        self.teacher = copy.deepcopy(self.student).eval().requires_grad_(False)
        self.student.generate = partial(self.student.generate, min_new_tokens=case.RESPONSE_TOKENS)
        self.optimizer = torch.optim.AdamW(self.student.parameters(), lr=case.LEARNING_RATE)
        self.settings = example.Settings(case.ALPHA, case.TOP_K, case.RATE, max_new_tokens=case.RESPONSE_TOKENS)
        self.clock = case.PhaseClock()

    def step(self) -> dict:
        self.clock.take()
        start = time.perf_counter()
        prompts = [example.chat_ids(self.tokenizer, prompt) for prompt in case.PROMPTS for _ in range(case.RESPONSES)]
        with self.clock("rollout"):
            responses = example.sample(self.student, self.tokenizer, prompts, self.settings)
        told = [
            example.chat_ids(self.tokenizer, example.reprompt(prompt, None, feedback))
            for prompt, feedback in zip(case.PROMPTS, case.FEEDBACK, strict=True)
            for _ in range(case.RESPONSES)
        ]
        rows = [example.Row(*row) for row in zip(prompts, told, responses, strict=True)]
        with self.clock("update"):
            example.training_step(self.student, self.teacher, self.optimizer, rows, self.settings)
            self.optimizer.zero_grad(set_to_none=True)
        return {
            "seconds": time.perf_counter() - start,
            "phases": self.clock.take(),
            "peak_rss": case.resident("VmHWM"),
        }


def main() -> None:
    options = case.worker_options(__doc__)
    torch.set_num_threads(options.threads)
    case.serve(Trainer(options.model).step)


if __name__ == "__main__":
    main()
