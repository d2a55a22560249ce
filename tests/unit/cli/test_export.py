"""A step of a run as a folder that other tools load: whose weights they are, what the card says, what is published."""

from __future__ import annotations

import json
import shutil
import socket
from pathlib import Path
from types import SimpleNamespace

import pytest
import torch
import yaml
from peft import PeftModel
from safetensors.torch import load_file
from transformers import AutoModelForCausalLM, AutoTokenizer

from sdpo.cli.export import main
from sdpo.config.compose import compose, to_yaml
from sdpo.models.adapters import STUDENT, of_adapter
from sdpo.models.load import resolve_model_path
from sdpo.training import checkpoint
from sdpo.training.checkpoint import TrainerState
from sdpo.workers.actor import Actor

IDS = torch.tensor([[1, 5, 9, 14, 3, 8, 2]])
MODEL = "actor_rollout_ref.model"
VERSIONS = {"sdpo": "0.1.0", "torch": "2.13.0"}


def _logits(lm) -> torch.Tensor:
    with torch.no_grad():
        return lm(IDS).logits


def make_run(folder: Path, *words: str) -> tuple[Path, dict[int, torch.Tensor]]:
    """A run of two steps, of which the first was the best, without what training takes; logits of the policy."""
    config = compose([f"trainer.default_local_dir={folder}", "trainer.experiment_name='a: b #1'", *words], "sdpo")
    actor, logits = Actor(config, 0, 1, "cpu", 10), {}
    for step in (1, 2):
        with torch.no_grad():
            for name, p in actor.student.named_parameters():
                if p.requires_grad and (not of_adapter(name, STUDENT) or ".lora_B." in name):
                    p.add_(torch.randn(p.shape, generator=torch.Generator().manual_seed(step)), alpha=0.03)
        state = TrainerState(step, step, 0)
        checkpoint.save(folder / "checkpoints", state, actor.save, None, to_yaml(config))
        if step == 1:
            actor.export(str(folder / "model_best"))
            (folder / "model_best/best.json").write_text('{"metric": "val/avg@4", "step": 1, "value": 0.75}')
        logits[step] = _logits(actor.student.lm)
    (folder / "resolved_config.yaml").write_text(to_yaml(config))
    rows = [
        {"step": step, "val/avg@4": value, "val/samples": 400.0, "val/reward": value}
        for step, value in ((0, 0.25), (1, 0.75), (2, 0.5))
    ]
    rows[2]["val/pass@4"] = float("nan")
    (folder / "metrics.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    (folder / "samples.jsonl").write_text('{"prompt": "private"}\n')
    inputs = {"train": "2000 problems, 0123456789ab"}
    (folder / "run.json").write_text(json.dumps({"versions": VERSIONS, "inputs": inputs}))
    return folder, logits


@pytest.fixture(scope="module")
def adapter_run(tmp_path_factory):
    return make_run(tmp_path_factory.mktemp("adapter_run"), f"{MODEL}.lora_rank=4")


@pytest.fixture(scope="module")
def full_run(tmp_path_factory):
    return make_run(tmp_path_factory.mktemp("full_run"))


def _front(folder: Path) -> tuple[dict, str]:
    card = (folder / "README.md").read_text()
    return yaml.safe_load(card.split("---\n")[1]), card


@pytest.mark.parametrize(
    ("step", "number", "without_checkpoint"),
    [("last", 2, False), ("1", 1, False), ("best", 1, False), ("best", 1, True)],
)
@pytest.mark.parametrize("form", ["model", "adapter", "merged"])
def test_the_folder_holds_the_policy_of_the_step(
    form, step, number, without_checkpoint, adapter_run, full_run, tmp_path, capsys
):
    run, logits = full_run if form == "model" else adapter_run
    if without_checkpoint:
        run = shutil.copytree(run, tmp_path / "run")
        shutil.rmtree(run / "checkpoints/step_1")
    out = tmp_path / "out"
    words = [str(run), "--step", step, "--out", str(out), *(["--merged"] if form == "merged" else [])]
    assert main(words) == 0
    said = capsys.readouterr().out
    assert f"{out}: {form} of step {number}" in said
    lm = AutoModelForCausalLM.from_pretrained(out).eval()
    torch.testing.assert_close(_logits(lm), logits[number], atol=1e-5, rtol=1e-5)
    if form == "merged":
        assert not list(out.glob("adapter*")) and type(lm).__name__ == "LlamaForCausalLM"
        names = load_file(Path(resolve_model_path("builtin://tiny/hard")) / "model.safetensors").keys()
        assert load_file(out / "model.safetensors").keys() == names
        assert float(said.split("adapter form: ")[1].split()[0]) < 1e-4
    if form == "adapter":
        base = AutoModelForCausalLM.from_pretrained(resolve_model_path("builtin://tiny/hard"))
        torch.testing.assert_close(_logits(PeftModel.from_pretrained(base, out).eval()), logits[number])
    assert AutoTokenizer.from_pretrained(out).chat_template
    card = (out / "README.md").read_text()  # of the run, not of where its weights lay
    assert "`builtin://tiny/hard`" in card and "model_best" not in card and "`trainer" not in card
    assert all(file.stat().st_mode & 0o777 == out.stat().st_mode & 0o666 for file in out.iterdir())


def test_rounding_that_takes_the_adapter_away_is_measured_said_and_limited(adapter_run, tmp_path, capsys):
    run, _ = adapter_run
    words = [str(run), "--merged", "--dtype", "bfloat16", "--out", str(tmp_path / "out")]
    assert main([*words, "--max-diff", "10"]) == 0
    diff = capsys.readouterr().out.split("adapter form: ")[1].split()[0]
    assert 1e-4 < float(diff) < 1
    assert f"differ from the adapter form by at most {diff} nats" in _front(tmp_path / "out")[1]
    assert load_file(tmp_path / "out/model.safetensors")["model.norm.weight"].dtype is torch.bfloat16
    before = {file.name: file.read_bytes() for file in (tmp_path / "out").iterdir()}
    assert main([*words, "--max-diff", "0.0001"]) == 4
    assert f"--max-diff: got '{diff} nats'" in capsys.readouterr().err
    assert {file.name: file.read_bytes() for file in (tmp_path / "out").iterdir()} == before  # the earlier export
    assert main([*words[:-1], str(tmp_path / "new"), "--max-diff", "0.0001"]) == 4 and not (tmp_path / "new").exists()


def test_the_card_says_what_was_measured_and_nothing_of_the_machine(adapter_run, tmp_path, capsys):
    run, _ = adapter_run
    assert main([str(run), "--step", "1", "--out", str(tmp_path / "out")]) == 0
    front, card = _front(tmp_path / "out")
    assert front == {"library_name": "peft", "pipeline_tag": "text-generation", "tags": ["sdpo", "lora"]}
    assert "# a: b #1" in card and "`builtin://tiny/hard`, which comes with the package" in card
    assert "| val/avg@4 | 0 | 0.2500 | 0.0433 (100 problems) |" in card
    assert "| val/avg@4 | 1 | 0.7500 | 0.0433 (100 problems) |" in card
    assert "0.5000" not in card and "nan" not in card.lower()
    assert "2000 problems, 0123456789ab" in card and f"| `{MODEL}.lora_rank` | `4` |" in card
    assert "| torch | 2.13.0 |" in card and "licence of the base is not stated" in card
    for private in ("/home", "/tmp", str(tmp_path), socket.gethostname()):
        assert private not in card


def test_a_base_on_the_hub_gives_its_name_commit_and_licence(adapter_run, tmp_path, monkeypatch):
    from sdpo.reporting import model_card

    run, _ = adapter_run
    commit = "0123456789abcdef0123456789abcdef01234567"
    cached = tmp_path / "snapshots" / commit
    cached.mkdir(parents=True)
    (cached / "README.md").write_text("---\nlicense: other\nlicense_name: of its own\n---\n# Some model\n")
    monkeypatch.setattr(model_card, "resolve_model_path", lambda *_: str(cached))
    config = compose([f"{MODEL}.lora_rank=4", f"{MODEL}.path=some/model"], "sdpo")
    model_card.write_card(tmp_path, run, config, 1, "merged", 0.001)
    front, card = _front(tmp_path)
    assert front["base_model"] == "some/model" and front["library_name"] == "transformers"
    assert (front["license"], front["license_name"]) == ("other", "of its own")
    assert f"[some/model](https://huggingface.co/some/model) at `{commit}`" in card


@pytest.mark.parametrize(
    ("words", "code", "said"),
    [
        (["--step", "7"], 2, "--step: got '7'; allowed: a step that the run has kept, best or last; checkpoints"),
        (["--step", "newest"], 2, "--step: got 'newest'; allowed: a number, last or best"),
        (["--push", "name"], 2, "--push: got 'name'; allowed: OWNER/NAME"),
        (["--dry-run"], 2, "--dry-run: got True; allowed: only with --push OWNER/NAME"),
        (["--merged"], 2, "--merged: got "),
    ],
)
def test_what_cannot_be_exported_is_one_line(full_run, words, code, said, capsys):
    assert main([str(full_run[0]), *words]) == code
    error = capsys.readouterr().err
    assert said in error and len(error.splitlines()) == 1


@pytest.mark.parametrize("name", ["run", "run/model_best", "base", "mine", "mine/notes.txt", "export", "."])
def test_a_place_with_other_things_in_it_is_never_written_to(full_run, tmp_path, name, capsys, monkeypatch):
    shutil.copytree(full_run[0], tmp_path / "run")
    shutil.copytree(resolve_model_path("builtin://tiny/hard"), tmp_path / "base")
    for folder in ("mine", "export"):
        (tmp_path / folder).mkdir()
        (tmp_path / folder / "notes.txt").write_text("years of work")
    (tmp_path / "export/README.md").write_text("---\ntags:\n- sdpo\n---\n")
    before = sorted(tmp_path.rglob("*"))
    monkeypatch.chdir(tmp_path)
    for place in (name, str(tmp_path / name)):
        assert main(["run", "--out", place]) == 2
        error = capsys.readouterr().err
        assert f"--out: got '{place}'; allowed: a new or empty folder, or an earlier export" in error
        assert len(error.splitlines()) == 1 and sorted(tmp_path.rglob("*")) == before


def test_a_folder_that_is_no_run_is_one_line(tmp_path, capsys):
    assert main([str(tmp_path)]) == 2
    assert "run: got " in capsys.readouterr().err


def test_a_dry_run_lists_what_would_go_and_calls_nobody(adapter_run, tmp_path, capsys, monkeypatch):
    import huggingface_hub

    monkeypatch.setattr(huggingface_hub, "HfApi", lambda *_: pytest.fail("the hub is called"))
    monkeypatch.setattr(socket.socket, "connect", lambda *_: pytest.fail("a connection is tried"))
    run, _ = adapter_run
    assert main([str(run), "--out", str(tmp_path / "out"), "--push", "me/mine", "--dry-run"]) == 0
    lines = capsys.readouterr().out.splitlines()
    assert lines[1] == "would be published as me/mine, private:"
    listed = {line.split()[1]: int(line.split()[0].replace(",", "")) for line in lines[2:]}
    assert listed == {file.name: file.stat().st_size for file in (tmp_path / "out").iterdir()}


class FakeHub:
    """`fails`: the call that raises."""

    def __init__(self, private: bool = True, fails: str = "") -> None:
        self.private, self.fails, self.files = private, fails, []

    def _call(self, name: str) -> None:
        if name == self.fails:
            raise OSError(f"{name}: 403 Forbidden\nfor url ...")

    def create_repo(self, repository, private, exist_ok):
        self._call("create_repo")

    def repo_info(self, repository):
        self._call("repo_info")
        return SimpleNamespace(private=self.private)

    def create_commit(self, repository, operations, commit_message):
        self._call("create_commit")
        self.files = [operation.path_in_repo for operation in operations]
        return SimpleNamespace(commit_url="https://hub/me/mine/commit/1")


def test_only_named_files_are_published_and_in_one_commit(adapter_run, tmp_path, monkeypatch, capsys):
    import huggingface_hub

    from sdpo.cli.hub_push import published

    hub = FakeHub()
    monkeypatch.setattr(huggingface_hub, "HfApi", lambda: hub)
    run, _ = adapter_run
    words = [str(run), "--out", str(tmp_path / "out"), "--push", "me/mine"]
    assert main(words) == 0
    assert "https://hub/me/mine/commit/1" in capsys.readouterr().out
    assert set(hub.files) == {file.name for file in (tmp_path / "out").iterdir()} and "README.md" in hub.files
    (tmp_path / "out/additional_chat_templates").mkdir()
    (tmp_path / "out/additional_chat_templates/tool_use.jinja").touch()
    assert published(tmp_path / "out").keys() - hub.files == {"additional_chat_templates/tool_use.jinja"}
    assert published(run) == {}  # rollouts, logs, checkpoints
    hub.files = []
    hub.private = False
    assert main(words) == 2
    assert "--push: got 'me/mine, public'; allowed: a private one" in capsys.readouterr().err and not hub.files
    assert main([*words, "--public"]) == 0 and hub.files
    for call in ("create_repo", "repo_info", "create_commit"):
        hub = FakeHub(fails=call)
        assert main(words) == 4
        error = capsys.readouterr().err
        assert "403 Forbidden; nothing was published" in error and len(error.splitlines()) == 1 and not hub.files
