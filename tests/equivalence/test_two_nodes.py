"""Two machines: network namespaces of this one, joined by a cable, that share the run folder and nothing else."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

WORLD = ["unshare", "-Urnmpf", "--kill-child", "--mount-proc", "bash"]
COMMAND = [
    "actor_rollout_ref.rollout.name=hf", "actor_rollout_ref.rollout.n=4", "data.train_batch_size=2",
    "actor_rollout_ref.actor.ppo_mini_batch_size=2", "data.train_max_samples=4", "data.val_files=[]",
    "trainer.total_training_steps=2", "grading.workers=1", "trainer.file_wait_s=1",
    # Adam's first step is the sign of the gradient, also where that is a rounding error: not what is compared here.
    "actor_rollout_ref.actor.optim.lr=1e-2", "actor_rollout_ref.actor.optim.eps=1e-2",
]  # fmt: skip
# Runs one after the other in one process, the first in it while the nodes come up.
RUNS = """
import json, sys, time
from pathlib import Path
from sdpo.main_sdpo import main
folder, runs = Path(sys.argv[1]), json.loads(sys.argv[2])
for run in runs:
    while "cluster=ray" in run and not (folder / "nodes_are_up").exists():
        time.sleep(0.1)
    print("exit code", main(run), flush=True)
"""


@pytest.fixture
def two_nodes(tmp_path: Path) -> Callable[..., subprocess.Popen]:
    """Starts a command on the first of the two; `tmp_path/private` is on each machine's own disk."""
    script = str(Path(__file__).with_name("two_nodes.sh"))
    cable = "ip link add first type veth peer name second"
    able = subprocess.run([*WORLD, "-c", cable], capture_output=True, text=True)
    if able.returncode != 0:
        pytest.skip(f"no user and network namespaces here: {able.stderr.strip()}")
    (tmp_path / "private").mkdir()
    started: list[subprocess.Popen] = []

    def start(*command: str, **environment: str) -> subprocess.Popen:
        path = f"{Path(sys.executable).parent}:{os.environ['PATH']}"
        words = [*WORLD, script, str(tmp_path), str(tmp_path / "private"), *command]
        env = os.environ | {"PATH": path} | environment
        pipes = {"stdout": subprocess.PIPE, "stderr": subprocess.PIPE, "text": True}
        started.append(subprocess.Popen(words, env=env, start_new_session=True, **pipes))
        return started[-1]

    yield start
    for process in started:
        process.kill()  # and with it all of both machines
        process.wait()


def lines(folder: Path, name: str) -> list[dict]:
    return [json.loads(line) for line in (folder / name).read_text().splitlines()]


@pytest.mark.timeout(600)
def test_a_run_over_two_machines_is_that_of_one_process_and_one_with_private_run_folders_is_refused(
    two_nodes, tmp_path
):
    def run(place: str, *more: str) -> list[str]:
        return [*COMMAND, f"trainer.default_local_dir={tmp_path}/{place}", *more]

    runs = [run("one", "cluster=inline"), run("two", "cluster=ray", "trainer.nnodes=2")]
    runs.append(run("private/run", "cluster=ray", "trainer.nnodes=2"))
    world = two_nodes(sys.executable, "-c", RUNS, str(tmp_path), json.dumps(runs))
    out, err = world.communicate(timeout=550)
    said = f"{out}\n{err}\n{(tmp_path / 'nodes.log').read_text()}"
    codes = [line for line in out.splitlines() if line.startswith("exit code")]
    assert codes == ["exit code 0", "exit code 0", "exit code 2"], said

    one, two = (lines(tmp_path / place, "metrics.jsonl") for place in ("one", "two"))
    for name in ("actor/loss", "actor/grad_norm", "sdpo/divergence"):
        assert [line[name] for line in two[1:]] == pytest.approx([line[name] for line in one[1:]], rel=1e-5), name
    one, two = (lines(tmp_path / place, "samples.jsonl") for place in ("one", "two"))
    drawn = [[(line["step"], line["uid"], line["index"], line["response"]) for line in run] for run in (one, two)]
    assert drawn[0] == drawn[1] and {line["policy_version"] for line in two} == {0, 1}
    # Both ranks' shards are in the checkpoint, that of the second machine too.
    names = {path.name for path in (tmp_path / "two/checkpoints/step_2/actor").iterdir()}
    assert {"__0_0.distcp", "__1_0.distcp"} <= names
    assert (tmp_path / "two/model/model.safetensors").is_file()

    (line,) = [line for line in err.splitlines() if line.startswith("error: ")]
    assert "trainer.default_local_dir" in line and "10.77.0.2" in line
    assert list((tmp_path / "private").rglob("COMPLETE")) == []
    assert not (tmp_path / "private/run/checkpoints").exists()


