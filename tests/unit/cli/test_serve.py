"""`sdpo.cli.serve`: what vLLM is started with, what is refused beforehand, and that the real server answers."""

from __future__ import annotations

import argparse
import io
import json
import socket
import subprocess
import sys
from pathlib import Path

import pytest

from sdpo.cli import serve
from sdpo.cli.evaluate import main as evaluate
from sdpo.config.compose import compose, to_yaml
from sdpo.errors import ConfigError, ModelError
from sdpo.main_sdpo import main as train


def parsed(*words: str) -> argparse.Namespace:
    return serve._parse(list(words))


def free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return probe.getsockname()[1]


def run_folder(folder: Path, *overrides: str) -> Path:
    folder.mkdir()
    (folder / "resolved_config.yaml").write_text(to_yaml(compose(list(overrides))))
    return folder


def test_a_model_is_served_under_its_name_and_vllms_own_words_come_last() -> None:
    names, words = serve.arguments(parsed("builtin://tiny/hard", "--port", "8123", "--", "--max-model-len", "64"))
    assert names == ["builtin://tiny/hard"] and (Path(words[0]) / "config.json").is_file()
    assert words[words.index("--port") + 1] == "8123" and words[-2:] == ["--max-model-len", "64"]


def test_template_options_and_parsers_of_a_run_hold_for_its_server(tmp_path: Path) -> None:
    run = run_folder(
        tmp_path / "run", "data.apply_chat_template_kwargs.enable_thinking=true", "grading.reasoning_parser=qwen3",
        "grading.tool_parser=hermes",
    )  # fmt: skip
    (run / "model").mkdir()
    (run / "model" / "config.json").write_text("{}")
    names, words = serve.arguments(parsed(str(run)))
    assert names == ["run"] and words[0] == str(run / "model")
    options = words[words.index("--default-chat-template-kwargs") + 1]
    assert json.loads(options)["enable_thinking"] is True
    assert words[-5:] == ["--reasoning-parser", "qwen3", "--enable-auto-tool-choice", "--tool-call-parser", "hermes"]


@pytest.mark.parametrize(("rank", "room"), [(3, "8"), (8, "8"), (24, "32")])
def test_an_adapter_is_served_beside_its_base(tmp_path: Path, rank: int, room: str) -> None:
    run = run_folder(tmp_path / "run", f"actor_rollout_ref.model.lora_rank={rank}")
    with pytest.raises(ConfigError, match="a folder with an adapter; write it: python -m sdpo.cli.export"):
        serve.arguments(parsed(str(run)))
    (run / "model").mkdir()
    (run / "model" / "adapter_config.json").write_text(json.dumps({"r": rank}))
    names, words = serve.arguments(parsed(str(run), "--name", "mine"))
    assert names == ["builtin://tiny/hard", "mine"]
    assert words[words.index("--max-lora-rank") + 1] == room
    assert words[words.index("--lora-modules") + 1] == f"mine={run / 'model'}"


def test_a_port_in_use_and_a_model_that_is_not_there_are_one_line_before_vllm_starts(monkeypatch, capsys) -> None:
    monkeypatch.setattr(subprocess, "Popen", None)
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        port = str(taken.getsockname()[1])
        assert serve.main(["builtin://tiny/hard", "--port", port]) == ConfigError.exit_code
    assert f"--port: got '127.0.0.1:{port}'; allowed: a free port" in capsys.readouterr().err
    assert serve.main(["builtin://tiny/hard", "--port", "99999"]) == ConfigError.exit_code
    assert serve.main(["./nowhere", "--port", str(free_port())]) == ModelError.exit_code
    assert capsys.readouterr().err.count("\n") == 2


def test_what_vllm_died_of_is_told_without_its_log() -> None:
    log = b"""(APIServer pid=7) INFO 12-01 11:34:37 [api_server.py:12] starting
(APIServer pid=7) Traceback (most recent call last):
(APIServer pid=7)   File "x.py", line 3, in main
(APIServer pid=7) pydantic_core.ValidationError: 1 validation error for ModelConfig
(APIServer pid=7)   Value error, max_model_len (9) is greater than 8
"""
    assert serve._last_words(io.BytesIO(log)) == (
        "pydantic_core.ValidationError: 1 validation error for ModelConfig "
        "Value error, max_model_len (9) is greater than 8"
    )
    assert serve._last_words(io.BytesIO(b"")) == "nothing was said"
    assert serve._last_words(io.BytesIO(b"killed\n")) == "killed"


@pytest.mark.slow
@pytest.mark.timeout(900)
def test_a_runs_server_gives_the_runs_own_held_out_number_within_its_error(tmp_path: Path) -> None:
    run, port = tmp_path / "run", free_port()
    settings = ["cluster=inline", "actor_rollout_ref.rollout.name=hf", "trainer.logger=file", "trainer.test_freq=10"]
    assert train([*settings, "trainer.total_training_steps=10", f"trainer.default_local_dir={run}"]) == 0
    assert evaluate([str(run), "--out", str(tmp_path / "own")]) == 0
    command = [sys.executable, "-m", "sdpo.cli.serve", str(run), "--port", str(port)]
    server = subprocess.Popen(command, stdout=subprocess.PIPE, text=True)
    try:
        assert server.stdout.readline().startswith(f"curl http://127.0.0.1:{port}/v1/chat/completions")
        words = ["run", "--base-url", f"http://127.0.0.1:{port}/v1", "--like", str(run)]
        assert evaluate([*words, "--out", str(tmp_path / "served")]) == 0
    finally:
        server.terminate()
        server.wait(60)
    own, served = (
        json.loads((tmp_path / name / "results.json").read_text())["sets"]["all"][model]["avg@4"]
        for name, model in (("own", str(run)), ("served", "run"))
    )
    assert own["value"] > 0.3  # it has learnt something
    assert own["low"] <= served["value"] <= own["high"]
