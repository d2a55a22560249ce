"""A task of your own in one file: its problems, its grader, and the run that trains the embedded model on it.

    python examples/custom_task.py [OVERRIDES...]

A sentence asks for three steps, "triple, then subtract 4, then absolute value", and the answer has to be these steps,
one a line, in that order: no program is run to judge it. The embedded model seldom gets all three right. The feedback
names the step that belongs in the first wrong line, and self-distillation turns that into a habit.
"""

from __future__ import annotations

import json
import random
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from sdpo import main_sdpo
from sdpo.data.programs import draw_program, sentence

DATA_SOURCE = "written_steps"
FOLDER = Path("runs/custom_task")
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
            truth = [{"code": step.code, "says": step.phrases[0]} for step in steps]
            yield (
                part,
                {
                    "data_source": DATA_SOURCE,
                    "prompt": [{"role": "user", "content": sentence(steps, rng)}],
                    "reward_model": {"style": "rule", "ground_truth": truth},
                },
            )


def grade(data_source: str, solution_str: str, ground_truth: Any, extra_info: dict[str, Any]) -> dict[str, Any]:
    """Compares line by line; nothing that the model wrote is run. See examples/custom_grader.py for the signature."""
    lines = [line.strip() for line in solution_str.strip().splitlines()]
    wanted = [step["code"] for step in ground_truth] + ["return x"]
    for place, (line, code) in enumerate(zip(lines + [""] * len(wanted), wanted), 1):
        if line != code:
            says = ground_truth[place - 1]["says"] if place <= len(ground_truth) else "return x"
            feedback = f"Wrong answer\nStep {place} should be: {says}"
            return {"reward": 0.0, "feedback": feedback, "passed_fraction": (place - 1) / len(wanted)}
    if len(lines) > len(wanted):
        return {"reward": 0.0, "feedback": "Wrong answer\nNothing may follow return x.", "passed_fraction": 1.0}
    return {"reward": 1.0, "feedback": ""}


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
