"""What is added to vLLM's worker class (`worker_extension_cls`): it runs in whichever process holds vLLM's model."""

from __future__ import annotations

from typing import Any

from sdpo.errors import RolloutError, problem
from sdpo.weights.coverage import covering
from sdpo.weights.transport import transport_of


class PublishedWeights:
    """Mixed into the worker: `self` is one of vLLM's `Worker`s. Called by name through `collective_rpc`."""

    def load_published_weights(self: Any, place: str, version: int, model_folder: str) -> None:
        """vLLM's own reload, and what it leaves out. On a CPU layers multiply with repacked copies of their weights; it
        repacks neither experts, unless their kernel looks new, nor an output head that is tied to the embedding. They
        would go on with weights in the wrong order, or with the old ones, silently."""
        layers = list(self.model_runner.get_model().modules())
        for layer in layers:
            method = getattr(layer, "quant_method", None)
            if method is not None and getattr(getattr(method, "unquantized_backend", None), "name", None) == "CPU":
                method.moe_kernel = None
        transport = transport_of(place)
        if transport.STREAMS:  # each worker is a receiver
            groups = covering(transport.receive(place, version), model_folder)
            self.reload_weights(weights_iterator=(named for group in groups for named in group.items()))
        else:
            self.reload_weights(weights_path=place)
        for layer in layers:
            if hasattr(layer, "tie_weights") and hasattr(layer, "cpu_linear"):
                layer.quant_method.process_weights_after_loading(layer)

    def load_published_adapter(self: Any, name: str, number: int, folder: str) -> None:
        """vLLM reads an adapter under a number once, and again only under another. A layer that it does not know by its
        whole name it would leave out, silently: it compares the last part."""
        from vllm.lora.request import LoRARequest

        self.add_lora(LoRARequest(name, number, folder))
        manager = self.model_runner.lora_manager._adapter_manager
        lost = sorted(manager.get_adapter(number).loras.keys() - manager.modules.keys())
        if lost:
            raise RolloutError(problem("adapter layers", lost[:3], "layers of vLLM's model", "use rollout.lora=merged"))
