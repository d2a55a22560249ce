"""What `gpu.sh` runs: benchmarks of this folder with the shapes of a GPU, one process each, and a page of the results.

A part that fails is on the page with its last line, and the others still run; the exit code is 1 then.
"""

from __future__ import annotations

import argparse
import json
import os
import platform
import subprocess
import sys
import time
from importlib import metadata
from pathlib import Path
from typing import Any

HERE = Path(__file__).parent
# Models are written by random_model.py: `MODEL name` stands for such a folder.
GPU = {
    "loss": "loss.py compare --modes full topk --shape 8192 4096 128256 --dtype bfloat16 --device cuda",
    "prefix sharing": "prefix.py --model MODEL 0.5b --dtype bfloat16 --device cuda --prompt 2048 --tokens 512",
    "step, 0.5B": "step.py --model MODEL 0.5b --algorithms sdpo vanilla --engine vllm --device cuda --dtype bfloat16"
    " --responses 8 --tokens 1024 --tokens-per-pass 18944",
    "step, 7B": "step.py --model MODEL 7b --algorithms sdpo vanilla --engine vllm --device cuda --dtype bfloat16"
    " --responses 8 --tokens 1024 --tokens-per-pass 18944 --offload --checkpointing --repeats 3",
    "transfer, 0.5B": "sync.py --model MODEL 0.5b --engine vllm --device cuda",
    "transfer, 7B": "sync.py --model MODEL 7b --engine vllm --device cuda",
}
CPU = {
    "loss": "loss.py compare --modes full --shape 256 64 8192 --repeats 1",
    "prefix sharing": "prefix.py --model MODEL tiny --prompt 64 --tokens 8 --repeats 1",
    "step, tiny": "step.py --model MODEL tiny --responses 2 --tokens 8 --repeats 1",
    "transfer, tiny": "sync.py --model MODEL tiny --engine hf --repeats 1",
}
LIMIT_S = 3600


def command_of(words: list[str], out: Path) -> list[str]:
    """With the folders of its models, which are made now."""
    command = [sys.executable, str(HERE / words[0])]
    rest = iter(words[1:])
    for word in rest:
        if word == "MODEL":
            name = next(rest)
            folder = out / f"model-{name}"
            subprocess.run([sys.executable, str(HERE / "random_model.py"), name, str(folder)], check=True, text=True)
            word = str(folder)
        command.append(word)
    return command


def run(name: str, line: str, out: Path) -> dict[str, Any]:
    file = out / f"{name.replace(', ', '-').replace(' ', '-')}.json"
    file.unlink(missing_ok=True)
    print(f"== {name}: {line}", flush=True)
    start = time.perf_counter()
    found: dict[str, Any] = {"command": line}
    try:
        command = [*command_of(line.split(), out), "--json", str(file)]
        done = subprocess.run(command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, timeout=LIMIT_S)
        said = done.stdout.strip().splitlines()
        if done.returncode or not file.is_file():
            found["failed"] = said[-1] if said else f"exit code {done.returncode}"
        else:
            found |= {"result": json.loads(file.read_text()), "said": [s for s in said if not s.startswith("[")][-40:]}
    except (subprocess.TimeoutExpired, subprocess.CalledProcessError) as error:
        found["failed"] = str(error).splitlines()[0]
    found["seconds"] = round(time.perf_counter() - start, 1)
    print("\n".join(found.get("said", [f"failed: {found.get('failed')}"])), flush=True)
    return found


def page(found: dict[str, Any]) -> str:
    lines = [
        f"# GPU benchmarks: {found['device']}",
        "",
        f"torch {found['torch']}, {found['machine']}. Made by `gpu.sh`.",
        "",
    ]
    for name, part in found["parts"].items():
        lines += [f"## {name}", "", f"    {part['command']}", "", "```"]
        lines += part["said"] if "said" in part else [f"failed: {part['failed']}"]
        lines += ["```", ""]
    return "\n".join(lines)


def gpu_name() -> str:
    """Asked of a process that ends: this one holds no GPU."""
    script = "import torch; print(torch.cuda.get_device_name(0) if torch.cuda.is_available() else '')"
    name = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=True).stdout.strip()
    return name or sys.exit("gpu.sh: torch finds no GPU here; with --cpu it tries the same program with small shapes")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--out", type=Path, default=Path("runs/gpu"))
    parser.add_argument("--cpu", action="store_true", help="small shapes, to try the program")
    parser.add_argument("--parts", nargs="+", help=f"of {', '.join(GPU)}; default: all")
    options = parser.parse_args()
    parts = CPU if options.cpu else GPU
    unknown = set(options.parts or parts) - parts.keys()
    if unknown:
        parser.error(f"--parts: got {', '.join(sorted(unknown))}; allowed: {' | '.join(parts)}")
    device, version = "CPU, small shapes" if options.cpu else gpu_name(), metadata.version("torch")
    options.out.mkdir(parents=True, exist_ok=True)
    machine = f"{platform.machine()}, {len(os.sched_getaffinity(0))} cores"
    found: dict[str, Any] = {"device": device, "torch": version, "machine": machine, "parts": {}}
    for name in options.parts or parts:
        found["parts"][name] = run(name, parts[name], options.out)
        (options.out / "gpu.json").write_text(json.dumps(found, indent=1) + "\n")
        (options.out / "gpu.md").write_text(page(found))
    sys.exit(any("failed" in part for part in found["parts"].values()))


if __name__ == "__main__":
    main()
