"""The actor: student, teacher, optimizer, and one optimizer step. Runs in every training rank; knows nothing of Ray."""

from __future__ import annotations

import logging
import math
from collections import defaultdict
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from functools import partial

import torch
import torch.distributed as dist

from sdpo.algorithms.registry import descriptor_of
from sdpo.algorithms.rows import weighted
from sdpo.config.adapters import needs_reference, sends_adapter, trains_adapter
from sdpo.config.schema import ActorConfig, Config
from sdpo.kernels.lazy_logits import ResponseScores
from sdpo.kernels.policy import policy_terms
from sdpo.losses.total import TotalLoss
from sdpo.models.adapters import START, STUDENT, adapter_tensors, add_adapters
from sdpo.models.forward import PolicyModule
from sdpo.models.load import load_policy, load_tokenizer
from sdpo.models.shard import DTYPES, clip_gradients, decoder_layers, shard
from sdpo.models.tree_mixers import computed_for_each_row
from sdpo.models.trial import check_scores
from sdpo.offload.file_weights import FileWeights
from sdpo.offload.freed_memory import give_back_freed_memory
from sdpo.offload.moments import place_moments
from sdpo.records import Denominators, MiniBatch, RowKey, StepReport
from sdpo.rollout.build import engine_dtype
from sdpo.teacher.adapters import AdapterTeacher, build_adapter_teacher
from sdpo.teacher.base import Teacher, score_in_eval_mode
from sdpo.teacher.remote import RemoteTeacher, Servers
from sdpo.teacher.teachers import FrozenTeacher, build_reference, build_teacher
from sdpo.tokens.loss_batch import loss_batch
from sdpo.tokens.packing import MicroBatch, PackedSide, pack_micro_batch
from sdpo.tokens.partition import MicroBatchRows, plan_micro_batches
from sdpo.tokens.prefix_tree import id_tensor
from sdpo.tracking.pooling import Sums, merge, pool
from sdpo.weights.adapter import AdapterSource
from sdpo.weights.source import WeightSource
from sdpo.weights.transport import publish
from sdpo.workers import actor_state
from sdpo.workers.schedule import Schedule
from sdpo.workers.token_log import TokenLog, traced_rows

log = logging.getLogger(__name__)


@dataclass
class RankShare:
    """One rank's forwards of one optimizer step, with the denominators of the step. All ranks have equally many."""

    micro_batches: list[MicroBatchRows]
    denominators: dict[str, Denominators]
    traced: frozenset[RowKey] = frozenset()  # rows for tokens.jsonl


Known = tuple[torch.Tensor | None, torch.Tensor | None]  # log-probs [N], old and reference; None: not needed


def split_over_ranks(
    mini_batches: list[MiniBatch], config: ActorConfig, world_size: int, padded: bool = False
) -> list[list[RankShare]]:
    """`shares[rank][optimizer step]`. Made on the controller, so that no rank needs another's rows.

    padded: the model cannot read prefix trees (`models.tree_attention.prefix_sharing_unsupported`)."""
    rows_each = config.ppo_micro_batch_size_per_gpu
    fixed = rows_each and not config.use_dynamic_bsz  # that many rows, whatever their length
    budget = None if fixed else config.ppo_max_token_len_per_gpu
    together = config.self_distillation.loss_normalization == "all"
    shares: list[list[RankShare]] = [[] for _ in range(world_size)]
    for batch in mini_batches:
        denominators = batch.denominators(together)
        rows = [row for row in map(weighted, batch.rows) if row is not None]
        plan = plan_micro_batches(rows, world_size, budget, rows_each, padded)
        for rank, micro_batches in enumerate(plan):
            shares[rank].append(RankShare(micro_batches, denominators))
    if mini_batches:
        first = shares[0][0]
        own = [row for micro_batch in first.micro_batches if not micro_batch.dummy for row in micro_batch.rows]
        first.traced = traced_rows(mini_batches[0].rows, own)
    return shares


