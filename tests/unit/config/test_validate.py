"""What cannot be run is refused at start, with the numbers and the way out."""

from __future__ import annotations

import copy
import functools
import math

import pytest

from sdpo.config import fields
from sdpo.config.compose import compose
from sdpo.config.schema import Config
from sdpo.config.validate import validate
from sdpo.errors import ConfigError

ACTOR = "actor_rollout_ref.actor"
DISTILL = f"{ACTOR}.self_distillation"
MODEL = "actor_rollout_ref.model"
ROLLOUT = "actor_rollout_ref.rollout"
GRPO = {f"{ACTOR}.policy_loss.loss_mode": "vanilla"}
REMOTE = {"actor_rollout_ref.ref.placement": "remote"}
EMA = {f"{DISTILL}.teacher_regularization": "ema"}  # the embedded model has another teacher


@functools.cache
def embedded() -> Config:
    return compose([])


def make(settings: dict) -> Config:
    """The embedded run with `settings` (dotted key -> value) changed."""
    config = copy.deepcopy(embedded())
    for key, value in settings.items():
        put(config, key, value)
    return config


def put(config: Config, key: str, value) -> None:
    owner, _, name = key.rpartition(".")
    setattr(fields.get(config, owner) if owner else config, name, value)


def refusal(settings: dict) -> str:
    with pytest.raises(ConfigError) as error:
        validate(make(settings))
    message = str(error.value)
    assert "\n" not in message
    return message


def test_the_embedded_run_and_the_baseline_pass_without_a_warning(caplog):
    validate(make({}))
    validate(make(GRPO))
    assert not caplog.records


