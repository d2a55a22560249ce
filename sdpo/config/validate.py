"""Refuses, before any heavy import, what cannot run: all of it at once, with the numbers and the way out."""

from __future__ import annotations

import difflib
import importlib.util
import logging
import math
import os
import re

from sdpo.algorithms.registry import descriptor_of
from sdpo.config import fields, files, limits, positions
from sdpo.config.adapters import check_adapter
from sdpo.config.schema import Config, SelfDistillationConfig
from sdpo.errors import ConfigError, collected, problem, raise_all

log = logging.getLogger(__name__)

_ACTOR = "actor_rollout_ref.actor"
_DISTILL = f"{_ACTOR}.self_distillation"
_REF = "actor_rollout_ref.ref"
_ROLLOUT = "actor_rollout_ref.rollout"
# What can make a step the best one: of these, more is better.
BEST_METRICS = re.compile(r"val/(?:reward|passed_fraction|(?:.+/)?(?:reward|avg@(?:n|(?P<n>\d+))|pass@(?P<k>\d+)))")
MIN_EMA_RATE = 1e-4  # of a step of 0.5 % of a weight 2 % is lost then, at 1e-5 half
VLLM_TEMPERATURES = (0.01, 2.0)  # vLLM clamps below and refuses above


def validate(config: Config, files_too: bool = True) -> None:
    """Raises ConfigError for all settings, and combinations of settings, that cannot be run; warns of the unwise.
    `files_too`: also for files, folders and packages that are not there.

    Imports no torch. World size need not divide anything: rows are spread over the ranks by length, and a rank
    without a row joins with a dummy that counts nothing.
    """
    check_single_values(config)  # before combinations, which take them for granted
    refused: list[ConfigError] = []
    combinations = (
        _check_distillation,
        _check_policy_gradient,
        _check_lengths,
        _check_batches,
        _check_optimizer,
        _check_rollout,
        _check_teacher_placement,
        _check_machine,
        _check_trainer,
        _check_positions,
    )
    places = (
        files.check_model,
        files.check_data,
        files.check_reward_function,
        files.check_grading,
        _check_packages,
        files.check_resume,
        check_adapter,
    )
    for check in (*combinations, *(places if files_too else ())):
        with collected(refused):
            check(config)
    raise_all(refused)


def _check_positions(config: Config) -> None:
    model = config.actor_rollout_ref.model
    raise_all(positions.refusals(config, positions.positions_of(model.path, model.revision, model.override_config)))


def _refuse(field: str, got: object, allowed: str, fix: str = "") -> ConfigError:
    return ConfigError(problem(field, got, allowed, fix))


def check_single_values(config: Config) -> None:
    """Raises ConfigError for the values that their keys cannot have, whatever the others are."""
    refused = []
    for key in limits.limited_keys():
        value = fields.get(config, key)
        if key == f"{_ACTOR}.ppo_mini_batch_size" and value == config.data.train_batch_size:
            continue  # it follows that one, which is told
        if not limits.holds(key, value):
            fix = "it is not finite" if value in (math.inf, -math.inf) else _nearest_choice(key, value)
            refused.append(_refuse(key, value, limits.allowed(key), fix))
    raise_all(refused)


def _nearest_choice(key: str, value: object) -> str:
    choices = {choice.replace("_", "-"): choice for choice in limits.CHOICES.get(key, ())}
    close = difflib.get_close_matches(str(value).lower().replace("_", "-"), choices, n=1, cutoff=0.4)
    return f"nearest: {choices[close[0]]}" if close else ""


# -- algorithms ------------------------------------------------------------------------------------------------------


