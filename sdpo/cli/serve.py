"""`python -m sdpo.cli.serve MODEL_OR_RUN`: the weights of a run, or a model, behind vLLM's OpenAI-compatible server.

python -m sdpo.cli.serve RUN                      on this machine, port 8000; Ctrl-C ends it
python -m sdpo.cli.serve RUN@best --smoke         asks it one question, prints the answer, and ends
python -m sdpo.cli.serve RUN -- --max-model-len 8192 --tensor-parallel-size 2   whatever stands behind -- is vLLM's

An adapter is served beside its base, under two names (--merged: added to copies of the base's weights). Template
options and parsers of a run (data.apply_chat_template_kwargs, grading.reasoning_parser) hold for the server, too.
"""

from __future__ import annotations

import argparse
import json
import os
import re
import shlex
import signal
import socket
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import IO, TYPE_CHECKING, Any

import httpx

from sdpo import interrupt
from sdpo.cli.program import program
from sdpo.errors import ConfigError, RolloutError, problem

if TYPE_CHECKING:
    from sdpo.config.schema import Config, ModelConfig

# Not `vllm serve`: that command asks for a package named vllm, and the one for CPUs has another name.
SERVER = "from vllm.entrypoints.launchers.api_server.entry import main; main()"
QUESTION = "Say hello."
_PLACE = re.compile(r"^\(\w+ pid=\d+\) ?|\b[A-Z]+ [\d-]+ [\d:]+ \[\S+\] ?")  # in front of a line of vLLM's log
_ERROR = re.compile(r"[\w.]*(Error|Exception)\b.*:")
PATIENCE_S = 10.0  # for a server that was asked to end


@program
def main(argv: list[str] | None = None) -> int:
    options = _parse(argv)
    _check_port(options.host, options.port)
    names, words = arguments(options)
    from sdpo.rollout.vllm_settings import prepare_environment
    from sdpo.training.run import resolve_device

    device = resolve_device("auto")
    prepare_environment(device, own_process=True)
    if device == "cpu":
        os.environ.setdefault("VLLM_CPU_KVCACHE_SPACE", "1")  # GiB; vLLM's own share is half of the memory
    print(f"starting: vllm serve {shlex.join(words)}", file=sys.stderr, flush=True)
    interrupt.raise_on_signals()
    with tempfile.TemporaryFile() as said:
        server = subprocess.Popen([sys.executable, "-c", SERVER, "--model", *words], stdout=said, stderr=said)
        try:
            return _attend(server, said, options, names)
        finally:
            _end(server)


def arguments(options: argparse.Namespace) -> tuple[list[str], list[str]]:
    """(names that are served, arguments of `vllm serve`). Raises SdpoError for a model that is not there."""
    from sdpo.config.adapters import trains_adapter
    from sdpo.config.compose import from_yaml
    from sdpo.config.schema import Config
    from sdpo.evaluation.subjects import find, is_run, run_folder
    from sdpo.models.load import resolve_model_path
    from sdpo.tracking.history import CONFIG_FILE

    text = options.model
    config = Config()
    name = options.name or text
    if is_run(text):
        folder, step = run_folder(text)
        config = from_yaml(folder / CONFIG_FILE)
        name = options.name or folder.name + (f"@{step}" if step != "last" else "")
    if trains_adapter(config.actor_rollout_ref.model) and not options.merged:
        base = config.actor_rollout_ref.model
        model, names, more = _with_adapter(base, _adapter(text), name)
    else:
        found = find(text, config).model
        model, names, more = resolve_model_path(found.path, found.revision), [name], []
    words = [model, "--served-model-name", names[0], "--host", options.host, "--port", str(options.port), *more]
    return names, [*words, *_of_run(config), *options.vllm]


def _adapter(text: str) -> Path:
    from sdpo.config.adapters import FILES
    from sdpo.evaluation.subjects import run_folder
    from sdpo.tracking.history import MODEL_BEST

    folder, step = run_folder(text)
    stored = folder / {"last": "model", "best": MODEL_BEST}.get(step, f"export/step_{step}")
    if not (stored / FILES[0]).is_file():
        fix = f"write it: python -m sdpo.cli.export {folder} --step {step}"
        raise ConfigError(problem(text, str(stored), "a folder with an adapter", fix))
    return stored


def _with_adapter(base: ModelConfig, adapter: Path, name: str) -> tuple[str, list[str], list[str]]:
    from sdpo.models.load import resolve_model_path
    from sdpo.rollout.vllm_settings import LORA_RANKS

    rank = json.loads((adapter / "adapter_config.json").read_text())["r"]
    room = next((allowed for allowed in LORA_RANKS if allowed >= rank), rank)
    more = ["--enable-lora", "--max-lora-rank", str(room), "--lora-modules", f"{name}={adapter.resolve()}"]
    return resolve_model_path(base.path, base.revision), [base.path, name], more


