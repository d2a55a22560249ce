"""Puts a run together: data, workers, algorithm, log, and where to resume."""

from __future__ import annotations

import os
from pathlib import Path

from sdpo import interrupt
from sdpo.algorithms.registry import build_algorithm
from sdpo.config.adapters import trains_adapter
from sdpo.config.positions import refusals
from sdpo.config.schema import Config
from sdpo.data.order import PromptOrder
from sdpo.errors import DISK_ERRORS, CheckpointError, ConfigError, problem, raise_all
from sdpo.grading.registry import describe_sandbox
from sdpo.models.load import load_chat, max_positions
from sdpo.reporting.report import write_report
from sdpo.reprompt.builder import RepromptBuilder
from sdpo.tokens.chat import ChatRenderer
from sdpo.tracking.console import RunConsole
from sdpo.tracking.run_log import RunLog
from sdpo.training import checkpoint, run_folder
from sdpo.training.checkpoint import TrainerState
from sdpo.training.inputs import describe_inputs
from sdpo.training.jobs import Jobs, load_jobs, write_dropped
from sdpo.training.loop import TrainingLoop
from sdpo.training.rollouts import DRAWN_AHEAD
from sdpo.workers.group import Workers


def train(config: Config) -> int:
    """Runs a validated configuration to its end. Returns the exit code."""
    run_dir = Path(config.trainer.default_local_dir)
    with run_folder.locked(run_dir):
        return _train(config, run_dir)


def _train(config: Config, run_dir: Path) -> int:
    device = resolve_device(config.trainer.device)
    check_device(config, device)
    run_folder.check_contents(config)
    resume = run_folder.find_resume(config)
    state = checkpoint.read_state(resume) if resume else TrainerState(0, 0, 0)
    chat = load_chat(config)
    check_context(config)
    check_structure(config)
    val_jobs = load_jobs(config, chat, "val")
    train_jobs, order, total_steps = load_training(config, chat, state.step)
    builder = RepromptBuilder(config.actor_rollout_ref.actor.self_distillation, chat, config.data.seed)
    algorithm = build_algorithm(config, builder)
    if run_folder.is_complete(config, total_steps):
        return 0
    console = RunConsole()
    console.note(
        f"{algorithm.describe()}; {len(train_jobs)} training and {len(val_jobs)} held-out prompts, {total_steps} steps"
    )
    if resume:
        console.note(f"resuming after step {state.step} from {resume}")
        for change in run_folder.changes(config, resume):
            console.note(f"changed since then: {change}")
    sources = {job.prompt.data_source for job in (*train_jobs[:64], *val_jobs[:64])}
    sandbox = describe_sandbox(config, sources)
    if sandbox is not None:
        console.note(sandbox.line())
    console.note(f"starting workers: {config.cluster}, {config.actor_rollout_ref.rollout.name}")
    workers = start_workers(config, device, total_steps)
    if workers.machines:
        console.note(workers.machines)
    try:
        if resume:
            _load(workers, resume)
        with _open_log(config, run_dir, resume, console) as log:
            write_dropped(log.run_dir, train_jobs, val_jobs)
            log.describe("inputs", describe_inputs(config, device, train_jobs, val_jobs))
            if sandbox is not None:
                log.describe("sandbox", sandbox.to_dict())
            ahead = resume / DRAWN_AHEAD if resume else None
            loop = TrainingLoop(config, workers, algorithm, log, train_jobs, val_jobs, order, total_steps, state, ahead)
            try:
                loop.run()
                if config.trainer.export_hf and not config.trainer.val_only:
                    workers.export(str(run_dir / run_folder.MODEL))
            except interrupt.STOPS as stop:
                stop.add_note(run_folder.way_on(config, loop.step))
                raise
    finally:
        workers.close()
    return 0


