"""vLLM behind the engine protocol, in this process: for CPUs, where that is a good deal faster than a process apart.

Its steps run in the event loop (`engine_loop`): new requests join between two steps, and each response is handed on in
the step in which it finishes.
"""

from __future__ import annotations

import gc
import logging
import os
import random
import tempfile
from collections.abc import Generator, Iterator, Mapping, Sequence
from contextlib import contextmanager, nullcontext
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist

from sdpo.config.schema import RolloutConfig
from sdpo.errors import ConfigError, ModelError, RolloutError, problem
from sdpo.records import FinishReason
from sdpo.rollout.engine import Generation, GenerationRequest
from sdpo.rollout.engine_loop import EngineLoop
from sdpo.rollout.vllm_settings import engine_arguments, prepare_environment, sampling_arguments
from sdpo.weights.adapter import unpack
from sdpo.weights.coverage import check_coverage
from sdpo.weights.transport import transport_of
from sdpo.weights.version import check_version

# What vLLM raises when a model does not load, a step fails or its process is gone (its own errors derive from these).
FAILURES = (RuntimeError, ValueError, AssertionError, KeyError, AttributeError, OSError)


class VllmEngine:
    """A vLLM engine in this process, or in one of its own where this process already trains with others.

    `model_path`: folder or hub id; `max_prompt`, `max_response`: tokens; `device`: "cpu" or "cuda" (the first visible
    GPU, or as many as `tensor_model_parallel_size`); `stop_ids`: all end-of-sequence ids
    (`tokens.stop.stop_token_ids`); `engine_options`: further `vllm.EngineArgs`, e.g. revision, trust_remote_code,
    hf_overrides; `adapter`: settings (of adapter_config.json) of one that is published instead of weights.

    Raises ModelError when the model cannot be loaded.
    """

    apart = False  # always in a process of its own

    def __init__(
        self,
        model_path: str,
        config: RolloutConfig,
        max_prompt: int,
        max_response: int,
        device: str,
        stop_ids: Sequence[int],
        engine_options: dict[str, Any] | None = None,
        adapter: Mapping[str, Any] | None = None,
    ) -> None:
        self._path = model_path
        self._device = device.partition(":")[0]
        self.stop_ids = tuple(stop_ids)
        self.max_model_len = config.max_model_len or max_prompt + max_response
        self._version = -1
        self._adapter = adapter
        self._adapters = tempfile.TemporaryDirectory(prefix="sdpo-adapter-") if adapter else None
        self._adapter_number = 0  # of the one that requests name, of all that this engine has had
        self._adapter_request: Any = None
        self._sleeps = self._device != "cpu" and config.free_cache_engine
        self._asleep = False
        # In-process vLLM joins the process group it finds and insists that the group has exactly its own ranks.
        foreign_group = dist.is_available() and dist.is_initialized()
        crowded = foreign_group and dist.get_world_size() != config.tensor_model_parallel_size
        self._own_process = self.apart or crowded
        self._owns_group = not foreign_group
        prepare_environment(self._device, self._own_process)
        logging.getLogger("torch._library.triton").setLevel(logging.ERROR)  # says at import that a CPU has no Triton
        with _process_state_kept():
            self._engine = self._start(config, engine_options or {})
        self._loop = EngineLoop(self._serve)

    @property
    def policy_version(self) -> int:
        return self._version

    async def generate(self, request: GenerationRequest) -> Generation:
        """See `RolloutEngine.generate`. A response ends with "length" where `max_model_len` is reached."""
        self._alive()
        self._sampling(request)  # refused here, and not while serving, where it would end the others
        return await self._loop.generate(request)

    async def load_weights(self, place: str, version: int) -> None:
        """See `RolloutEngine.load_weights`. Cached prefixes of the old weights are dropped in the same call."""
        self._alive()
        await self._loop.call(self._load, place, version)

    async def rest(self) -> None:
        await self._loop.call(self._sleep)

    def _serve(self, loop: EngineLoop) -> Generator[None]:
        from vllm import SamplingParams
        from vllm.inputs.engine import tokens_input

        engine = self._alive()
        self._wake()
        running: dict[str, tuple[str, GenerationRequest]] = {}  # by our id: vLLM's own, and the request
        try:
            while True:
                new = loop.take()
                gone = [name for name, (_, request) in running.items() if not loop.wanted(request)]
                if gone:  # before a new one of the same name
                    engine.abort_request([running.pop(name)[0] for name in gone], internal=True)
                for request in new:
                    parameters = SamplingParams(**self._sampling(request))
                    prompt = tokens_input(list(request.prompt_ids))
                    inner = engine.add_request(
                        request.request_id, prompt, parameters, lora_request=self._adapter_request
                    )
                    running[request.request_id] = inner, request
                if not running and not gone:
                    return
                for output in self._step():  # also the one that takes leave of those given up
                    _, request = running.pop(output.request_id)
                    loop.deliver(request, generation_of(output, request.sampling.log_probs))
                yield
        finally:
            if running and self._engine is not None:
                engine.abort_request([inner for inner, _ in running.values()], internal=True)

    def _load(self, place: str, version: int) -> None:
        engine = self._alive()
        method, arguments = self._reload(place, version)
        self._wake()
        try:
            engine.collective_rpc(method, kwargs=arguments)
            dropped = engine.reset_prefix_cache()
        except FAILURES as error:
            raise not_loaded(place, version, error) from error
        if not dropped:
            raise RolloutError(f"vLLM kept cached prefixes of version {self._version}: requests were still running")
        self._version = version
        self._sleep()

    def _reload(self, place: str, version: int) -> tuple[str, dict[str, Any]]:
        """What to call in vLLM's workers. Raises RolloutError for another version, and weights that are not all."""
        if self._adapters is None or self._adapter is None:
            check_published(place, version, self._path)
            return "load_published_weights", {"place": place, "version": version, "model_folder": self._path}
        from vllm.lora.request import LoRARequest

        path = str(unpack(place, version, self._adapter, Path(self._adapters.name)))
        self._adapter_number += 1
        name = f"load-{self._adapter_number}-policy-{version}"
        self._adapter_request = LoRARequest(name, self._adapter_number, path)
        return "load_published_adapter", {"name": name, "number": self._adapter_number, "folder": path}

    def close(self) -> None:
        self._loop.close()
        engine, self._engine = self._engine, None
        if engine is None:
            return
        # vLLM's shutdown destroys the default process group: only when that group is vLLM's own.
        if self._own_process or self._owns_group:
            engine.engine_core.shutdown()
        del engine
        gc.collect()

    def _start(self, config: RolloutConfig, options: dict[str, Any]) -> Any:
        from transformers import AutoConfig

        trust = bool(options.get("trust_remote_code", False))
        try:
            hf_config = AutoConfig.from_pretrained(
                self._path, revision=options.get("revision"), trust_remote_code=trust
            )
            arguments = engine_arguments(self._path, config, self.max_model_len, self._device, hf_config, **options)
            with _nothing_compiled() if self._device == "cpu" and arguments["enforce_eager"] else nullcontext():
                if self._device == "cpu":
                    _register_model_class(hf_config)
                with _classes_left_alone() if arguments["enforce_eager"] else nullcontext():
                    return self._make(arguments)
        except FAILURES as error:
            raise ModelError(f"vLLM cannot serve {self._path}: {str(error).strip()}") from error

    def _make(self, arguments: dict[str, Any]) -> Any:
        from vllm import EngineArgs, LLMEngine

        return LLMEngine.from_engine_args(EngineArgs(**arguments))

    def _sampling(self, request: GenerationRequest) -> dict[str, Any]:
        room = self.max_model_len - len(request.prompt_ids)
        if room < 1 or not request.prompt_ids:
            allowed = f"1 to {self.max_model_len - 1} tokens (rollout.max_model_len is {self.max_model_len})"
            raise ConfigError(problem("prompt length", len(request.prompt_ids), allowed, "raise rollout.max_model_len"))
        return sampling_arguments(request.sampling, room, self.stop_ids)

    def _step(self) -> Iterator[Any]:
        try:
            with _rng_kept():  # here, and not around the steps, between which others have their turn
                outputs = self._engine.step()
        except FAILURES as error:
            self._engine = None
            raise RolloutError(f"vLLM failed while generating: {type(error).__name__}: {error}") from error
        return (output for output in outputs if output.finished)

    def _alive(self) -> Any:
        if self._engine is None:
            raise RolloutError("the vLLM engine is closed or has failed before; start a new one")
        return self._engine

    def _wake(self) -> None:
        if self._asleep:
            self._engine.wake_up()
            self._asleep = False

    def _sleep(self) -> None:
        if self._sleeps and not self._asleep and self._engine is not None:
            self._engine.sleep(level=1)
            self._asleep = True


