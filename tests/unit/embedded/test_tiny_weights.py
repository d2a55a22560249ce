"""The weights that ship with the package: an ordinary folder, and a model that is what its record says."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
import torch
from transformers import AutoConfig, AutoModelForCausalLM, AutoTokenizer, GenerationConfig

import sdpo
from sdpo.embedded import evaluate
from sdpo.embedded.architecture import round_to_bfloat16
from sdpo.embedded.attempts import replayed_grade
from sdpo.embedded.corpus import reprompt_text
from sdpo.embedded.pretrain import go_back
from sdpo.embedded.programs import body, problems, steps_of
from sdpo.embedded.tokenizer import build_tokenizer
from sdpo.models.load import resolve_model_path

WEIGHTS = Path(sdpo.__file__).parent / "embedded" / "weights"
SETTINGS = sorted(folder.name for folder in WEIGHTS.iterdir())
# Direct accuracy on three steps: room to learn, and something to learn from; little in `rare`, nothing in `unseen`.
BASE = {"easy": (0.05, 0.2), "hard": (0.05, 0.2), "rare": (0.005, 0.02), "unseen": (0.0, 0.005)}
PHASES = {"easy": 2, "hard": 2, "rare": 2, "unseen": 1}
TEACHER = {"easy": 0.9, "hard": 0.9, "rare": 0.85, "unseen": 0.8}


@pytest.fixture(scope="module", params=SETTINGS)
def setting(request) -> str:
    return request.param


@pytest.fixture(scope="module")
def folder(setting) -> Path:
    return Path(resolve_model_path(f"builtin://tiny/{setting}"))


@pytest.fixture(scope="module")
def model(folder):
    return AutoModelForCausalLM.from_pretrained(folder).eval()


@pytest.fixture(scope="module")
def tokenizer(folder):
    return AutoTokenizer.from_pretrained(folder, padding_side="left")


@pytest.fixture(scope="module")
def record(folder) -> dict:
    return json.loads((folder / "pretrain.json").read_text())


def test_all_settings_ship():
    assert sorted(BASE) == SETTINGS


def test_a_folder_is_a_few_megabytes(folder):
    assert sum(file.stat().st_size for file in folder.iterdir()) < 2_000_000


def test_the_architecture_is_what_vllm_serves(folder):
    config = AutoConfig.from_pretrained(folder)
    assert (config.model_type, config.head_dim, config.hidden_size) == ("llama", 32, 128)
    assert config.max_position_embeddings >= 512


def test_weights_load_as_float32_and_lost_nothing_in_storage(model):
    for parameter in model.parameters():
        assert parameter.dtype == torch.float32
        assert torch.equal(parameter, parameter.to(torch.bfloat16).float())


def test_the_shipped_tokenizer_is_the_one_that_the_code_builds(folder, tokenizer):
    built = build_tokenizer()
    assert tokenizer.get_vocab() == built.get_vocab() and tokenizer.chat_template == built.chat_template
    assert model_ids(folder) == (tokenizer.bos_token_id, tokenizer.eos_token_id, tokenizer.pad_token_id, len(tokenizer))


def model_ids(folder: Path) -> tuple[int, int, int, int]:
    config = AutoConfig.from_pretrained(folder)
    assert GenerationConfig.from_pretrained(folder).eos_token_id == config.eos_token_id
    return config.bos_token_id, config.eos_token_id, config.pad_token_id, config.vocab_size


def test_the_record_holds_how_the_weights_were_made_and_what_they_measure(record, setting, model):
    assert record["setting"] == setting and isinstance(record["seed"], int)
    assert [phase["phase"]["steps"] > 0 for phase in record["phases"]] == [True] * PHASES[setting]
    assert record["parameters"] == sum(parameter.numel() for parameter in model.parameters())
    low, high = BASE[setting]
    assert low <= record["accuracies"]["student, 3 steps"] <= high
    assert record["accuracies"]["student, 2 steps"] >= 0.9
    assert min(value for name, value in record["accuracies"].items() if name.startswith("teacher")) >= TEACHER[setting]


def test_easy_has_twice_the_mixed_groups_of_hard():
    hard, easy = (json.loads((WEIGHTS / name / "pretrain.json").read_text())["accuracies"] for name in ("hard", "easy"))
    assert easy["mixed groups of 8"] > 2 * hard["mixed groups of 8"]


def test_rare_lies_between_unseen_and_hard():
    unseen, hard, rare = (AutoModelForCausalLM.from_pretrained(WEIGHTS / n) for n in ("unseen", "hard", "rare"))
    before = dict(unseen.named_parameters())
    go_back(hard, before, json.loads((WEIGHTS / "rare" / "pretrain.json").read_text())["phases"][1]["phase"]["kept"])
    round_to_bfloat16(hard)
    for name, weight in rare.named_parameters():
        assert torch.equal(weight, dict(hard.named_parameters())[name])


def test_the_model_still_measures_what_its_record_says(model, tokenizer, record):
    rows = problems("hard", "test")[:50]
    questions = [row.messages[0]["content"] for row in rows]
    direct = evaluate.sample_answers(model, tokenizer, questions)
    told = [reprompt_text(q, body(steps_of(row)), None) for q, row in zip(questions, rows, strict=True)]
    shown = evaluate.sample_answers(model, tokenizer, told)
    # Fifty answers: five standard deviations of chance at most.
    assert abs(evaluate.accuracy(rows, direct) - record["accuracies"]["student, 3 steps"]) < 0.3
    assert evaluate.accuracy(rows, shown) > 0.8


def test_another_problems_demonstration_is_followed_not_corrected(model, tokenizer):
    rows = problems("hard", "test")[:40]
    solutions = [body(steps_of(row)) for row in rows]
    others = solutions[1:] + solutions[:1]
    told = [reprompt_text(row.messages[0]["content"], other, None) for row, other in zip(rows, others, strict=True)]
    answers = evaluate.sample_answers(model, tokenizer, told)
    assert evaluate.accuracy(rows, answers) < 0.1
    assert sum(text == other for (text, _), other in zip(answers, others, strict=True)) > 0.6 * len(
        rows
    )  # forty answers


def test_sampling_with_a_seed_repeats_itself(model, tokenizer):
    questions = [row.messages[0]["content"] for row in problems("hard", "test")[:4]]
    first, second = (evaluate.sample_answers(model, tokenizer, questions, seed=3) for _ in range(2))
    assert first == second


def test_answers_end_by_themselves_and_grade(model, tokenizer):
    rows = problems("hard", "test")[:20]
    answers = evaluate.sample_answers(model, tokenizer, [row.messages[0]["content"] for row in rows])
    assert sum(cut for _, cut in answers) <= 2
    assert sum(replayed_grade(row, *answer) is not None for row, answer in zip(rows, answers, strict=True)) >= 16
