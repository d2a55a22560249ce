"""Self-distillation post-training of language models from rich feedback."""

__version__ = "0.1.0"