def _of_run(config: Config) -> list[str]:
    words = []
    if config.actor_rollout_ref.model.trust_remote_code:
        words.append("--trust-remote-code")
    if template := config.data.apply_chat_template_kwargs:
        words += ["--default-chat-template-kwargs", json.dumps(dict(template))]
    if (reasoning := config.grading.reasoning_parser) not in ("auto", "none"):
        words += ["--reasoning-parser", reasoning]
    if (calls := config.grading.tool_parser) not in ("auto", "none"):
        words += ["--enable-auto-tool-choice", "--tool-call-parser", calls]
    return words


def _attend(server: subprocess.Popen, said: IO[bytes], options: argparse.Namespace, names: list[str]) -> int:
    """Waits until it answers, says how to ask, and stays until it ends."""
    url, started = f"http://{options.host}:{options.port}", time.monotonic()
    told = started
    while not _healthy(url):
        if time.monotonic() > told + 15:
            told = time.monotonic()
            print(f"still starting ({told - started:.0f} s)", file=sys.stderr, flush=True)
        if server.poll() is not None:
            raise RolloutError(f"vLLM ended with exit code {server.returncode}: {_last_words(said)}")
        time.sleep(0.5)
    print(f"ready after {time.monotonic() - started:.0f} s: {', '.join(names)}", file=sys.stderr)
    if options.smoke:
        print(_ask(url, names[-1]))
        return 0
    body = json.dumps(_question(names[-1]))
    print(f"curl {url}/v1/chat/completions -H 'Content-Type: application/json' -d {shlex.quote(body)}", flush=True)
    code = server.wait()
    raise RolloutError(f"vLLM ended with exit code {code}: {_last_words(said)}")


def _healthy(url: str) -> bool:
    try:
        return httpx.get(f"{url}/health", timeout=2.0).status_code == 200
    except httpx.HTTPError:
        return False


def _question(name: str) -> dict[str, Any]:
    return {"model": name, "messages": [{"role": "user", "content": QUESTION}], "max_tokens": 64}


def _ask(url: str, name: str) -> str:
    """One answer. Raises RolloutError when there is none."""
    try:
        reply = httpx.post(f"{url}/v1/chat/completions", json=_question(name), timeout=120.0)
        message = reply.json()["choices"][0]["message"]
        return str(message.get("content") or message.get("reasoning") or "(an empty answer)")
    except (httpx.HTTPError, ValueError, LookupError, TypeError) as error:
        raise RolloutError(f"the server gave no answer ({type(error).__name__}: {error})") from error


def _last_words(said: IO[bytes]) -> str:
    """The last error in vLLM's log, without what names its process and place."""
    said.seek(0)
    lines = [_PLACE.sub("", line).strip() for line in said.read().decode(errors="replace").splitlines()]
    start = max((i for i, line in enumerate(lines) if _ERROR.match(line)), default=max(0, len(lines) - 1))
    return " ".join(" ".join(lines[start : start + 4]).split())[:500] or "nothing was said"


def _end(server: subprocess.Popen) -> None:
    """Its engine's process goes with it."""
    if server.poll() is None:
        server.send_signal(signal.SIGTERM)
        try:
            server.wait(PATIENCE_S)
        except subprocess.TimeoutExpired:
            server.kill()
            server.wait()


def _check_port(host: str, port: int) -> None:
    with socket.socket(socket.AF_INET6 if ":" in host else socket.AF_INET) as probe:
        probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            probe.bind((host, port))
        except (OSError, OverflowError) as error:
            reason = getattr(error, "strerror", None) or str(error)
            raise ConfigError(problem("--port", f"{host}:{port}", "a free port of this machine", reason)) from error


def _parse(argv: list[str] | None) -> argparse.Namespace:
    words = sys.argv[1:] if argv is None else list(argv)
    own, vllm = (words[: words.index("--")], words[words.index("--") + 1 :]) if "--" in words else (words, [])
    parser = argparse.ArgumentParser(
        prog="python -m sdpo.cli.serve",
        description=__doc__,
        allow_abbrev=False,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("model", metavar="MODEL_OR_RUN", help="RUN, RUN@best, RUN@STEP, a model folder or hub name")
    parser.add_argument("--host", default="127.0.0.1", help="0.0.0.0: of all networks; give -- --api-key KEY then")
    parser.add_argument("--port", type=int, default=8000)
    parser.add_argument("--name", help="to be asked by; default: the run's folder, or the model as given")
    parser.add_argument("--merged", action="store_true", help="of an adapter: one model, the adapter added")
    parser.add_argument("--smoke", action="store_true", help="ask one question, print the answer, end")
    options = parser.parse_args(own)
    options.vllm = vllm
    return options


if __name__ == "__main__":
    sys.exit(main())