@pytest.mark.parametrize(
    ("key", "value", "allowed"),
    [
        (f"{DISTILL}.alpha", 1.5, "a number in [0, 1]"),
        (f"{DISTILL}.alpha", -0.1, "a number in [0, 1]"),
        (f"{DISTILL}.alpha", float("nan"), "a number in [0, 1]"),
        (f"{DISTILL}.distillation_topk", 0, "a number >= 1"),
        (f"{DISTILL}.teacher_update_rate", 1.1, "a number in [0, 1]"),
        (f"{DISTILL}.is_clip", 0.0, "a number > 0"),
        (f"{DISTILL}.is_clip", float("inf"), "a number > 0"),
        (f"{DISTILL}.divergence_clip", -1.0, "a number > 0"),
        (f"{DISTILL}.support", "both", "student | teacher | union"),
        (f"{DISTILL}.loss_normalization", "batch", "component | all | micro_batch"),
        (f"{DISTILL}.teacher_regularization", "none", "ema | trust-region | frozen | live | snapshot"),
        (
            f"{DISTILL}.teacher_regularization",
            "trust_region",
            "ema | trust-region | frozen | live | snapshot; nearest: trust-region",
        ),
        (f"{DISTILL}.teacher_update_interval", "step", "batch | optimizer_step"),
        (f"{DISTILL}.teacher_master_dtype", "float16", "float32 | bfloat16"),
        (f"{DISTILL}.demonstration_choice", "last", "first | random | shortest"),
        (f"{DISTILL}.reprompt_truncation", "middle", "right | left | error"),
        (f"{DISTILL}.max_reprompt_len", 0, "a number >= 1"),
        (f"{ACTOR}.policy_loss.loss_mode", "gpg", "sdpo | vanilla"),
        (f"{ACTOR}.strategy", "fsdp", "fsdp2"),
        (f"{ACTOR}.loss_agg_mode", "mean", "token-mean | seq-mean-token-mean"),
        (f"{ACTOR}.ppo_mini_batch_size", 0, "a number >= 1"),
        (f"{ACTOR}.ppo_max_token_len_per_gpu", 0, "a number >= 1"),
        (f"{ACTOR}.ppo_epochs", 0, "a number >= 1"),
        (f"{ACTOR}.clip_ratio", 0.0, "a number > 0"),
        (f"{ACTOR}.clip_ratio_c", 1.0, "a number > 1"),
        (f"{ACTOR}.entropy_coeff", float("nan"), "a finite number"),
        (f"{ACTOR}.optim.lr", -1e-3, "a number >= 0"),
        (f"{ACTOR}.optim.lr_warmup_steps", -2, "a number >= -1"),
        (f"{ACTOR}.optim.warmup_style", "linear", "constant | cosine"),
        (f"{ACTOR}.optim.betas", [0.9], "two numbers in [0, 1)"),
        (f"{ACTOR}.optim.betas", [0.9, 1.0], "two numbers in [0, 1)"),
        (f"{ACTOR}.fsdp_config.param_dtype", "int8", "float32 | bfloat16 | float16"),
        (f"{ACTOR}.fsdp_config.fsdp_size", 0, "-1 or a number >= 1"),
        (f"{MODEL}.attn_implementation", "flash", "eager | sdpa | flash_attention_2; nearest: flash_attention_2"),
        (f"{ROLLOUT}.name", "sglang", "vllm | hf"),
        (f"{ROLLOUT}.n", 0, "a number >= 1"),
        (f"{ROLLOUT}.temperature", 0.0, "a number > 0"),
        (f"{ROLLOUT}.top_p", 0.0, "a number in (0, 1]"),
        (f"{ROLLOUT}.top_k", -2, "a number >= -1"),
        (f"{ROLLOUT}.dtype", "int4", "auto | float32 | bfloat16 | float16"),
        (f"{ROLLOUT}.gpu_memory_utilization", 1.5, "a number in (0, 1]"),
        (f"{ROLLOUT}.val_kwargs.n", 0, "a number >= 1"),
        (f"{ROLLOUT}.val_kwargs.temperature", -1.0, "a number >= 0"),
        ("algorithm.adv_estimator", "gae", "grpo"),
        ("algorithm.rollout_correction.rollout_is", "sequence", "token"),
        ("algorithm.rollout_correction.rollout_is_threshold", 0.0, "a number > 0"),
        ("actor_rollout_ref.ref.placement", "elsewhere", "colocated | remote"),
        ("cluster", "slurm", "ray | inline"),
        ("grading.backend", "cloud", "local"),
        ("grading.workers", 0, "a number >= 1"),
        ("grading.cpu_seconds", 0.001, "a number >= 0.1"),
        ("grading.memory_mb", 1, "a number >= 16"),
        ("grading.feedback_max_chars", 1, "a number >= 100"),
        ("grading.feedback_style", "long", "plain | leetcode"),
        ("grading.reasoning_parser", "qwen4", "auto | none | deepseek_r1"),
        ("grading.tool_parser", "qwen4_xml", "auto | none | apertus"),
        ("grading.max_infra_error_frac", 2.0, "a number in [0, 1]"),
        ("data.train_batch_size", 0, "a number >= 1"),
        ("data.val_batch_size", 0, "a number >= 1"),
        ("data.train_max_samples", 0, "-1 or a number >= 1"),
        ("data.max_response_length", 0, "a number >= 1"),
        ("trainer.device", "gpu", "auto | cpu | cuda"),
        ("trainer.logger", ["console", "wandbb"], "console | wandb | trackio"),
        (f"{ACTOR}.optim.lr", math.inf, "a number >= 0; it is not finite"),
        ("trainer.logger", [], "at least one of console | wandb"),
        ("trainer.experiment_name", " ", "text that is not blank"),
        ("trainer.total_training_steps", 0, "a number >= 1"),
        ("trainer.save_freq", -2, "a number >= -1"),
        ("trainer.max_actor_ckpt_to_keep", 0, "-1 or a number >= 1"),
        ("trainer.resume_mode", "always", "auto | disable | resume_path"),
    ],
)
def test_a_single_value_outside_its_range_is_refused(key, value, allowed):
    assert refusal({key: value}).startswith(f"{key}: got {value!r}; allowed: {allowed}")


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        pytest.param(
            {
                "data.train_batch_size": 5,
                f"{ROLLOUT}.n": 3,
                f"{ACTOR}.ppo_mini_batch_size": 4,
                "trainer.n_gpus_per_node": 2,
            },
            f"{ACTOR}.ppo_mini_batch_size: got 4; allowed: a divisor of data.train_batch_size=5 "
            "(5 prompts x 3 responses on 2 ranks); use 1, or data.train_batch_size=4",
            id="batch that does not divide",
        ),
        pytest.param(
            {f"{ACTOR}.ppo_mini_batch_size": 32},
            f"{ACTOR}.ppo_mini_batch_size: got 32; allowed: a divisor of data.train_batch_size=16 "
            "(16 prompts x 8 responses on 1 ranks); use 16, or data.train_batch_size=32",
            id="mini-batch larger than the batch",
        ),
        pytest.param(
            {f"{ACTOR}.use_dynamic_bsz": False},
            f"{ACTOR}.use_dynamic_bsz: got False; allowed: true or null without a fixed micro-batch size; "
            f"set {ACTOR}.ppo_micro_batch_size_per_gpu",
            id="no micro-batch size at all",
        ),
        pytest.param(
            {"trainer.logger": ["console", "mlflow"]},
            "trainer.logger: got 'mlflow'; allowed: a tracker that is installed; pip install mlflow",
            id="tracker that is not installed",
        ),
        pytest.param(
            {f"{DISTILL}.distillation_topk": 1, f"{DISTILL}.distillation_add_tail": False},
            f"{DISTILL}.distillation_topk: got 1; allowed: at least 2 without the tail; one category alone always has "
            "probability 1: nothing could be learned",
            id="one category",
        ),
        pytest.param(
            {f"{DISTILL}.full_logit_distillation": False},
            f"{DISTILL}.alpha: got 0.5; allowed: 1 when full_logit_distillation is false; "
            f"the loss on sampled tokens is reverse KL: set {DISTILL}.alpha=1",
            id="token mode without reverse KL",
        ),
        pytest.param(
            REMOTE | {f"{DISTILL}.teacher_regularization": "live"},
            "actor_rollout_ref.ref.placement: got 'remote'; allowed: colocated with teacher_regularization=live; it "
            "has no weights of its own",
            id="the student in another process",
        ),
        pytest.param(
            REMOTE | {f"{DISTILL}.teacher_offload": True},
            f"{DISTILL}.teacher_offload: got True; allowed: false with actor_rollout_ref.ref.placement=remote; the",
            id="a remote teacher out of the way",
        ),
        pytest.param(
            REMOTE | {"actor_rollout_ref.ref.ranks": 4, "trainer.n_gpus_per_node": 6, "cluster": "ray"},
            "actor_rollout_ref.ref.ranks: got 4; allowed: a divisor or a multiple of the actor's 6; so that each has",
            id="teacher ranks with unequal work",
        ),
        pytest.param(
            REMOTE | {"actor_rollout_ref.ref.ranks": 2, "cluster": "inline"},
            "actor_rollout_ref.ref.ranks: got 2; allowed: null or 1 with cluster=inline; use cluster=ray",
            id="two teacher ranks in one process",
        ),
        pytest.param(
            {"actor_rollout_ref.ref.ranks": 2},
            "actor_rollout_ref.ref.ranks: got 2; allowed: null with placement=colocated; the teacher",
            id="ranks of a teacher without a group",
        ),
        pytest.param(
            {f"{ROLLOUT}.checkpoint_engine.backend": "gloo", "cluster": "inline"},
            f"{ROLLOUT}.checkpoint_engine.backend: got 'gloo'; allowed: auto | shared_memory with cluster=inline",
            id="weights over the network in one process",
        ),
        pytest.param(
            REMOTE | {"actor_rollout_ref.model.lora_rank": 8},
            "actor_rollout_ref.ref.placement: got 'remote'; allowed: colocated with an adapter; with an adapter the",
            id="a remote teacher and adapters",
        ),
        pytest.param(
            {f"{DISTILL}.teacher_regularization": "trust-region", f"{DISTILL}.teacher_update_rate": 1.0},
            f"{DISTILL}.teacher_update_rate: got 1.0; allowed: a number in (0, 1) with "
            "teacher_regularization=trust-region; 0 is teacher_regularization=frozen, 1 is live",
            id="trust region without a region",
        ),
        pytest.param(
            {f"{ROLLOUT}.n": 1, f"{DISTILL}.include_environment_feedback": False},
            f"{ROLLOUT}.n: got 1; allowed: at least 2 without feedback: no sibling, no signal",
            id="SDPO without any signal",
        ),
        pytest.param(
            {**GRPO, f"{ROLLOUT}.n": 1},
            f"{ROLLOUT}.n: got 1; allowed: at least 2 with loss_mode=vanilla; one response has no group",
            id="GRPO without a group",
        ),
        pytest.param(
            {**GRPO, f"{ACTOR}.clip_ratio_low": 1.0},
            f"{ACTOR}.clip_ratio_low: got 1.0; allowed: a number in (0, 1)",
            id="clip below zero",
        ),
        pytest.param(
            {f"{ACTOR}.use_kl_loss": True},
            f"{ACTOR}.use_kl_loss: got True; allowed: false with loss_mode=sdpo; its teacher keeps the policy near",
            id="KL loss",
        ),
        pytest.param(
            {"algorithm.use_kl_in_reward": True},
            "algorithm.use_kl_in_reward: got True; allowed: false with loss_mode=sdpo; it is about rewards that are",
            id="KL in the reward",
        ),
        pytest.param(
            {f"{ROLLOUT}.max_model_len": 100},
            f"{ROLLOUT}.max_model_len: got 100; allowed: at least 176 "
            "(data.max_prompt_length=128 + data.max_response_length=48); raise it or set it to null",
            id="model length below prompt plus response",
        ),
        pytest.param(
            {f"{DISTILL}.max_reprompt_len": 127},
            f"{DISTILL}.max_reprompt_len: got 127; allowed: at least data.max_prompt_length=128",
            id="reprompt shorter than the prompt",
        ),
        pytest.param(
            {f"{ACTOR}.optim.lr_warmup_steps": 0, f"{ACTOR}.optim.lr_warmup_steps_ratio": 0.1},
            f"{ACTOR}.optim.lr_warmup_steps_ratio: got 0.1; allowed: 0 beside lr_warmup_steps=0; "
            f"set {ACTOR}.optim.lr_warmup_steps=-1 to use the ratio",
            id="two warm-ups",
        ),
        pytest.param(
            {f"{ROLLOUT}.calculate_log_probs": False},
            f"{ROLLOUT}.calculate_log_probs: got False; allowed: true: rollout_is weighs by them; set it to true, or "
            "algorithm.rollout_correction.rollout_is=null",
            id="importance weights without log-probs",
        ),
        pytest.param(
            {f"{ROLLOUT}.temperature": 2.5},
            f"{ROLLOUT}.temperature: got 2.5; allowed: a number in [0.01, 2.0] with vLLM",
            id="temperature that vLLM would change",
        ),
        pytest.param(
            {f"{ROLLOUT}.val_kwargs.temperature": 0.001},
            f"{ROLLOUT}.val_kwargs.temperature: got 0.001; allowed: a number in [0.01, 2.0] with vLLM",
            id="validation temperature that vLLM would change",
        ),
        pytest.param(
            {f"{ROLLOUT}.name": "hf", f"{ROLLOUT}.tensor_model_parallel_size": 2},
            f"{ROLLOUT}.tensor_model_parallel_size: got 2; allowed: 1 with rollout.name=hf",
            id="tensor parallel without vLLM",
        ),
        pytest.param(
            {"cluster": "inline", "trainer.n_gpus_per_node": 2},
            "cluster: got 'inline with 2 x 1 ranks'; allowed: inline with one rank; use cluster=ray",
            id="several ranks in one process",
        ),
        pytest.param(
            {"cluster": "inline", f"{ROLLOUT}.replicas": 2},
            f"{ROLLOUT}.replicas: got 2; allowed: 1 with cluster=inline",
            id="several engines in one process",
        ),
        pytest.param(
            {"trainer.device": "cpu", f"{MODEL}.attn_implementation": "flash_attention_2"},
            f"{MODEL}.attn_implementation: got 'flash_attention_2'; allowed: eager | sdpa with trainer.device=cpu",
            id="flash attention on a CPU",
        ),
        pytest.param(
            {"trainer.device": "cuda", "trainer.n_gpus_per_node": 2, f"{ROLLOUT}.tensor_model_parallel_size": 4},
            f"{ROLLOUT}.tensor_model_parallel_size: got 4; allowed: engines that fit on 2 GPUs (replicas=1)",
            id="engine larger than the machine",
        ),
        pytest.param(
            {"trainer.n_gpus_per_node": 4, f"{ACTOR}.fsdp_config.fsdp_size": 3},
            f"{ACTOR}.fsdp_config.fsdp_size: got 3; allowed: -1 or a divisor of the 4 ranks",
            id="shards that do not divide the ranks",
        ),
        pytest.param(
            {"grading.backend": "http"},
            "grading.service_url: got None; allowed: the address of the service; needed by grading.backend=http",
            id="a service without an address",
        ),
        pytest.param(
            {f"{MODEL}.use_dora": True},
            f"{MODEL}.use_dora: got True; allowed: false with {MODEL}.lora_rank=0; there is no adapter: set lora_rank",
            id="a kind of adapter without an adapter",
        ),
        pytest.param(
            {f"{DISTILL}.teacher_lora_rank": 8},
            f"{DISTILL}.teacher_lora_rank: got 8; allowed: null with {MODEL}.lora_rank=0",
            id="an adapter of the teacher alone",
        ),
        pytest.param(
            EMA | {f"{MODEL}.lora_rank": 8, f"{DISTILL}.teacher_offload": True},
            f"{DISTILL}.teacher_offload: got True; allowed: false with an adapter",
            id="offload of shared weights",
        ),
        pytest.param(
            {f"{MODEL}.lora_rank": 8, f"{DISTILL}.teacher_regularization": "live", f"{DISTILL}.teacher_lora_rank": 8},
            f"{DISTILL}.teacher_lora_rank: got 8; allowed: null with teacher_regularization=live",
            id="the rank of an average that is not kept",
        ),
        pytest.param(
            GRPO | {f"{MODEL}.lora_rank": 8, f"{DISTILL}.teacher_lora_rank": 8},
            f"{DISTILL}.teacher_lora_rank: got 8; allowed: null without a teacher",
            id="the rank of a teacher that is not there",
        ),
        pytest.param(
            {f"{MODEL}.lora_rank": 8, f"{MODEL}.lora_dropout": 1.0},
            f"{MODEL}.lora_dropout: got 1.0; allowed: a number in [0, 1)",
            id="an adapter that sees nothing",
        ),
        pytest.param(
            {f"{MODEL}.lora_rank": 8, f"{ROLLOUT}.name": "hf", f"{ROLLOUT}.lora": "adapter"},
            f"{ROLLOUT}.lora: got 'adapter'; allowed: merged with rollout.name=hf",
            id="an engine without adapters of its own",
        ),
        pytest.param(
            {f"{MODEL}.lora_adapter_path": "/nowhere"},
            f"{MODEL}.lora_adapter_path: got '/nowhere'; allowed: adapter_config.json and adapter_model.safetensors",
            id="a folder without an adapter",
        ),
        pytest.param(
            {"trainer.nnodes": 2},
            "trainer.nnodes: got 2; allowed: 1 without RAY_ADDRESS; start Ray on every machine and name its address",
            id="several machines",
        ),
        pytest.param(
            {f"{DISTILL}.teacher_offload": True, f"{DISTILL}.teacher_regularization": "live"},
            f"{DISTILL}.teacher_offload: got True; allowed: false with teacher_regularization=live",
            id="offload of a teacher without weights",
        ),
        pytest.param(
            {f"{DISTILL}.teacher_update_interval": "optimizer_step", f"{DISTILL}.teacher_regularization": "frozen"},
            f"{DISTILL}.teacher_update_interval: got 'optimizer_step'; allowed: batch with teacher_regular",
            id="interval of a teacher that does not move",
        ),
        pytest.param(
            EMA | {f"{DISTILL}.teacher_update_rate": 1e-5},
            f"{DISTILL}.teacher_update_rate: got 1e-05; allowed: 0 or a number in [0.0001, 1] with ema",
            id="rate of steps that float32 rounds away",
        ),
        pytest.param(
            {f"{DISTILL}.teacher_master_dtype": "bfloat16", f"{DISTILL}.teacher_regularization": "live"},
            f"{DISTILL}.teacher_master_dtype: got 'bfloat16'; allowed: float32 with teacher_regularization=live",
            id="dtype of a teacher without weights",
        ),
        pytest.param(
            {"trainer.best_metric": "train/accuracy"},
            "trainer.best_metric: got 'train/accuracy'; allowed: null, val/avg@n, val/pass@k with k <= 4, val/reward",
            id="a best step by something that is not held out",
        ),
        pytest.param(
            {"trainer.best_metric": "val/response_length"},
            "trainer.best_metric: got 'val/response_length'; allowed: null, val/avg@n",
            id="a best step by something of which more is not better",
        ),
        pytest.param(
            {"trainer.best_metric": "val/avg@8"},
            f"trainer.best_metric: got 'val/avg@8'; allowed: null, val/avg@n, val/pass@k with k <= 4, val/reward, "
            f"val/passed_fraction or val/SOURCE/...; n is {ROLLOUT}.val_kwargs.n=4",
            id="a best step by a metric that is not measured",
        ),
        pytest.param(
            {f"{DISTILL}.teacher_master_dtype": "bfloat16"},
            f"{DISTILL}.teacher_master_dtype: got 'bfloat16'; allowed: float32 with {ACTOR}.fsdp_config.param_dtype=",
            id="a teacher less precise than the student",
        ),
    ],
)
def test_a_combination_that_cannot_run_is_refused_with_the_way_out(settings, message):
    assert refusal(settings).startswith(message)


