"""A task of your own in one file: its problems, its grader, and the run that trains the embedded model on it.

    python examples/custom_task.py [OVERRIDES...]

A sentence asks for three steps, "triple, then subtract 4, then absolute value", and the answer has to be these steps,
one a line, in that order: no program is run to judge it. The embedded model seldom gets all three right. The feedback
names the step that belongs in the first wrong line, and self-distillation turns that into a habit: held-out accuracy
went from 0.15 to 0.81 in the 20 steps, half a minute. Feedback has to be such that the model can use it: without the
lines Input, Expected and Got, which this model knows from its pre-training, accuracy fell to 0.
"""

from __future__ import annotations

import json
import random
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from sdpo import main_sdpo
from sdpo.embedded.programs import ALL_STEPS, draw_program, run_steps, sentence

DATA_SOURCE = "written_steps"
FOLDER = Path("runs/custom_task")
CODES = {step.code: step for step in ALL_STEPS}
PARTS = {"train": 500, "test": 50}
SETTINGS = [
    "task=custom",
    f"data.train_files=[{FOLDER}/train.jsonl]",
    f"data.val_files=[{FOLDER}/test.jsonl]",
    f"custom_reward_function.path={Path(__file__).resolve()}",
    "custom_reward_function.name=grade",
    "trainer.total_training_steps=20",
    "trainer.project_name=custom_task",
    "trainer.experiment_name=run",
    "trainer.export_hf=false",
]


def problems() -> Iterator[tuple[str, dict[str, Any]]]:
    """(part, row) in the schema of docs/data.md. No program is drawn twice, so the parts share none."""
    rng, seen = random.Random(DATA_SOURCE), set()
    for part, size in PARTS.items():
        while size:
            steps = draw_program(rng, 3)
            if steps in seen:
                continue
            seen.add(steps)
            size -= 1
            truth = {"steps": [step.code for step in steps], "says": [step.phrases[0] for step in steps], "input": 5}
            yield (
                part,
                {
                    "data_source": DATA_SOURCE,
                    "prompt": [{"role": "user", "content": sentence(steps, rng)}],
                    "reward_model": {"style": "rule", "ground_truth": truth},
                },
            )


def grade(data_source: str, solution_str: str, ground_truth: Any, extra_info: dict[str, Any]) -> dict[str, Any]:
    """Compares line by line; known lines are replayed, nothing that the model wrote is run. See
    examples/custom_grader.py for the signature."""
    lines = [line.strip() for line in solution_str.strip().splitlines()]
    wanted = [*ground_truth["steps"], "return x"]
    if lines == wanted:
        return {"reward": 1.0, "feedback": ""}
    place = next((i for i, pair in enumerate(zip(lines, wanted)) if pair[0] != pair[1]), min(len(lines), len(wanted)))
    says = [*ground_truth["says"], "return x", "nothing more"][place]
    feedback = f"Wrong answer\n{replayed(lines, ground_truth)}Step {place + 1} should be: {says}"
    return {"reward": 0.0, "feedback": feedback, "passed_fraction": min(place, len(wanted)) / len(wanted)}


def replayed(lines: list[str], ground_truth: Any) -> str:
    """What the right steps and the answer's make of the input; "" when a line is no step."""
    steps = [CODES.get(line) for line in lines if line != "return x"]
    if None in steps:
        return ""
    x, right = ground_truth["input"], [CODES[code] for code in ground_truth["steps"]]
    return f"Input: {x}\nExpected: {run_steps(right, x)[-1]}\nGot: {run_steps(steps, x)[-1]}\n"


def main(overrides: list[str]) -> int:
    FOLDER.mkdir(parents=True, exist_ok=True)
    parts: dict[str, list[str]] = {part: [] for part in PARTS}
    for part, row in problems():
        parts[part].append(json.dumps(row))
    for part, lines in parts.items():
        (FOLDER / f"{part}.jsonl").write_text("\n".join(lines) + "\n", encoding="utf-8")
    return main_sdpo.main([*SETTINGS, *overrides])


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
