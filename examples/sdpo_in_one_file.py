"""SDPO in one file: reinforcement learning by self-distillation, with torch and transformers and nothing else.

    python examples/sdpo_in_one_file.py                  # the built-in tiny model, a few minutes on two cores
    python examples/sdpo_in_one_file.py --model FOLDER   # any chat model that transformers can load

The idea: sample several answers to a problem, let a grader say what is wrong with each, and show the *same* model the
problem again together with a right answer of a sibling and the grader's words. Knowing that, it judges the tokens it
wrote differently. Pull the model that did not know toward the model that did, token by token. This file is the
specification: the package does the same in parallel, faster, and a test holds the two to each other.
"""

from __future__ import annotations

import argparse
import copy
import math
import random
from dataclasses import dataclass
from pathlib import Path

import torch
from torch.nn.functional import log_softmax
from transformers import AutoModelForCausalLM, AutoTokenizer

MODEL = Path(__file__).resolve().parents[1] / "sdpo" / "models" / "tiny" / "weights" / "hard"


@dataclass
class Settings:
    alpha: float = 0.5  # 0: KL(teacher||student), 1: KL(student||teacher), between: generalized Jensen-Shannon
    topk: int | None = None  # compare only the student's k most likely tokens and one category for the rest
    ema: float = 0.05  # how far the teacher follows the student after each batch
    is_clip: float = 2.0  # cap of importance weights
    temperature: float = 1.0  # of sampling, and of every softmax in the loss
    max_new_tokens: int = 48
    clip_grad: float = 1.0


# ---- 1. The task: a sentence asks for the body of f(x) --------------------------------------------------------------

STEPS = [(f"add {c}", f"x = x + {c}", lambda x, c=c: x + c) for c in range(1, 10)]
STEPS += [(f"subtract {c}", f"x = x - {c}", lambda x, c=c: x - c) for c in range(1, 10)]
STEPS += [(f"multiply by {c}", f"x = x * {c}", lambda x, c=c: x * c) for c in range(2, 10)]
STEPS += [(f"make at least {c}", f"x = max(x, {c})", lambda x, c=c: max(x, c)) for c in range(1, 10)]
STEPS += [
    ("negate", "x = -x", lambda x: -x),
    ("absolute value", "x = abs(x)", abs),
    ("square", "x = x * x", lambda x: x * x),
]
RUN = {code: function for _, code, function in STEPS}
INPUTS = (-7, 0, 2, 9, 14, -20)  # hidden from the model


@dataclass(frozen=True)
class Problem:
    steps: tuple  # of STEPS

    @property
    def question(self) -> str:
        return "Write the body of f(x): " + ", then ".join(words for words, _, _ in self.steps)

    @property
    def solution(self) -> str:
        return "\n".join([code for _, code, _ in self.steps] + ["return x"])


def draw_problems(count: int, rng: random.Random, length: int = 3) -> list[Problem]:
    """Different programs whose answer depends on x."""
    found: dict[Problem, None] = {}
    while len(found) < count:
        problem = Problem(tuple(rng.sample(STEPS, length)))
        if len({trace(problem.solution, x)[0][-1] for x in INPUTS}) > 3:
            found[problem] = None
    return list(found)


# ---- 2. The grader: a reward, and words ------------------------------------------------------------------------------


def trace(program: str, x: int) -> tuple[list[int], bool]:
    """Values of x after each line, the input first, and whether the program returns. A language model wrote it: nothing
    is executed; a line that is no known step, or a huge number, ends it."""
    values = [x]
    for line in map(str.strip, program.strip().split("\n")):
        if line not in RUN or abs(values[-1]) > 10**9:
            return values, line == "return x"
        values.append(RUN[line](values[-1]))
    return values, False


def grade(problem: Problem, answer: str) -> tuple[float, str]:
    """(1, "") when the answer is right on every hidden input, else (0, what went wrong where it shows earliest)."""
    failures = []
    for x in INPUTS:
        wanted, (made, returned) = trace(problem.solution, x)[0], trace(answer, x)
        if not returned or made[-1] != wanted[-1]:
            step = next((i for i in range(1, len(wanted)) if made[i : i + 1] != wanted[i : i + 1]), len(wanted))
            failures.append((step, x, wanted, made, returned))
    if not failures:
        return 1.0, ""
    step, x, wanted, made, returned = min(failures)
    feedback = f"Wrong answer\nInput: {x}\nExpected: {wanted[-1]}\nGot: {made[-1] if returned else None}\n"
    if step == len(wanted):
        return 0.0, feedback + f"Nothing should follow step {step - 1}"
    yours = f", yours made {made[step]}" if step < len(made) else ", yours stopped" if returned else ""
    words = problem.steps[step - 1][0]
    return 0.0, feedback + f"Step {step} should be: {words}\nIt makes {wanted[step - 1]} into {wanted[step]}{yours}"