@pytest.mark.parametrize("kind", ["ema", "trust-region", "frozen", "snapshot"])
@pytest.mark.parametrize("target", [{}, {f"{DISTILL}.distillation_topk": 10}])
@pytest.mark.parametrize(("actor", "teacher"), [(1, None), (4, 2), (2, 4), (3, 3)])
def test_every_teacher_with_weights_may_be_remote(kind, target, actor, teacher):
    ranks = {"trainer.n_gpus_per_node": actor, "actor_rollout_ref.ref.ranks": teacher, "cluster": "ray"}
    assert validate(make(REMOTE | ranks | target | {f"{DISTILL}.teacher_regularization": kind})) is None


def test_distillation_settings_do_not_matter_to_grpo():
    settings = REMOTE | {f"{DISTILL}.full_logit_distillation": False, f"{DISTILL}.teacher_regularization": "live"}
    assert validate(make(GRPO | settings)) is None  # nothing is raised


@pytest.mark.parametrize(
    ("settings", "warning"),
    [
        ({f"{DISTILL}.teacher_regularization": "live"}, "the teacher is the student itself"),
        (EMA | {f"{DISTILL}.teacher_update_rate": 1.0}, "the teacher is the student itself"),
        (EMA | {f"{DISTILL}.teacher_update_rate": 0.0}, "the teacher never moves"),
        ({f"{DISTILL}.loss_normalization": "micro_batch"}, "depends on the micro-batch size"),
        ({f"{ROLLOUT}.n": 1}, "only the grader's feedback teaches"),
        ({f"{ROLLOUT}.top_p": 0.9}, "top_p or top_k cut the sampling distribution"),
        ({f"{ROLLOUT}.val_kwargs.do_sample": False}, "all 4 responses of a prompt are the same"),
        (
            {f"{ACTOR}.use_dynamic_bsz": True, f"{ACTOR}.ppo_micro_batch_size_per_gpu": 2},
            "ppo_micro_batch_size_per_gpu=2 is not used",
        ),
        ({"data.val_files": []}, "the run is not validated"),
        ({"data.train_files": ["builtin://programs/easy/train"]}, "was made for another task"),
    ],
)
def test_the_unwise_runs_with_a_warning(settings, warning, caplog):
    validate(make(settings))
    (record,) = caplog.records
    assert record.levelname == "WARNING" and warning in record.getMessage()


