"""What is added to vLLM's worker class (`worker_extension_cls`): it runs in whichever process holds vLLM's model."""

from __future__ import annotations


class PublishedWeights:
    """Mixed into the worker: `self` is one of vLLM's `Worker`s. Called by name through `collective_rpc`."""

    def load_published_weights(self, folder: str) -> None:
        """vLLM's own reload, then what it leaves out: on a CPU an output head multiplies with a repacked copy of its
        weight, and reloading does not repack a head that is tied to the embedding. It would go on with the old one,
        silently."""
        self.reload_weights(weights_path=folder)
        for layer in self.model_runner.get_model().modules():
            if hasattr(layer, "tie_weights") and hasattr(layer, "cpu_linear"):
                layer.quant_method.process_weights_after_loading(layer)