def _check_distillation(config: Config) -> None:
    if not descriptor_of(config).needs_teacher:
        return
    settings = config.actor_rollout_ref.actor.self_distillation
    if not settings.full_logit_distillation and settings.alpha != 1:
        allowed = "1 when full_logit_distillation is false"
        fix = f"the loss on sampled tokens is reverse KL: set {_DISTILL}.alpha=1"
        raise _refuse(f"{_DISTILL}.alpha", settings.alpha, allowed, fix)
    if settings.full_logit_distillation and settings.distillation_topk == 1 and not settings.distillation_add_tail:
        fix = "one category alone always has probability 1: nothing could be learned"
        raise _refuse(f"{_DISTILL}.distillation_topk", 1, "at least 2 without the tail", fix)
    _check_teacher_rate(settings)
    _check_teacher_dtype(config)
    if settings.loss_normalization == "micro_batch":
        log.warning("%s.loss_normalization=micro_batch: the loss depends on the micro-batch size", _DISTILL)
        environment = config.actor_rollout_ref.rollout.environment
        if (environment.name, environment.path) != ("single_turn", None):
            allowed = "component | all with an environment of several turns"
            raise _refuse(f"{_DISTILL}.loss_normalization", "micro_batch", allowed)
    if config.actor_rollout_ref.rollout.n == 1 and settings.dont_reprompt_on_self_success:
        stored = config.data.solution_key is not None
        if not settings.include_environment_feedback and not stored:
            fix = f"raise it, or set {_DISTILL}.include_environment_feedback=true or data.solution_key"
            raise _refuse(f"{_ROLLOUT}.n", 1, "at least 2 without feedback: no sibling, no signal", fix)
        if not stored:
            log.warning("%s.n=1: without siblings only the grader's feedback teaches", _ROLLOUT)


def _check_teacher_rate(settings: SelfDistillationConfig) -> None:
    kind, rate = settings.teacher_regularization, settings.teacher_update_rate
    if kind == "trust-region" and not 0 < rate < 1:
        allowed = "a number in (0, 1) with teacher_regularization=trust-region"
        raise _refuse(f"{_DISTILL}.teacher_update_rate", rate, allowed, "0 is teacher_regularization=frozen, 1 is live")
    if kind == "ema" and 0 < rate < MIN_EMA_RATE:
        fix = "float32 rounds smaller steps away; a teacher that stays is teacher_regularization=frozen"
        allowed = f"0 or a number in [{MIN_EMA_RATE}, 1] with ema"
        raise _refuse(f"{_DISTILL}.teacher_update_rate", rate, allowed, fix)
    if kind != "ema" and settings.teacher_update_interval != "batch":
        allowed = f"batch with teacher_regularization={kind}"
        got = settings.teacher_update_interval
        raise _refuse(f"{_DISTILL}.teacher_update_interval", got, allowed, "only ema has weights that move")
    if kind == "live" and settings.teacher_offload:
        raise _refuse(
            f"{_DISTILL}.teacher_offload",
            True,
            "false with teacher_regularization=live",
            "it has no weights of its own",
        )
    if kind == "live" or (kind == "ema" and rate == 1):
        log.warning("the teacher is the student itself (no regularization): training is reported to diverge")
    if kind == "ema" and rate == 0:
        log.warning("%s.teacher_update_rate=0: the teacher never moves, as with frozen", _DISTILL)


def _check_teacher_dtype(config: Config) -> None:
    """A teacher kept in bfloat16 computes in bfloat16; the student must, too, or the two would differ by rounding."""
    actor = config.actor_rollout_ref.actor
    settings, computes_in = actor.self_distillation, actor.fsdp_config.param_dtype
    if settings.teacher_master_dtype == "float32":
        return
    field, got = f"{_DISTILL}.teacher_master_dtype", settings.teacher_master_dtype
    if settings.teacher_regularization == "live":
        fix = "it has no weights of its own"
        raise _refuse(field, got, "float32 with teacher_regularization=live", fix)
    if computes_in != got:
        allowed = f"float32 with {_ACTOR}.fsdp_config.param_dtype={computes_in}"
        raise _refuse(field, got, allowed, f"set {_ACTOR}.fsdp_config.param_dtype={got}")