# -- files


@pytest.mark.parametrize("path", ["/no/such/model", "./model", "../model", "a/b/c", "models/my model"])
def test_a_model_path_that_cannot_be_a_hub_id_must_exist(path):
    message = f"{MODEL}.path: got {path!r}; allowed: an existing folder or a hub id; check the path"
    assert refusal({f"{MODEL}.path": path}) == message


@pytest.mark.parametrize("path", ["Qwen/Qwen3-8B", "gpt2"])
def test_a_hub_id_is_left_to_the_hub(path):
    assert validate(make({f"{MODEL}.path": path})) is None  # nothing is raised


def test_a_model_folder_must_hold_a_model(tmp_path):
    (tmp_path / "file").write_text("x")
    assert "a folder with config.json" in refusal({f"{MODEL}.path": str(tmp_path)})
    assert "a folder, not a file" in refusal({f"{MODEL}.path": str(tmp_path / "file")})
    (tmp_path / "config.json").write_text("{}")
    validate(make({f"{MODEL}.path": str(tmp_path)}))


def test_no_model_and_an_unknown_built_in_model_are_refused():
    assert refusal({f"{MODEL}.path": ""}).startswith(f"{MODEL}.path: got ''; allowed: a model; set it: a Hugging Face")
    assert "builtin://tiny/hard | builtin://tiny/easy" in refusal({f"{MODEL}.path": "builtin://tiny/medium"})