def generation_of(output: Any, with_log_probs: bool) -> Generation:
    completion = output.outputs[0]
    ids = list(completion.token_ids)
    log_probs = list(completion.logprobs.logprobs) if with_log_probs else None
    if log_probs is not None and len(log_probs) != len(ids):
        raise RolloutError(problem("log_probs", len(log_probs), f"{len(ids)}, one per response token"))
    said = completion.finish_reason
    reason: FinishReason = said if said in ("stop", "length") else "abort"
    return Generation(output.request_id, ids, log_probs, reason)


def check_published(place: str, version: int, model_folder: str) -> None:
    """Refuses what lies there before anything is loaded; what is streamed is checked as it arrives."""
    if not transport_of(place).STREAMS:
        check_version(place, version)
        check_coverage(place, model_folder)


def not_loaded(place: str, version: int, error: Exception) -> RolloutError:
    return RolloutError(f"vLLM could not load the weights of version {version} from {place}: {error}")


def _register_model_class(hf_config: Any) -> None:
    """Import the model class here instead of in a subprocess that vLLM starts to look at it: that exists to keep CUDA
    out of the parent, and costs 14 s on a fresh machine."""
    from vllm.model_executor.models.registry import ModelRegistry

    for architecture in hf_config.architectures or []:
        entry = ModelRegistry.models.get(architecture)
        if entry is not None:
            ModelRegistry.register_model(architecture, entry.load_model_cls())