def _open_log(config: Config, run_dir: Path, resume: Path | None, console: RunConsole) -> RunLog:
    """The log of the coming run. Only now, with the workers up, is an earlier one touched: a start that failed leaves
    it as it was, and so does a run that only validates."""
    try:
        if config.trainer.val_only:
            return RunLog(run_folder.numbered(run_dir / "validation"), config, None, console, write_report)
        aside = run_folder.put_aside(run_dir, resume)
        if aside:
            console.note(f"what was in the run folder before is now in {aside}")
        step = checkpoint.read_state(resume).step if resume else None
        return RunLog(run_dir, config, step, console, write_report)
    except OSError as error:
        if error.errno in DISK_ERRORS:
            raise
        fix = f"{error.filename}: {error.strerror}"
        text = problem("trainer.default_local_dir", str(run_dir), "a folder whose files can be written", fix)
        raise ConfigError(text) from error


def _load(workers: Workers, resume: Path) -> None:
    try:
        workers.load(str(resume / "actor"))
    except CheckpointError as error:
        raise CheckpointError(f"{error}; {run_folder.way_out(resume)}") from error


def start_workers(config: Config, device: str, total_steps: int) -> Workers:
    """The worker groups that `cluster` names, ready to serve."""
    if config.cluster == "inline":
        from sdpo.workers.inline_group import InlineWorkers

        return InlineWorkers(config, device, total_steps)
    from sdpo.workers.ray_group import RayWorkers

    return RayWorkers(config, device, total_steps)


def resolve_device(name: str) -> str:
    """`cpu` or `cuda`. Raises ConfigError when cuda is asked for and there is none."""
    import torch

    if name == "auto":
        return "cuda" if torch.cuda.is_available() else "cpu"
    elsewhere = "RAY_ADDRESS" in os.environ  # on other machines of the cluster there may be GPUs
    if name == "cuda" and not torch.cuda.is_available() and not elsewhere:
        raise ConfigError(
            problem("trainer.device", name, "cpu on this machine (torch finds no GPU)", "use auto or cpu")
        )
    return name


def check_device(config: Config, device: str) -> None:
    """Raises ConfigError for what the device cannot do."""
    if device != "cpu":
        if config.actor_rollout_ref.rollout.max_staleness:
            fix = "actor and engine take turns on a GPU; set it to 0"
            raise ConfigError(problem("actor_rollout_ref.rollout.max_staleness", 1, "0 on GPUs", fix))
        return
    actor, trainer = config.actor_rollout_ref.actor, config.trainer
    if actor.fsdp_config.offload_policy:
        field = "actor_rollout_ref.actor.fsdp_config.offload_policy"
        raise ConfigError(problem(field, True, "false on a CPU", "parameters are in its memory anyway"))
    plain = trainer.n_gpus_per_node * trainer.nnodes == 1 and actor.fsdp_config.param_dtype == "float32"
    to_a_file = {
        "self_distillation.teacher_offload": actor.self_distillation.teacher_offload,
        "fsdp_config.optimizer_offload": actor.fsdp_config.optimizer_offload,
    }
    for name, wanted in to_a_file.items():
        if wanted and not plain:
            allowed = "false on a CPU, except with one rank in float32"
            raise ConfigError(problem(f"actor_rollout_ref.actor.{name}", True, allowed, "set it to false"))


def check_context(config: Config) -> None:
    """Raises ConfigError when prompt and response, or the teacher's reprompt and the response, can be longer than the
    model's positions."""
    raise_all(refusals(config, max_positions(config.actor_rollout_ref.model)))


def check_structure(config: Config) -> None:
    """Raises ConfigError for an adapter that does not fit the model."""
    if trains_adapter(config.actor_rollout_ref.model):
        from sdpo.models.adapter_files import check_adapter  # PEFT takes a second to import

        check_adapter(config)


def load_training(config: Config, chat: ChatRenderer, step: int) -> tuple[Jobs, PromptOrder | None, int]:
    """The training prompts, their order, and the number of steps; a run that only validates needs none."""
    trainer, data = config.trainer, config.data
    if trainer.val_only:
        return Jobs.none(chat), None, trainer.total_training_steps or step
    jobs = load_jobs(config, chat, "train")
    order = PromptOrder(len(jobs), data.train_batch_size, data.seed, data.shuffle)
    return jobs, order, trainer.total_training_steps or order.total_steps(trainer.total_epochs)