@pytest.mark.parametrize("key", ["data.train_files", "data.val_files"])
def test_data_files_must_exist_and_hold_something(key, tmp_path):
    empty, blank, rows = tmp_path / "e.jsonl", tmp_path / "b.json", tmp_path / "r.jsonl"
    empty.touch()
    blank.write_text(" \n\n")
    rows.write_text('{"prompt": "2+2?"}\n')
    own = {f"{MODEL}.path": "Qwen/Qwen3-8B"}
    assert refusal({**own, key: ["/no/such.json"]}).startswith(
        f"{key}: got '/no/such.json'; allowed: an existing file;"
    )
    assert (
        refusal({**own, key: [str(empty)]})
        == f"{key}: got {str(empty)!r}; allowed: a file with rows; the file is empty"
    )
    assert "the file is empty" in refusal({**own, key: [str(rows), str(blank)]})
    assert "pin a commit" in refusal({**own, key: ["hub://owner/name@main:train"]})
    assert "pin a commit" in refusal({**own, key: ["hub://owner/name:train"]})
    assert "builtin://programs/hard/train" in refusal({**own, key: ["builtin://programs/hard/dev"]})
    for name in (rows, tmp_path, f"{tmp_path}:train", f"hub://owner/name@{'0' * 40}:main/train"):
        validate(make({**own, key: [str(name)]}))