# A long run over both machines is broken when it has taken two steps; what is left is looked at, then it goes on.
FAULT = """
import json, subprocess, sys, time
from pathlib import Path
folder, command, fault = Path(sys.argv[1]), json.loads(sys.argv[2]), sys.argv[3]
metrics = folder / "run/metrics.jsonl"

def run(*more):
    return subprocess.Popen([sys.executable, "-m", "sdpo.main_sdpo", *command, *more])

def working():
    lines = [path.read_bytes() for path in Path("/proc").glob("[0-9]*/cmdline") if path.exists()]
    return [line for line in lines if line.startswith(b"ray::") and (b"RayWorker" in line or b"Grader" in line)]

while not (folder / "nodes_are_up").exists():
    time.sleep(0.1)
first = run("trainer.total_training_steps=5000")
while not metrics.exists() or metrics.read_text().count("\\n") < 3:
    assert first.poll() is None, "it never trained"
    time.sleep(0.1)
begun = time.monotonic()
if fault == "cut":
    subprocess.run(["ip", "link", "set", "first", "down"], check=True)
else:
    first.kill()
print("exit code", first.wait(), flush=True)
while fault == "kill" and working() and time.monotonic() < begun + 60:
    time.sleep(0.1)
print("seconds", time.monotonic() - begun, "left", len(working()), flush=True)
if fault == "kill":
    steps = metrics.read_text().count("\\n")
    print("exit code", run(f"trainer.total_training_steps={steps}").wait(), flush=True)
"""


def broken(two_nodes, tmp_path: Path, fault: str) -> tuple[str, list[str]]:
    """What was said, and what became of it."""
    command = [*COMMAND[:-2], "cluster=ray", "trainer.nnodes=2", "trainer.save_freq=1", "trainer.export_hf=false"]
    command += ["trainer.max_actor_ckpt_to_keep=2", f"trainer.default_local_dir={tmp_path}/run"]
    command += ["actor_rollout_ref.nccl_timeout=30", "actor_rollout_ref.rollout.checkpoint_engine.timeout_s=30"]
    often = {"RAY_health_check_period_ms": "1000", "RAY_health_check_timeout_ms": "2000"}
    world = two_nodes(sys.executable, "-c", FAULT, str(tmp_path), json.dumps(command), fault, **often)
    out, err = world.communicate(timeout=550)
    return err, [line for line in out.splitlines() if line.startswith(("exit code", "seconds", "resuming"))]


@pytest.mark.slow
@pytest.mark.timeout(600)
def test_a_cut_cable_ends_the_run_in_time_names_the_machine_and_leaves_a_checkpoint(two_nodes, tmp_path):
    said, (code, seconds) = broken(two_nodes, tmp_path, "cut")
    assert code == "exit code 9", said
    (line,) = [line for line in said.splitlines() if line.startswith("error: ")]
    assert "10.77.0.2" in line and ("network" in line or "reachable" in line)
    assert float(seconds.split()[1]) < 120
    assert list(tmp_path.glob("run/checkpoints/step_*/COMPLETE"))


@pytest.mark.slow
@pytest.mark.timeout(600)
def test_a_killed_driver_leaves_no_process_at_work_and_the_same_command_goes_on_in_the_same_cluster(
    two_nodes, tmp_path
):
    said, (code, left, resuming, done) = broken(two_nodes, tmp_path, "kill")
    assert (code, done) == ("exit code -9", "exit code 0"), said
    assert left.endswith("left 0") and float(left.split()[1]) < 30
    assert resuming.startswith("resuming after step ")
    steps = [line["step"] for line in lines(tmp_path / "run", "metrics.jsonl")]
    assert steps == list(range(len(steps)))
    drawn = [(line["step"], line["uid"], line["index"]) for line in lines(tmp_path / "run", "samples.jsonl")]
    assert len(drawn) == len(set(drawn))


@pytest.mark.slow
@pytest.mark.timeout(300)
def test_a_driver_with_another_token_is_told_what_must_be_the_same(two_nodes, tmp_path):
    for name in ("theirs", "mine"):
        (tmp_path / name).write_text(name * 10)
    environment = {"RAY_AUTH_MODE": "token", "RAY_AUTH_TOKEN_PATH": str(tmp_path / "theirs")}
    run = [*COMMAND, "cluster=ray", f"trainer.default_local_dir={tmp_path}/run"]
    own_token = f"import os; os.environ['RAY_AUTH_TOKEN_PATH'] = {str(tmp_path / 'mine')!r}\n"
    world = two_nodes(sys.executable, "-c", own_token + RUNS, str(tmp_path), json.dumps([run]), **environment)
    out, err = world.communicate(timeout=250)
    assert "exit code 9" in out.splitlines(), err
    (line,) = [line for line in err.splitlines() if line.startswith("error: ")]
    assert "RAY_AUTH_TOKEN_PATH" in line and "RAY_AUTH_MODE" in line