# ---- 3. The teacher's prompt -----------------------------------------------------------------------------------------


def reprompt(question: str, demonstration: str | None, feedback: str) -> str | None:
    """What the teacher is shown; None when there is nothing to tell it."""
    if demonstration is None and not feedback.strip():
        return None
    shown = f"\nCorrect solution:\n\n{demonstration}" if demonstration is not None else ""
    told = (
        "\nThe following is feedback from your unsuccessful earlier attempt:\n\n" + feedback if feedback.strip() else ""
    )
    return f"{question}{shown}{told}\n\nCorrectly solve the original question."


# ---- 4. Rows: a response with the student's and the teacher's prompt -------------------------------------------------


@dataclass
class Row:
    prompt_ids: list[int]
    teacher_prompt_ids: list[int]
    response_ids: list[int]  # the same tokens on both sides, never decoded and encoded again
    old_log_probs: list[float] | None = None  # at the start of the update; None: this is its first step
    sampler_log_probs: list[float] | None = None  # from the sampling engine; None: sampled by this very model


def chat_ids(tokenizer, text: str) -> list[int]:
    message = [{"role": "user", "content": text}]
    return tokenizer.apply_chat_template(message, add_generation_prompt=True, return_dict=False)


@torch.no_grad()
def sample(model, tokenizer, prompts: list[list[int]], settings: Settings, greedy: bool = False) -> list[list[int]]:
    """One response per prompt, with its end-of-sequence token if it wrote one."""
    batch = tokenizer.pad({"input_ids": prompts}, return_tensors="pt", padding_side="left")
    how = {"do_sample": True, "temperature": settings.temperature, "top_k": 0, "top_p": 1.0}
    model.eval()
    output = model.generate(
        **batch.to(model.device), **({"do_sample": False} if greedy else how), max_new_tokens=settings.max_new_tokens
    )
    model.train()
    responses = output[:, batch["input_ids"].shape[1] :].tolist()
    end = tokenizer.eos_token_id
    return [ids[: ids.index(end) + 1] if end in ids else ids for ids in responses]


def rows_of(problem: Problem, responses: list[list[int]], tokenizer) -> tuple[list[Row], list[float]]:
    """One row for every response of the group that the teacher can be told something about, and all rewards."""
    answers = [tokenizer.decode(ids, skip_special_tokens=True) for ids in responses]
    rewards, feedbacks = zip(*(grade(problem, answer) for answer in answers), strict=True)
    right, rows = [i for i, reward in enumerate(rewards) if reward >= 1 - 1e-9], []
    for i, response in enumerate(responses):
        sibling = next((answers[j] for j in right if j != i), None)  # the first right answer that is not its own
        text = reprompt(problem.question, sibling, feedbacks[i])
        if text is not None:
            rows.append(Row(chat_ids(tokenizer, problem.question), chat_ids(tokenizer, text), response))
    return rows, list(rewards)


# ---- 5. The loss -----------------------------------------------------------------------------------------------------


def response_log_probs(model, prompt_ids: list[int], response_ids: list[int], temperature: float) -> torch.Tensor:
    """[response tokens, vocabulary]: what the model says at each position *before* a response token."""
    logits = model(torch.tensor([prompt_ids + response_ids], device=model.device)).logits[0, len(prompt_ids) - 1 : -1]
    return log_softmax(logits.float() / temperature, -1)


def divergence(log_p: torch.Tensor, log_q: torch.Tensor, settings: Settings) -> torch.Tensor:
    """[tokens] between student log_p and teacher log_q. The ends of alpha are *not* the limits of the middle."""
    if settings.topk is not None:
        ids = log_p.topk(settings.topk, -1).indices
        log_p, log_q = (with_rest(side.gather(-1, ids)) for side in (log_p, log_q))
    alpha = settings.alpha
    if alpha == 0.0:
        return kl(log_q, log_p)
    if alpha == 1.0:
        return kl(log_p, log_q)
    log_m = torch.logaddexp(log_p + math.log(1 - alpha), log_q + math.log(alpha))
    return alpha * kl(log_q, log_m) + (1 - alpha) * kl(log_p, log_m)


def kl(log_a: torch.Tensor, log_b: torch.Tensor) -> torch.Tensor:
    return (log_a.exp() * (log_a - log_b)).sum(-1)


def with_rest(log_probs: torch.Tensor) -> torch.Tensor:
    """Appends one category for everything outside the top-k."""
    inside = log_probs.logsumexp(-1, keepdim=True).clamp(max=-1e-7)
    return torch.cat([log_probs, torch.log(-torch.expm1(inside))], -1)