@contextmanager
def _nothing_compiled() -> Iterator[None]:
    """Import vLLM with its small compiled sampling functions left as plain Python: compiling them costs 20 s in the
    first batch, and they are a thousandth of a step."""
    before = os.environ.get("TORCHDYNAMO_DISABLE")
    os.environ["TORCHDYNAMO_DISABLE"] = "1"
    try:
        yield
    finally:
        if before is None:
            del os.environ["TORCHDYNAMO_DISABLE"]
        else:
            os.environ["TORCHDYNAMO_DISABLE"] = before


@contextmanager
def _classes_left_alone() -> Iterator[None]:
    """Where vLLM serves a family with transformers' own class (OLMo-3), it makes that class compile itself, for the
    trainer's model in this process as well, which then has not what it takes. Nothing is compiled here."""
    from vllm.model_executor.models.transformers.base import Base

    before = Base._decorate_cls_for_torch_compile
    Base._decorate_cls_for_torch_compile = lambda *args, **kwargs: None
    try:
        yield
    finally:
        Base._decorate_cls_for_torch_compile = before


@contextmanager
def _rng_kept() -> Iterator[None]:
    """vLLM draws from torch's CPU generator although every request brings its own seed; the trainer's stream must not
    depend on where the engine runs."""
    state = torch.get_rng_state()
    try:
        yield
    finally:
        torch.set_rng_state(state)


@contextmanager
def _process_state_kept() -> Iterator[None]:
    """Undo what starting vLLM in this process does to it: global seeds and torch's thread setter."""
    import numpy

    states = random.getstate(), numpy.random.get_state(), torch.get_rng_state()
    set_threads, threads = torch.set_num_threads, torch.get_num_threads()
    try:
        yield
    finally:
        torch.set_num_threads = set_threads
        torch.set_num_threads(threads)
        random.setstate(states[0])
        numpy.random.set_state(states[1])
        torch.set_rng_state(states[2])
