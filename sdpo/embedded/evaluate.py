"""Measures the built-in model: `python -m sdpo.embedded.evaluate --setting hard`.

Sampled at temperature 1 on held-out problems: the student on one, two and three steps; the teacher for each thing it
can be told, about the student's own answers; the controls, where it is told the thing of another problem, or nothing.
"""

from __future__ import annotations

import argparse
import json
import random
import time
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

import torch

from sdpo.embedded.attempts import replayed_grade, wrong_answer
from sdpo.embedded.corpus import reprompt_text
from sdpo.embedded.programs import body, draw_program, make_prompt, problems, steps_of
from sdpo.records import Prompt

if TYPE_CHECKING:
    from transformers import LlamaForCausalLM, PreTrainedTokenizerFast

GROUP = 8  # answers per problem for the share of mixed groups
ANSWER_TOKENS = 48
BATCH = 400


@torch.no_grad()
def sample_answers(
    model: LlamaForCausalLM, tokenizer: PreTrainedTokenizerFast, users: Sequence[str], seed: int = 0
) -> list[tuple[str, bool]]:
    """One answer at temperature 1 for each user message, and whether it was cut off."""
    torch.manual_seed(seed)
    answers: list[tuple[str, bool]] = [("", False)] * len(users)
    prompts = [
        tokenizer.apply_chat_template([{"role": "user", "content": user}], add_generation_prompt=True, tokenize=False)
        for user in users
    ]
    order = sorted(range(len(users)), key=lambda i: len(prompts[i]))
    for start in range(0, len(order), BATCH):
        rows = order[start : start + BATCH]
        inputs = tokenizer([prompts[i] for i in rows], return_tensors="pt", padding=True, add_special_tokens=False)
        output = model.generate(
            **inputs, do_sample=True, temperature=1.0, top_k=0, top_p=1.0, max_new_tokens=ANSWER_TOKENS
        )
        new = output[:, inputs["input_ids"].shape[1] :]
        for i, ids in zip(rows, new, strict=True):
            cut = not bool((ids == tokenizer.eos_token_id).any())
            answers[i] = (tokenizer.decode(ids, skip_special_tokens=True), cut)
    return answers


def is_right(prompt: Prompt, answer: tuple[str, bool]) -> bool:
    """Right on all hidden inputs. An answer with a line that is no step of the task counts as wrong."""
    grade = replayed_grade(prompt, *answer)
    return grade is not None and grade.reward == 1.0


def accuracy(prompts: Sequence[Prompt], answers: Sequence[tuple[str, bool]]) -> float:
    return sum(map(is_right, prompts, answers)) / len(prompts)


def shorter_problems(length: int, count: int) -> list[Prompt]:
    rng = random.Random(f"evaluate-{length}")
    return [make_prompt(f"short-{i}", draw_program(rng, length), rng) for i in range(count)]


def _question(prompt: Prompt) -> str:
    return prompt.messages[0]["content"]


def measure(
    model: LlamaForCausalLM, tokenizer: PreTrainedTokenizerFast, count: int = 200, seed: int = 0
) -> dict[str, float]:
    """All accuracies of the table by name, over `count` held-out problems (at most 200)."""
    model.eval()
    prompts = problems("hard", "test")[:count]

    def ask(users: Sequence[str]) -> list[tuple[str, bool]]:
        return sample_answers(model, tokenizer, users, seed)

    result: dict[str, float] = {}
    for length in (1, 2):
        short = shorter_problems(length, count)
        result[f"student, {length} steps"] = accuracy(short, ask([_question(p) for p in short]))
    answers = ask([_question(p) for p in prompts for _ in range(GROUP)])
    right = [is_right(prompts[i // GROUP], answer) for i, answer in enumerate(answers)]
    groups = [sum(right[i : i + GROUP]) for i in range(0, len(right), GROUP)]
    result["student, 3 steps"] = sum(right) / len(right)
    result["mixed groups of 8"] = sum(0 < passed < GROUP for passed in groups) / len(groups)
    failures = {i // GROUP: answer for i, answer in enumerate(answers) if not right[i]}
    result |= _teacher(prompts, failures, ask)
    return {name: round(value, 4) for name, value in result.items()}


def _feedback(prompt: Prompt, answer: tuple[str, bool] | None) -> str:
    grade = replayed_grade(prompt, *answer) if answer else None
    if grade is None:
        grade = wrong_answer(prompt, steps_of(prompt), random.Random(prompt.uid))[1]
    return grade.feedback


def _teacher(prompts, failures, ask) -> dict[str, float]:
    """Accuracies in the reprompt forms; feedback is about the student's own failures."""
    questions = [_question(prompt) for prompt in prompts]
    solutions = [body(steps_of(prompt)) for prompt in prompts]
    feedbacks = [_feedback(prompt, failures.get(i)) for i, prompt in enumerate(prompts)]
    nothing: list[str | None] = [None] * len(prompts)
    other_solutions, other_feedbacks = solutions[1:] + solutions[:1], feedbacks[1:] + feedbacks[:1]
    contexts: dict[str, tuple[Sequence[str | None], Sequence[str | None]]] = {
        "teacher, solution": (solutions, nothing),
        "teacher, feedback": (nothing, feedbacks),
        "teacher, solution and feedback": (solutions, feedbacks),
        "control, another problem's solution": (other_solutions, nothing),
        "control, another problem's feedback": (nothing, other_feedbacks),
        "control, both of another problem": (other_solutions, other_feedbacks),
        "control, only the heading of the feedback": (nothing, ["Wrong answer"] * len(prompts)),
        "control, reprompt that tells nothing": (nothing, nothing),
    }
    return {
        name: accuracy(prompts, ask([reprompt_text(*row) for row in zip(questions, shown, told, strict=True)]))
        for name, (shown, told) in contexts.items()
    }


def main(arguments: list[str] | None = None) -> None:
    from transformers import AutoModelForCausalLM, AutoTokenizer

    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--setting", choices=("hard", "easy", "rare", "unseen"), default="hard")
    parser.add_argument("--model", type=Path, help="another folder")
    parser.add_argument("--count", type=int, default=200, help="held-out problems")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--json", action="store_true")
    options = parser.parse_args(arguments)
    torch.set_num_threads(2)
    folder = options.model or Path(__file__).parent / "weights" / options.setting
    tokenizer = AutoTokenizer.from_pretrained(folder, padding_side="left")
    model = AutoModelForCausalLM.from_pretrained(folder, dtype=torch.float32)
    started = time.monotonic()
    result = measure(model, tokenizer, options.count, options.seed)
    if options.json:
        print(json.dumps(result, indent=2))
        return
    for name, value in result.items():
        print(f"{name:45s} {value:.3f}")
    print(f"{time.monotonic() - started:.0f} s", flush=True)


if __name__ == "__main__":
    main()