def _check_policy_gradient(config: Config) -> None:
    actor, descriptor = config.actor_rollout_ref.actor, descriptor_of(config)
    if actor.use_kl_loss and "policy_gradient" not in descriptor.components:
        fix = "its teacher keeps the policy near (self_distillation.teacher_regularization)"
        raise _refuse(f"{_ACTOR}.use_kl_loss", True, f"false with loss_mode={descriptor.name}", fix)
    if config.algorithm.adv_estimator == "rloo" and config.algorithm.norm_adv_by_std_in_grpo:
        raise _refuse(
            "algorithm.norm_adv_by_std_in_grpo", True, "false with adv_estimator=rloo", "RLOO does not divide"
        )
    shaped = {
        "algorithm.use_kl_in_reward": config.algorithm.use_kl_in_reward,
        "reward_model.overlong_buffer.enable": config.reward_model.overlong_buffer.enable,
        "algorithm.filter_groups.enable": config.algorithm.filter_groups.enable and not descriptor.compares_group,
    }
    for field, wanted in shaped.items():
        if wanted and ("policy_gradient" not in descriptor.components or "filter" in field):
            allowed = f"false with loss_mode={descriptor.name}"
            raise _refuse(field, True, allowed, "it is about rewards that are compared within a group")
    _check_shaping(config)
    if descriptor.compares_group and config.actor_rollout_ref.rollout.n < 2:
        allowed = f"at least 2 with loss_mode={descriptor.name}"
        raise _refuse(f"{_ROLLOUT}.n", 1, allowed, "one response has no group to compare with")
    low = actor.clip_ratio if actor.clip_ratio_low is None else actor.clip_ratio_low
    if low >= 1:
        raise _refuse(f"{_ACTOR}.clip_ratio_low", low, "a number in (0, 1)", "the probability ratio is never below 0")


def _check_shaping(config: Config) -> None:
    buffer, longest = config.reward_model.overlong_buffer, config.data.max_response_length
    if buffer.enable and buffer.len > longest:
        allowed = f"at most data.max_response_length={longest}"
        raise _refuse("reward_model.overlong_buffer.len", buffer.len, allowed, "else every response is punished")
    if config.algorithm.filter_groups.enable and config.actor_rollout_ref.rollout.max_staleness:
        allowed = "0 with algorithm.filter_groups.enable"
        raise _refuse(f"{_ROLLOUT}.max_staleness", 1, allowed, "how many prompts a step takes is known only then")


# -- sizes -----------------------------------------------------------------------------------------------------------


def _check_lengths(config: Config) -> None:
    data, limit = config.data, config.actor_rollout_ref.rollout.max_model_len
    needed = data.max_prompt_length + data.max_response_length
    if limit is not None and limit < needed:
        sum_ = f"data.max_prompt_length={data.max_prompt_length} + data.max_response_length={data.max_response_length}"
        raise _refuse(f"{_ROLLOUT}.max_model_len", limit, f"at least {needed} ({sum_})", "raise it or set it to null")
    reprompt = config.actor_rollout_ref.actor.self_distillation.max_reprompt_len
    if descriptor_of(config).needs_teacher and reprompt < data.max_prompt_length:
        allowed = f"at least data.max_prompt_length={data.max_prompt_length}"
        fix = "the teacher's prompt holds the whole problem and what is told about it"
        raise _refuse(f"{_DISTILL}.max_reprompt_len", reprompt, allowed, fix)


def _check_batches(config: Config) -> None:
    actor, prompts = config.actor_rollout_ref.actor, config.data.train_batch_size
    mini, n = actor.ppo_mini_batch_size, config.actor_rollout_ref.rollout.n
    if prompts % mini:
        ranks = config.trainer.n_gpus_per_node * config.trainer.nnodes
        allowed = f"a divisor of data.train_batch_size={prompts} ({prompts} prompts x {n} responses on {ranks} ranks)"
        best = max(d for d in range(1, prompts + 1) if prompts % d == 0 and d <= mini)
        raise _refuse(f"{_ACTOR}.ppo_mini_batch_size", mini, allowed, f"use {best}, or data.train_batch_size={mini}")
    micro, dynamic = actor.ppo_micro_batch_size_per_gpu, actor.use_dynamic_bsz
    if dynamic is False and micro is None:
        fix = f"set {_ACTOR}.ppo_micro_batch_size_per_gpu"
        raise _refuse(f"{_ACTOR}.use_dynamic_bsz", False, "true or null without a fixed micro-batch size", fix)
    if dynamic and micro is not None:
        log.warning("%s.ppo_micro_batch_size_per_gpu=%s is not used: use_dynamic_bsz is true", _ACTOR, micro)


