"""All workers in this process: for a debugger, for tests, and for reading along."""

from __future__ import annotations

from collections.abc import Sequence

from torch.distributed.fsdp import FSDPModule

from sdpo.config.schema import Config
from sdpo.records import Group, MiniBatch, StepReport, TrainBatch
from sdpo.rollout.hf_generate import HfEngine
from sdpo.teacher.remote import is_remote
from sdpo.weights import in_process, shared_memory
from sdpo.workers.actor import Actor, RankShare, split_over_ranks
from sdpo.workers.cores import use_cores
from sdpo.workers.grader import ThreadGraderPool
from sdpo.workers.group import Versions
from sdpo.workers.rollout import RenderedPrompt, RolloutWorker, SamplingPlan
from sdpo.workers.teacher_server import InlineServers, TeacherServer


class InlineWorkers:
    machines = ""

    def __init__(self, config: Config, device: str, total_steps: int) -> None:
        self.config = config
        use_cores(config, device)
        servers = None
        if is_remote(config):
            servers = InlineServers(TeacherServer(config, 0, 1, device))
        self.actor = Actor(config, 0, 1, device, total_steps, servers)
        self._transport = shared_memory if config.actor_rollout_ref.rollout.name == "vllm" else in_process
        self._weights_base = self._transport.new_base()
        module = self.actor.student
        shares_module = config.actor_rollout_ref.rollout.name == "hf" and not isinstance(module, FSDPModule)
        self.rollout = RolloutWorker(config, device, ThreadGraderPool(config), module.lm if shares_module else None)
        self._shares_module = shares_module
        self._versions = Versions(config.actor_rollout_ref.rollout.max_staleness)

    @property
    def policy_version(self) -> int:
        return self.actor.policy_version

    def submit(self, jobs: Sequence[RenderedPrompt], plan: SamplingPlan) -> list[Group]:
        """Drawn at once: there is nobody beside whom to draw."""
        return self.rollout.generate(jobs, plan)

    def collect(self, ticket: list[Group]) -> list[Group]:
        return self._versions.check(ticket, self.policy_version)

    def reference_kl(self, rows: MiniBatch) -> dict[int, float]:
        return self.actor.reference_kl(self._shares([rows]))

    def _shares(self, mini_batches: list[MiniBatch]) -> list[RankShare]:
        padded = self.actor.prefix_sharing_unsupported is not None
        return split_over_ranks(mini_batches, self.config.actor_rollout_ref.actor, 1, padded)[0]

    def update(self, batch: TrainBatch) -> StepReport:
        self._versions.updated(self.policy_version)
        report = self.actor.update(self._shares(batch.mini_batches))
        report.metrics.update(self.rollout.graders.metrics())
        return report

    def sync_weights(self) -> None:
        engine = self.rollout.engine
        if self._shares_module and isinstance(engine, HfEngine):  # same tensors: only the version moves
            engine.policy_version = self.policy_version
            return
        folder = self.actor.publish(self._weights_base)
        self.rollout.run(self.rollout.load_weights(folder, self.policy_version))

    def save(self, folder: str) -> None:
        self.actor.save(folder)

    def load(self, folder: str) -> None:
        self.actor.load(folder)

    def export(self, folder: str) -> None:
        self.actor.export(folder)

    def close(self) -> None:
        self.rollout.close()
        self._transport.remove_base(self._weights_base)
