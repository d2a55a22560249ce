"""Puts a run together: data, workers, algorithm, log, and where to resume."""

from __future__ import annotations

from pathlib import Path

from sdpo.algorithms.registry import build_algorithm
from sdpo.config.schema import Config
from sdpo.data.order import PromptOrder
from sdpo.errors import ConfigError, problem
from sdpo.grading.registry import describe_sandbox
from sdpo.models.load import load_tokenizer
from sdpo.reprompt.builder import RepromptBuilder
from sdpo.tokens.chat import ChatRenderer
from sdpo.tracking.run_log import RunLog
from sdpo.training import checkpoint
from sdpo.training.checkpoint import TrainerState
from sdpo.training.jobs import load_jobs, write_dropped
from sdpo.training.loop import TrainingLoop
from sdpo.workers.group import Workers


def train(config: Config) -> int:
    """Runs a validated configuration to its end. Returns the exit code."""
    resume = find_resume(config)
    state = checkpoint.read_state(resume) if resume else TrainerState(0, 0, 0)
    tokenizer = load_tokenizer(config.actor_rollout_ref.model)
    chat = ChatRenderer(tokenizer, config.data.apply_chat_template_kwargs)
    train_jobs, val_jobs = load_jobs(config, chat, "train"), load_jobs(config, chat, "val")
    order = PromptOrder(len(train_jobs), config.data.train_batch_size, config.data.seed, config.data.shuffle)
    total_steps = config.trainer.total_training_steps or order.total_steps(config.trainer.total_epochs)
    builder = RepromptBuilder(config.actor_rollout_ref.actor.self_distillation, chat, config.data.seed)
    algorithm = build_algorithm(config, builder)
    run_dir = Path(config.trainer.default_local_dir)
    if state.step >= total_steps and not config.trainer.val_only:
        print(
            f"{run_dir} is complete: step {state.step} of {total_steps}. To go on, raise trainer.total_training_steps; "
            "to start over, set trainer.resume_mode=disable or another trainer.experiment_name."
        )
        return 0
    try:
        run_dir.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        text = problem("trainer.default_local_dir", str(run_dir), "a folder that can be written", error.strerror)
        raise ConfigError(text) from error
    with RunLog(run_dir, config, resume_step=state.step if resume else None) as log:
        log.note(
            f"{algorithm.describe()}; {len(train_jobs)} training and {len(val_jobs)} held-out prompts, "
            f"{total_steps} steps"
        )
        write_dropped(run_dir, train_jobs, val_jobs)
        if resume:
            log.note(f"resuming after step {state.step} from {resume}")
        sandbox = describe_sandbox(config, {job.prompt.data_source for job in (*train_jobs[:64], *val_jobs[:64])})
        if sandbox is not None:
            log.note(sandbox.line())
            log.describe("sandbox", sandbox.to_dict())
        log.note(f"starting workers: {config.cluster}, {config.actor_rollout_ref.rollout.name}")
        workers = start_workers(config, optimizer_steps(config, total_steps))
        try:
            if resume:
                workers.load(str(resume / "actor"))
            TrainingLoop(config, workers, algorithm, log, train_jobs, val_jobs, order, total_steps, state).run()
            if config.trainer.export_hf and not config.trainer.val_only:
                workers.export(str(run_dir / "model"))
        finally:
            workers.close()
    return 0


def start_workers(config: Config, total_optimizer_steps: int) -> Workers:
    """The worker groups that `cluster` names, ready to serve."""
    device = resolve_device(config.trainer.device)
    if config.cluster == "inline":
        from sdpo.workers.inline_group import InlineWorkers

        return InlineWorkers(config, device, total_optimizer_steps)
    from sdpo.workers.ray_group import RayWorkers

    return RayWorkers(config, device, total_optimizer_steps)


def optimizer_steps(config: Config, total_steps: int) -> int:
    """Optimizer steps of the whole run, for the learning-rate schedule."""
    actor = config.actor_rollout_ref.actor
    per_step = -(-config.data.train_batch_size // actor.ppo_mini_batch_size) * actor.ppo_epochs
    return total_steps * per_step


def resolve_device(name: str) -> str:
    """`cpu` or `cuda`. Raises ConfigError when cuda is asked for and there is none."""
    import torch

    if name == "auto":
        return "cuda" if torch.cuda.is_available() else "cpu"
    if name == "cuda" and not torch.cuda.is_available():
        raise ConfigError(
            problem("trainer.device", name, "cpu on this machine (torch finds no GPU)", "use auto or cpu")
        )
    return name


def find_resume(config: Config) -> Path | None:
    """The checkpoint to start from, or None for a fresh run. Raises CheckpointError when the named one is unusable."""
    trainer = config.trainer
    if trainer.resume_mode == "disable":
        return None
    if trainer.resume_mode == "resume_path":
        folder = Path(trainer.resume_from_path)
        checkpoint.read_state(folder)
        return folder
    return checkpoint.latest(Path(trainer.default_local_dir) / "checkpoints")