def _check_optimizer(config: Config) -> None:
    optim = config.actor_rollout_ref.actor.optim
    if len(optim.betas) != 2 or not all(0 <= beta < 1 for beta in optim.betas):
        raise _refuse(f"{_ACTOR}.optim.betas", optim.betas, "two numbers in [0, 1)")
    if optim.lr_warmup_steps >= 0 and optim.lr_warmup_steps_ratio > 0:
        allowed = f"0 beside lr_warmup_steps={optim.lr_warmup_steps}"
        fix = f"set {_ACTOR}.optim.lr_warmup_steps=-1 to use the ratio"
        raise _refuse(f"{_ACTOR}.optim.lr_warmup_steps_ratio", optim.lr_warmup_steps_ratio, allowed, fix)
    fsdp = config.actor_rollout_ref.actor.fsdp_config
    if fsdp.optimizer_offload and fsdp.offload_policy:
        fix = "the optimizer is in CPU memory then, and steps there: set one of the two to false"
        raise _refuse(f"{_ACTOR}.fsdp_config.optimizer_offload", True, "false with offload_policy=true", fix)


# -- rollout, teacher, machine ---------------------------------------------------------------------------------------


def _check_rollout(config: Config) -> None:
    rollout, correction = config.actor_rollout_ref.rollout, config.algorithm.rollout_correction
    if correction.rollout_is is not None and not rollout.calculate_log_probs:
        fix = "set it to true, or algorithm.rollout_correction.rollout_is=null"
        raise _refuse(f"{_ROLLOUT}.calculate_log_probs", False, "true: rollout_is weighs by them", fix)
    low, high = VLLM_TEMPERATURES
    val = rollout.val_kwargs
    asked = {"temperature": rollout.temperature, "val_kwargs.temperature": val.temperature if val.do_sample else 0}
    for name, temperature in asked.items():
        greedy = name.startswith("val") and temperature == 0
        if rollout.name == "vllm" and not greedy and not low <= temperature <= high:
            allowed = f"a number in [{low}, {high}] with vLLM"
            raise _refuse(f"{_ROLLOUT}.{name}", temperature, allowed, "use rollout.name=hf for others")
    if rollout.name == "hf" and rollout.tensor_model_parallel_size > 1:
        tp = rollout.tensor_model_parallel_size
        raise _refuse(f"{_ROLLOUT}.tensor_model_parallel_size", tp, "1 with rollout.name=hf", "use rollout.name=vllm")
    if rollout.top_p < 1 or rollout.top_k > 0:
        log.warning("%s: top_p or top_k cut the sampling distribution; the loss is on the whole one", _ROLLOUT)
    if val.n > 1 and (not val.do_sample or val.temperature == 0):
        log.warning("%s.val_kwargs: greedy decoding, so all %d responses of a prompt are the same", _ROLLOUT, val.n)


def _check_teacher_placement(config: Config) -> None:
    ref, trainer = config.actor_rollout_ref.ref, config.trainer
    if ref.placement == "colocated":
        if ref.ranks is not None:
            raise _refuse(f"{_REF}.ranks", ref.ranks, "null with placement=colocated", "the teacher is in the actor's")
        return
    settings = config.actor_rollout_ref.actor.self_distillation
    if not descriptor_of(config).needs_teacher:
        return
    if settings.teacher_regularization == "live":
        allowed = "colocated with teacher_regularization=live"
        raise _refuse(f"{_REF}.placement", "remote", allowed, "it has no weights of its own")
    if settings.teacher_offload:
        fix = "the teacher takes no memory of the actor's there"
        raise _refuse(f"{_DISTILL}.teacher_offload", True, f"false with {_REF}.placement=remote", fix)
    actor, ranks = trainer.n_gpus_per_node * trainer.nnodes, ref.ranks or 1
    if actor % ranks and ranks % actor:
        allowed = f"a divisor or a multiple of the actor's {actor}"
        raise _refuse(f"{_REF}.ranks", ranks, allowed, "so that each has as many micro-batches to score")
    if config.cluster == "inline" and ranks > 1:
        raise _refuse(f"{_REF}.ranks", ranks, "null or 1 with cluster=inline", "use cluster=ray")


