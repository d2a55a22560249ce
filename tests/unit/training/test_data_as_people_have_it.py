"""Files in the forms that other trainers' users have, trained on for two steps as they are."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from sdpo.data.files import write_parquet
from sdpo.main_sdpo import main

QUESTIONS = [(f"Tom has {n} apples and buys {n + 1}. How many apples has he?", 2 * n + 1) for n in range(4)]
SETTINGS = [
    "cluster=inline", "actor_rollout_ref.rollout.name=hf", "trainer.total_training_steps=2", "trainer.test_freq=0",
    "trainer.val_before_train=false", "trainer.export_hf=false", "trainer.save_freq=0", "data.train_batch_size=2",
    "data.max_prompt_length=700", "data.max_response_length=4", "actor_rollout_ref.rollout.n=2", "data.val_files=[]",
    "actor_rollout_ref.actor.self_distillation.max_reprompt_len=1000", "trainer.log_samples=-1",
]  # fmt: skip


def gsm8k_as_verl_writes_it(folder: Path) -> list[str]:
    rows = [
        {
            "data_source": "openai/gsm8k",
            "prompt": [{"role": "user", "content": f'{question} Write the final answer after "####".'}],
            "ability": "math",
            "reward_model": {"style": "rule", "ground_truth": str(answer)},
            "extra_info": {"split": "train", "index": place, "answer": f"...\n#### {answer}", "question": question},
        }
        for place, (question, answer) in enumerate(QUESTIONS)
    ]
    write_parquet(rows, folder / "train.parquet")
    return [f"data.train_files={folder}/train.parquet"]


def rows_with_privileged_context(folder: Path) -> list[str]:
    rows = [
        {
            "prompt": [{"role": "user", "content": question}],
            "privileged_context": f"Your earlier answer was not {answer}.",
            "solution": f"\\boxed{{{answer}}}",
        }
        for question, answer in QUESTIONS
    ]
    (folder / "train.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    (folder / "rewards.py").write_text(
        "def right(completions, solution, **kwargs):\n"
        "    return [1.0 if s in c[0]['content'] else 0.0 for c, s in zip(completions, solution)]\n"
        "async def short(completions, **kwargs):\n"
        "    return [-0.01 * len(c[0]['content']) for c in completions]\n"
    )
    return [
        f"data.train_files={folder}/train.jsonl", "data.data_source=apples",
        f"custom_reward_function.path={folder}/rewards.py", "custom_reward_function.weights={right: 1, short: 0.1}",
    ]  # fmt: skip


def a_folder_of_datasets_with_other_names(folder: Path) -> list[str]:
    import datasets

    rows = {"question": [q for q, _ in QUESTIONS], "answer": [f"He has {a}.\n#### {a}" for _, a in QUESTIONS]}
    datasets.DatasetDict({"train": datasets.Dataset.from_dict(rows)}).save_to_disk(str(folder / "apples"))
    return [
        f"data.train_files='{folder}/apples:train'", "data.prompt_key=question", "data.answer_key=answer",
        "data.solution_key=answer", "data.data_source=gsm8k",
    ]  # fmt: skip


@pytest.mark.parametrize(
    "made", [gsm8k_as_verl_writes_it, rows_with_privileged_context, a_folder_of_datasets_with_other_names]
)
def test_two_steps_are_trained_on_data_that_nobody_touched(made, tmp_path: Path, capsys) -> None:
    assert main([*SETTINGS, *made(tmp_path), f"trainer.default_local_dir={tmp_path}/run"]) == 0, capsys.readouterr().err
    steps = [json.loads(line) for line in (tmp_path / "run/metrics.jsonl").read_text().splitlines()]
    samples: list[dict[str, Any]] = [
        json.loads(line) for line in (tmp_path / "run/samples.jsonl").read_text().splitlines()
    ]
    assert steps[-1]["step"] == 2 and len(samples) == 8
    assert all(sample["reward"] is not None for sample in samples)
    failed = [sample for sample in samples if sample["reward"] < 1]
    assert failed
    if made is rows_with_privileged_context:
        assert all("Your earlier answer was not" in sample["teacher_prompt"] for sample in failed)
        assert "train/extra/right" in steps[-1] and "train/extra/short" in steps[-1]
    if made is a_folder_of_datasets_with_other_names:
        assert all(sample["stored_solution"] and "####" in sample["teacher_prompt"] for sample in failed)
        assert steps[-1]["sdpo/demonstration_frac"] > 0