def test_training_needs_train_files_and_validation_alone_needs_val_files():
    assert refusal({"data.train_files": []}).startswith("data.train_files: got []; allowed: at least one file; set")
    validate(make({"data.train_files": [], "trainer.val_only": True}))
    assert refusal({"data.val_files": [], "trainer.val_only": True}).startswith("data.val_files: got []")


def test_the_embedded_model_warns_of_words_it_does_not_know(tmp_path, caplog):
    (tmp_path / "r.jsonl").write_text("{}\n")
    validate(make({"data.train_files": [str(tmp_path / "r.jsonl")]}))
    assert "knows only the words of the built-in task" in caplog.text


def test_a_reward_function_is_a_name_in_an_existing_python_file(tmp_path):
    key = "custom_reward_function"
    assert "an existing Python file" in refusal({f"{key}.path": "/no/such.py"})
    (tmp_path / "r.py").write_text("")
    assert "the name of a function" in refusal({f"{key}.path": str(tmp_path / "r.py"), f"{key}.name": "a-b"})


def test_resume_from_a_path_needs_the_path_the_mode_and_the_folder(tmp_path):
    mode, path = "trainer.resume_mode", "trainer.resume_from_path"
    assert refusal({mode: "resume_path"}).startswith(
        f"{path}: got None; allowed: a folder with resume_mode=resume_path"
    )
    assert refusal({mode: "resume_path", path: "/no"}).startswith(
        f"{path}: got '/no'; allowed: an existing step folder"
    )
    assert refusal({path: str(tmp_path)}).startswith(
        f"{path}: got {str(tmp_path)!r}; allowed: null with resume_mode=auto"
    )
    validate(make({mode: "resume_path", path: str(tmp_path)}))


@pytest.mark.parametrize("metric", [None, "val/avg@n", "val/avg@4", "val/pass@2", "val/reward", "val/gsm8k/avg@4"])
def test_a_best_step_by_what_a_validation_measures_is_accepted(metric):
    assert validate(make({"trainer.best_metric": metric})) is None


def test_one_held_out_response_a_prompt_has_a_best_step_as_well():
    assert validate(make({f"{ROLLOUT}.val_kwargs.n": 1})) is None
    assert "trainer.best_metric" in refusal({f"{ROLLOUT}.val_kwargs.n": 1, "trainer.best_metric": "val/pass@2"})