def _check_machine(config: Config) -> None:
    trainer, rollout = config.trainer, config.actor_rollout_ref.rollout
    ranks = trainer.n_gpus_per_node * trainer.nnodes
    if trainer.nnodes > 1 and config.cluster == "ray" and "RAY_ADDRESS" not in os.environ:
        fix = "start Ray on every machine and name its address (docs/cluster.md)"
        raise _refuse("trainer.nnodes", trainer.nnodes, "1 without RAY_ADDRESS", fix)
    if config.cluster == "inline" and ranks > 1:
        got = f"inline with {trainer.n_gpus_per_node} x {trainer.nnodes} ranks"
        fix = "use cluster=ray, or trainer.n_gpus_per_node=1 trainer.nnodes=1"
        raise _refuse("cluster", got, "inline with one rank", fix)
    if config.cluster == "inline" and rollout.replicas > 1:
        raise _refuse(f"{_ROLLOUT}.replicas", rollout.replicas, "1 with cluster=inline", "use cluster=ray")
    if config.cluster == "inline" and rollout.checkpoint_engine.backend == "gloo":
        raise _refuse(f"{_ROLLOUT}.checkpoint_engine.backend", "gloo", "auto | shared_memory with cluster=inline")
    if trainer.device == "cpu" and config.actor_rollout_ref.model.attn_implementation == "flash_attention_2":
        allowed = "eager | sdpa with trainer.device=cpu"
        raise _refuse("actor_rollout_ref.model.attn_implementation", "flash_attention_2", allowed)
    if trainer.device == "cuda" and rollout.tensor_model_parallel_size * rollout.replicas > ranks:
        tp = rollout.tensor_model_parallel_size
        allowed = f"engines that fit on {ranks} GPUs (replicas={rollout.replicas})"
        raise _refuse(f"{_ROLLOUT}.tensor_model_parallel_size", tp, allowed, "lower it, replicas, or add GPUs")
    size = config.actor_rollout_ref.actor.fsdp_config.fsdp_size
    if 0 < size < ranks and ranks % size:
        raise _refuse(f"{_ACTOR}.fsdp_config.fsdp_size", size, f"-1 or a divisor of the {ranks} ranks")


def _check_packages(config: Config) -> None:
    """Programs that import a package which is not here would all be wrong, and nobody would know why."""
    for name in config.grading.packages if config.grading.backend == "local" else ():
        if not name.isidentifier() or importlib.util.find_spec(name) is None:
            allowed = "names of packages that can be imported here"
            raise _refuse("grading.packages", name, allowed, f"pip install {name}, or take it out of the list")


def _check_trainer(config: Config) -> None:
    trainer = config.trainer
    for name in ("project_name", "experiment_name", "default_local_dir"):
        if not getattr(trainer, name).strip():
            raise _refuse(f"trainer.{name}", getattr(trainer, name), "text that is not blank")
    if trainer.best_metric is not None:
        n = config.actor_rollout_ref.rollout.val_kwargs.n
        found = BEST_METRICS.fullmatch(trainer.best_metric)
        if not found or int(found["n"] or n) != n or int(found["k"] or 1) > n:
            allowed = f"null, val/avg@n, val/pass@k with k <= {n}, val/reward, val/passed_fraction or val/SOURCE/..."
            raise _refuse("trainer.best_metric", trainer.best_metric, allowed, f"n is {_ROLLOUT}.val_kwargs.n={n}")
    if not trainer.logger:
        raise _refuse("trainer.logger", [], "at least one of " + limits.allowed("trainer.logger"), "use console")
    for name in trainer.logger:
        if name not in ("console", "file") and importlib.util.find_spec(name) is None:
            raise _refuse("trainer.logger", name, "a tracker that is installed", f"pip install {name}")