def capped_ratio(log_a: torch.Tensor, log_b: torch.Tensor, cap: float) -> torch.Tensor:
    return (log_a - log_b).detach().clamp(-20, 20).exp().clamp(max=cap)


def row_loss(student, teacher, row: Row, settings: Settings) -> torch.Tensor:
    """Sum over the response's tokens."""
    log_p = response_log_probs(student, row.prompt_ids, row.response_ids, settings.temperature)
    with torch.no_grad():
        log_q = response_log_probs(teacher, row.teacher_prompt_ids, row.response_ids, settings.temperature)
    token_losses = divergence(log_p, log_q, settings)
    own = log_p.gather(-1, torch.tensor(row.response_ids, device=log_p.device)[:, None])[:, 0]
    old = own if row.old_log_probs is None else torch.tensor(row.old_log_probs, device=own.device)
    token_losses = token_losses * capped_ratio(own, old, settings.is_clip)
    if row.sampler_log_probs is not None:
        sampler = torch.tensor(row.sampler_log_probs, device=own.device)
        token_losses = token_losses * capped_ratio(old, sampler, settings.is_clip)
    return token_losses.sum()


# ---- 6. One training step --------------------------------------------------------------------------------------------


def training_step(student, teacher, optimizer, rows: list[Row], settings: Settings) -> tuple[float, float]:
    """One batch: mean over the tokens of all rows, an optimizer step, a step of the teacher (of several mini-batches:
    after the last). Returns loss and gradient norm."""
    optimizer.zero_grad()
    tokens = sum(len(row.response_ids) for row in rows)
    total = 0.0
    for row in rows:
        loss = row_loss(student, teacher, row, settings) / tokens
        loss.backward()
        total += loss.item()
    norm = torch.nn.utils.clip_grad_norm_(student.parameters(), settings.clip_grad)
    if torch.isfinite(norm):
        optimizer.step()
        follow(teacher, student, settings.ema)
    return total, norm.item()


@torch.no_grad()
def follow(teacher, student, rate: float) -> None:
    """The teacher is a slow average of the student: teacher <- (1 - rate) teacher + rate student."""
    for slow, fast in zip(teacher.parameters(), student.parameters(), strict=True):
        slow.lerp_(fast, rate)


# ---- 7. The loop -----------------------------------------------------------------------------------------------------


def accuracy(model, tokenizer, problems: list[Problem], settings: Settings) -> float:
    responses = sample(model, tokenizer, [chat_ids(tokenizer, p.question) for p in problems], settings, greedy=True)
    answers = (tokenizer.decode(ids, skip_special_tokens=True) for ids in responses)
    return sum(grade(p, answer)[0] for p, answer in zip(problems, answers, strict=True)) / len(problems)


def main(argv: list[str] | None = None) -> list[float]:
    """Returns the held-out accuracy before and after."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--model", default=str(MODEL))
    for name, kind, default in (("steps", int, 40), ("prompts", int, 8), ("group", int, 8), ("held-out", int, 100)):
        parser.add_argument(f"--{name}", type=kind, default=default)
    parser.add_argument("--lr", type=float, default=1e-3)
    parser.add_argument("--seed", type=int, default=0)
    options, settings = parser.parse_args(argv), Settings()
    torch.manual_seed(options.seed)
    rng = random.Random(options.seed)
    tokenizer = AutoTokenizer.from_pretrained(options.model)
    student = AutoModelForCausalLM.from_pretrained(options.model, dtype=torch.float32)
    teacher = copy.deepcopy(student).eval().requires_grad_(False)
    optimizer = torch.optim.AdamW(student.parameters(), lr=options.lr)
    problems = draw_problems(1000 + options.held_out, rng)
    held_out, problems = problems[: options.held_out], problems[options.held_out :]
    before = accuracy(student, tokenizer, held_out, settings)
    print(f"held-out accuracy {before:.2f}", flush=True)
    for step in range(1, options.steps + 1):
        rows, rewards = [], []
        for problem in rng.sample(problems, options.prompts):
            prompts = [chat_ids(tokenizer, problem.question)] * options.group
            new_rows, new_rewards = rows_of(problem, sample(student, tokenizer, prompts, settings), tokenizer)
            rows, rewards = rows + new_rows, rewards + new_rewards
        loss, norm = training_step(student, teacher, optimizer, rows, settings) if rows else (0.0, 0.0)
        mean = sum(rewards) / len(rewards)
        print(f"step {step}: reward {mean:.2f}, loss {loss:.4f}, gradient {norm:.3f}, rows {len(rows)}", flush=True)
    after = accuracy(student, tokenizer, held_out, settings)
    print(f"held-out accuracy {before:.2f} -> {after:.2f}")
    return [before, after]


if __name__ == "__main__":
    main()