class Actor:
    """`total_steps`: rollout batches of the run, for the learning-rate schedule. `servers`: of a teacher in processes
    of its own."""

    def __init__(
        self, config: Config, rank: int, world_size: int, device: str, total_steps: int, servers: Servers | None = None
    ) -> None:
        torch.manual_seed(config.trainer.seed + rank)
        self.config, self.rank, self.world_size, self.device = config, rank, world_size, device
        actor = config.actor_rollout_ref.actor
        descriptor = descriptor_of(config)
        self.loss = TotalLoss(config, descriptor)
        tokenizer = load_tokenizer(config.actor_rollout_ref.model)
        self.vocab_size = len(tokenizer)
        self.token_log = None
        if config.trainer.log_samples:
            self.token_log = TokenLog(tokenizer, config.actor_rollout_ref.rollout.temperature)
        settings = actor.self_distillation
        self.snapshot_every = settings.teacher_snapshot_every if settings.teacher_regularization == "snapshot" else 1
        self.student = self._build_module(check=True)
        if self.prefix_sharing_unsupported is not None and rank == 0:
            log.info("prompts are computed for every response and rows are padded: %s", self.prefix_sharing_unsupported)
        elif rank == 0 and (layers := computed_for_each_row(self.student)):
            log.info("prompts are computed for every response in %s, once in all other layers", layers)
        self.teacher: Teacher | None = None
        if servers is not None:
            self.teacher = RemoteTeacher(config, self.student, servers, rank, world_size, device)
        elif descriptor.needs_teacher and trains_adapter(config.actor_rollout_ref.model):
            self.teacher = build_adapter_teacher(settings, self.student)
        elif descriptor.needs_teacher:
            self.teacher = build_teacher(actor.self_distillation, self.student, self._build_teacher_module)
        self.reference: FrozenTeacher | AdapterTeacher | None = None  # the policy that the run started from
        if needs_reference(config):
            if trains_adapter(config.actor_rollout_ref.model):
                self.reference = AdapterTeacher(self.student, START)
            else:
                self.reference = build_reference(self.teacher, self._build_teacher_module)
        self.optimizer = torch.optim.AdamW(
            [p for p in self.student.parameters() if p.requires_grad],
            lr=actor.optim.lr,
            betas=tuple(actor.optim.betas),
            eps=actor.optim.eps,
            weight_decay=actor.optim.weight_decay,
            fused=True,  # one pass over weights, gradients and moments
        )
        folder = config.trainer.default_local_dir
        self.moments = place_moments(self.optimizer, actor.fsdp_config.optimizer_offload, device, folder)
        self.schedule = Schedule(self.optimizer, actor.optim, total_steps)
        self.policy_version = 0

    def _build_teacher_module(self) -> PolicyModule:
        settings = self.config.actor_rollout_ref.actor.self_distillation
        if not settings.teacher_offload or self.device != "cpu":
            return self._build_module(settings.teacher_offload, settings.teacher_master_dtype)
        module = self._build_module()
        module.in_file = FileWeights(module, decoder_layers(module), self.config.trainer.default_local_dir)
        return module

    def _build_module(self, offload: bool = False, dtype: str = "float32", check: bool = False) -> PolicyModule:
        settings = self.config.actor_rollout_ref
        module = PolicyModule(load_policy(self.config, DTYPES[dtype]), self.vocab_size)
        if check:  # now, while all of the model is in this process
            check_scores(module, settings.model.path)
            if trains_adapter(settings.model):
                add_adapters(module.lm, self.config, DTYPES[settings.actor.fsdp_config.param_dtype])
        return shard(module, settings.actor.fsdp_config, self.world_size, self.device, offload)

    # -- one rollout batch ---------------------------------------------------------------------------------------------

    def update(self, shares: list[RankShare]) -> StepReport:
        """Takes one optimizer step per share (times `ppo_epochs`). Every rank calls it with equally many shares."""
        epochs = self.config.actor_rollout_ref.actor.ppo_epochs
        old: Sequence[Sequence[torch.Tensor | None]] = [[None] * len(share.micro_batches) for share in shares]
        reference = old
        if self.loss.needs_old_log_probs(len(shares) * epochs):
            old = [self._log_probs(share, self.student.scores) for share in shares]
        if self.config.actor_rollout_ref.actor.use_kl_loss:
            reference = self._reference_log_probs(shares)
        sums: list[Sums] = []
        skipped, before = 0, self.policy_version
        for epoch in range(epochs):
            for share, *known in zip(shares, old, reference, strict=True):
                if epoch:  # the policy is no longer the one that sampled
                    share = replace(share, traced=frozenset())
                skipped += not self._optimizer_step(share, [*zip(*known, strict=True)], sums)
        if self.policy_version > before or self.snapshot_every > 1:
            self._teacher_follows("batch")
        if self.teacher is not None:
            sums.append(self.teacher.metrics())
        self.schedule.move_to(self.schedule.batches + 1)
        metrics = pool(self._over_ranks(sums))
        metrics["actor/lr"] = self.schedule.rate
        tokens = self.token_log.take() if self.token_log else []
        return StepReport(self.policy_version, self.policy_version - before, skipped, metrics, tokens)

    def _optimizer_step(self, share: RankShare, known: list[Known], sums: list[Sums]) -> bool:
        """Forward, backward and, when the gradient is finite, the step. Returns whether the student moved."""
        loss_sum = 0.0
        for position, micro_batch in enumerate(share.micro_batches):
            if self.world_size > 1:
                self.student.set_requires_gradient_sync(position == len(share.micro_batches) - 1)
            loss_sum += self._backward(self._pack(micro_batch), share, known[position], sums)
        if self.device == "cpu":
            give_back_freed_memory()  # that of the passes, once: each page that a pass wants again costs time
        norm = clip_gradients(self.student, self.config.actor_rollout_ref.actor.optim.clip_grad)
        loss = self._sum_over_ranks(loss_sum)
        finite = bool(torch.isfinite(norm)) and math.isfinite(loss)
        if finite:
            if self.teacher is not None:
                self.teacher.synchronize()
            self.moments.onload()
            self.optimizer.step()
            self.moments.offload()
            self.policy_version += 1
            self._teacher_follows("optimizer_step")
        self.optimizer.zero_grad(set_to_none=True)  # now, not before the next one: the rollout can use the memory
        if self.rank == 0:  # already over all ranks
            sums.append({"actor/loss": (loss, 1.0), "actor/grad_norm": (float(norm), 1.0)})
        return finite

    def _teacher_follows(self, interval: str) -> None:
        """After an `interval` in which the student moved. A snapshot is due whether or not it moved in the last one."""
        settings = self.config.actor_rollout_ref.actor.self_distillation
        due = settings.teacher_update_interval == interval and (self.schedule.batches + 1) % self.snapshot_every == 0
        if self.teacher is not None and due:
            self.teacher.update(self.student)

    def _backward(self, micro: MicroBatch, share: RankShare, known: Known, sums: list[Sums]) -> float:
        """Accumulates the gradient of one micro-batch; returns its part of the loss."""
        teacher_scores = None
        if self.teacher is not None and micro.teacher is not None:
            teacher_scores = self.teacher.scores(micro.teacher.to(self.device))
        scores = self.student.scores(micro.student.to(self.device), in_place=not micro.dummy)
        limit = self.config.data.max_response_length
        batch = loss_batch(micro.rows, share.denominators, limit, self.device, *known)
        outputs = self.loss(scores, teacher_scores, batch)
        if self.token_log and teacher_scores is not None and share.traced and not micro.dummy:
            self.token_log.note(self.policy_version, micro.rows, share.traced, scores, teacher_scores)
        if self.teacher is not None:
            self.teacher.release()  # before the backward pass, which needs most memory
        loss = sum(output.loss for output in outputs)
        (loss * 0.0 if micro.dummy else loss).backward()
        if micro.dummy:
            return 0.0
        sums += [output.metrics for output in outputs]
        return float(loss.detach())

    @property
    def prefix_sharing_unsupported(self) -> str | None:
        """None: the model reads prefix trees; else why it does not."""
        return self.student.prefix_sharing_unsupported

    def _pack(self, micro_batch: MicroBatchRows) -> MicroBatch:
        return pack_micro_batch(micro_batch, padded=self.prefix_sharing_unsupported is not None)

    @torch.no_grad()
    def _log_probs(self, share: RankShare, scores: Callable[[PackedSide], ResponseScores]) -> list[torch.Tensor]:
        """Log-probs [N] of every micro_batch's policy tokens under the weights behind `scores`."""
        temperature = self.config.actor_rollout_ref.rollout.temperature
        found = []
        for micro in map(self._pack, share.micro_batches):
            ids = torch.cat([id_tensor(row.policy_ids) for row in micro.rows]).to(self.device)
            found.append(policy_terms(scores(micro.student.to(self.device)), ids, temperature)[0])
        return found

    @torch.no_grad()
    def reference_kl(self, shares: list[RankShare]) -> dict[int, float]:
        """The estimator `algorithm.kl_penalty`, summed over the policy tokens of rows of one `sequence`, by that."""
        from verl.trainer.ppo.core_algos import kl_penalty

        reference, found = self._reference_log_probs(shares), defaultdict[int, float](float)
        for share, theirs in zip(shares, reference, strict=True):
            own = self._log_probs(share, self.student.scores)
            for micro, p, q in zip(share.micro_batches, own, theirs, strict=True):
                kl = kl_penalty(p, q, self.config.algorithm.kl_penalty).split([r.tokens_of("all") for r in micro.rows])
                for row, part in [] if micro.dummy else zip(micro.rows, kl, strict=True):
                    assert row.sequence is not None  # whoever asks has numbered them
                    found[row.sequence] += float(part.sum())
        return found

    def _reference_log_probs(self, shares: list[RankShare]) -> list[list[torch.Tensor]]:
        assert self.reference is not None  # the configuration asks for it
        scores: Callable[[PackedSide], ResponseScores] = partial(score_in_eval_mode, self.reference.module)
        if isinstance(self.reference, AdapterTeacher):
            scores = self.reference.scores
        found = [self._log_probs(share, scores) for share in shares]
        self.reference.release()
        return found

    def _over_ranks(self, sums: list[Sums]) -> list[Sums]:
        if self.world_size == 1:
            return sums
        gathered: list[Sums] = [{}] * self.world_size
        dist.all_gather_object(gathered, merge(sums))
        return gathered

    def _sum_over_ranks(self, value: float) -> float:
        if self.world_size == 1:
            return value
        total = torch.tensor(value, dtype=torch.float64, device=self.device)
        dist.all_reduce(total)
        return float(total)

    # -- weights and checkpoints ----------------------------------------------------------------------------------

    def publish(self, base: str) -> str:
        """Sends the student's weights to the engines; returns the place to load them from (on rank 0)."""
        kind = AdapterSource if sends_adapter(self.config) else WeightSource
        return publish(
            kind(self.student.lm, engine_dtype(self.config, self.device)), base, self.policy_version, self.rank
        )

    def export(self, folder: str) -> None:
        """Writes the student (on rank 0) as an ordinary Hugging Face folder, or its adapter as one of PEFT's."""
        from sdpo.models.export import export_adapter, export_hf

        lm, model, dtype = self.student.lm, self.config.actor_rollout_ref.model, self.config.trainer.export_dtype
        adapter = trains_adapter(model)
        tensors = adapter_tensors(lm) if adapter else iter(WeightSource(lm))
        if self.rank:
            for _ in tensors:  # gathering is a collective
                pass
        elif adapter:
            export_adapter(lm.peft_config[STUDENT], tensors, model, folder, dtype)
        else:
            export_hf(lm, tensors, model, folder, dtype)

    def save(self, folder: str) -> None:
        actor_state.save(self, folder)
        self.moments.offload()
        if self.teacher is not None:
            self.teacher.release()

    def load(self, folder: str) -> None:
        actor_state.load(self, folder)
        self.moments.offload()
        if self.teacher is not None:
            self.teacher.release()
