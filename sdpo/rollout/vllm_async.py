"""vLLM's asynchronous engine, in a process of its own: for GPUs, where drawing waits for no Python of this process."""

from __future__ import annotations

import asyncio
from typing import Any

from sdpo.errors import RolloutError
from sdpo.rollout.engine import Generation, GenerationRequest
from sdpo.rollout.vllm_engine import FAILURES, VllmEngine, generation_of, not_loaded


class AsyncVllmEngine(VllmEngine):
    """See `VllmEngine`; to be awaited from one event loop."""

    apart = True

    def _make(self, arguments: dict[str, Any]) -> Any:
        from vllm import AsyncEngineArgs
        from vllm.v1.engine.async_llm import AsyncLLM

        self._waking = asyncio.Lock()
        return AsyncLLM.from_engine_args(AsyncEngineArgs(**arguments))

    async def generate(self, request: GenerationRequest) -> Generation:
        """See `RolloutEngine.generate`. A failure that vLLM survives is a response with the finish reason "abort"."""
        from vllm import SamplingParams
        from vllm.inputs.engine import tokens_input
        from vllm.sampling_params import RequestOutputKind
        from vllm.v1.engine.exceptions import EngineDeadError, EngineGenerateError

        engine, arguments = self._alive(), self._sampling(request)
        parameters = SamplingParams(**arguments, output_kind=RequestOutputKind.FINAL_ONLY)
        await self._awake()
        try:
            prompt = tokens_input(list(request.prompt_ids))
            outputs = engine.generate(prompt, parameters, request.request_id, lora_request=self._adapter_request)
            finished = [output async for output in outputs]
        except EngineDeadError as error:
            self._engine = None
            raise RolloutError(f"vLLM's process ended while generating: {error}") from error
        except EngineGenerateError as error:
            return Generation(request.request_id, [], None, "abort", f"vLLM: {error.__cause__ or error}")
        return generation_of(finished[-1], request.sampling.log_probs)

    async def load_weights(self, place: str, version: int) -> None:
        """See `VllmEngine.load_weights`."""
        engine = self._alive()
        method, arguments = self._reload(place, version)
        await self._awake()
        try:
            await engine.collective_rpc(method, kwargs=arguments)
            dropped = await engine.reset_prefix_cache()
        except FAILURES as error:
            raise not_loaded(place, version, error) from error
        if not dropped:
            raise RolloutError(f"vLLM kept cached prefixes of version {self._version}: requests were still running")
        self._version = version
        await self.rest()

    async def rest(self) -> None:
        async with self._waking:
            if self._sleeps and not self._asleep and self._engine is not None:
                await self._engine.sleep(level=1)
                self._asleep = True

    async def _awake(self) -> None:
        async with self._waking:
            if self._asleep:
                await self._alive().wake_up()
                self._asleep = False

    def close(self) -> None:
        engine, self._engine = self._engine, None
        if engine is not None:
            engine.shutdown()
