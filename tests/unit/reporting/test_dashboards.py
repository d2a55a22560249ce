"""Dashboards as code: they show metrics that exist, build without a login, and draw what Trackio has recorded."""

from __future__ import annotations

import contextlib
import json
import os
import re
import socket
import subprocess
import sys
import time
from pathlib import Path
from types import SimpleNamespace

import pytest

import sdpo
from sdpo.cli.dashboard import main
from sdpo.reporting.dashboards.panels import CLOCK, sections
from sdpo.reporting.dashboards.trackio_page import write_frontend

METRICS_PAGE = (Path(sdpo.__file__).parents[1] / "docs" / "metrics.md").read_text(encoding="utf-8")


def _panels(n: int = 4):
    return [panel for section in sections(n) for panel in section.panels]


def test_every_metric_of_every_panel_is_on_the_metrics_page():
    named = {name for panel in _panels() for name in (*panel.metrics, panel.x)}
    page = METRICS_PAGE.replace("`val/avg@n`", "`val/avg@4`").replace("`val/pass@k`", "`val/pass@2` `val/pass@4`")
    statuses = {f"grade/{status}_frac" for status in re.findall(r"`(\w+)`", page)}
    assert sorted(name for name in named - statuses - {"train/step"} if f"`{name}`" not in page) == []


def test_the_panels_that_were_asked_for_are_there():
    by_metric = {(metric, panel.x) for panel in _panels() for metric in panel.metrics}
    for metric, x in (
        ("val/avg@4", CLOCK),
        ("sdpo/divergence", "train/step"),
        ("sdpo/signal_frac", "train/step"),
        ("train/response_length", "train/step"),
        ("actor/entropy", "train/step"),
        ("sdpo/teacher_entropy", "train/step"),
        ("timing/rollout_s", "train/step"),
        ("grade/timeout_frac", "train/step"),
    ):
        assert (metric, x) in by_metric
    assert "val/avg@16" in _panels(16)[0].metrics and "val/pass@8" in _panels(16)[2].metrics


def test_the_wandb_workspace_is_built_without_a_login_and_its_panels_do_not_overlap(capsys):
    assert main(["wandb", "--project", "mine", "--print"]) == 0
    view = json.loads(capsys.readouterr().out)
    assert (view["project"], view["displayName"]) == ("mine", "sdpo")
    found = view["spec"]["section"]["panelBankConfig"]["sections"]
    assert [section["name"] for section in found] == [section.title for section in sections()]
    first = found[0]["panels"][0]["config"]
    assert (first["xAxis"], first["metrics"], first["yAxisMax"]) == ("timing/elapsed_s", ["val/avg@4"], 1.0)
    for section in found:
        places = [(p["layout"]["x"], p["layout"]["y"]) for p in section["panels"]]
        assert len(places) == len(set(places)) and all(x + 8 <= 24 for x, _ in places)


class Service:
    """Stands in for W&B's server: notes what is asked and echoes saved views."""

    app_url = "https://wandb.test"

    def __init__(self) -> None:
        self.saved: list[dict] = []

    def execute_graphql(self, query: str, variables: dict) -> dict:
        if "spec" not in variables:
            return {"project": {"internalId": "UHJvamVjdA==", "id": "UHJvamVjdA=="}}
        self.saved.append(variables | {"spec": json.loads(variables["spec"])})
        view = {
            "id": "VmlldzoxMjM=",
            "name": variables.get("name") or "view",
            "displayName": variables.get("displayName"),
            "description": variables.get("description"),
            "type": variables.get("type"),
            "project": {"name": variables["projectName"], "entityName": variables["entityName"], "id": "UHJvamVjdA=="},
            "spec": variables["spec"],
        }
        return {"upsertView": {"view": view, "inserted": True}}


def test_saving_sends_the_workspace_and_the_report_of_the_same_panels(monkeypatch, capsys):
    import wandb

    service = Service()

    class Api:
        def __init__(self, **unused) -> None:
            self._service_api = service
            self.settings = {"entity": "team"}

        def projects(self, entity):
            return [SimpleNamespace(name="mine")]

    monkeypatch.setattr(wandb, "login", lambda **unused: True)
    monkeypatch.setattr(wandb, "Api", Api)
    assert main(["wandb", "--entity", "team", "--project", "mine", "--report"]) == 0
    addresses = capsys.readouterr().out.split()
    assert len(addresses) == 2 and all(a.startswith("https://wandb.test/team/mine") for a in addresses)
    view, report = service.saved
    assert len(view["spec"]["section"]["panelBankConfig"]["sections"]) == len(sections())
    assert report["displayName"] == "SDPO runs"
    for panel in _panels():
        assert panel.title in json.dumps(view["spec"]) and panel.title in json.dumps(report["spec"])


def test_without_a_login_it_is_one_line(monkeypatch, capsys):
    import wandb

    monkeypatch.setattr(wandb, "login", lambda **unused: False)
    assert main(["wandb", "--entity", "team"]) == 2
    error = capsys.readouterr().err
    assert error.count("\n") == 1 and "wandb login" in error
    assert main(["wandb"]) == 2


def test_the_trackio_front_end_is_complete_and_fetches_nothing_from_elsewhere(tmp_path):
    folder = write_frontend(tmp_path / "front", n=16)
    names = sorted(path.name for path in folder.iterdir())
    assert names == ["dashboard.css", "dashboard.js", "index.html", "panels.json"]
    text = "".join(path.read_text() for path in folder.iterdir())
    assert "http://" not in text.replace("http://www.w3.org/2000/svg", "") and "https://" not in text
    assert json.loads((folder / "panels.json").read_text())[0]["panels"][0]["metrics"] == ["val/avg@16"]


LOGGED = """
import trackio
for name, accuracy in (("sdpo-a", 0.9), ("grpo-b", 0.6)):
    run = trackio.init(project="dashboards", name=name, resume="never", embed=False)
    for step in range(5):
        values = {"train/step": step, "timing/elapsed_s": 10.0 * step, "val/avg@4": accuracy * step / 4}
        run.log(values | {"grade/ok_frac": 1.0}, step=step)
    trackio.finish()
"""


@pytest.fixture
def trackio_server(tmp_path):
    """Two runs in a database of their own (Trackio reads its place once, at import), served by the command."""
    environment = os.environ | {"TRACKIO_DIR": str(tmp_path), "TMPDIR": str(tmp_path)}  # the server is killed
    subprocess.run([sys.executable, "-c", LOGGED], env=environment, check=True, capture_output=True)
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    command = [sys.executable, "-m", "sdpo.cli.dashboard", "trackio", "--project", "dashboards", "--port", str(port)]
    process = subprocess.Popen(command, env=environment, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
    while process.poll() is None:
        with contextlib.suppress(OSError), socket.create_connection(("127.0.0.1", port), timeout=1):
            break
        time.sleep(0.1)
    yield f"http://127.0.0.1:{port}/?project=dashboards"
    process.kill()
    process.wait()


def test_trackio_draws_the_panels_from_its_own_database(tab, trackio_server):
    tab.open(trackio_server)
    tab.until("document.querySelectorAll('#sections svg').length >= 2")
    assert tab.js("document.getElementById('title').textContent") == "dashboards"
    first = "document.querySelector('#sections figure')"
    assert tab.js(f"{first}.querySelector('h3').textContent") == "Held-out accuracy by wall clock"
    assert sorted(tab.js(f"[...{first}.querySelectorAll('.key')].map(k => k.textContent)")) == ["grpo-b", "sdpo-a"]
    lines = tab.js(f"JSON.parse({first}.querySelector('svg').dataset.chart).lines")
    assert {name: points[-1] for name, points, _ in lines} == {"sdpo-a": [40, 0.9], "grpo-b": [40, 0.6]}
    tab.js("document.querySelector('#runs input').click()")
    tab.until(f"{first}.querySelectorAll('.key').length === 0")  # one run is left
    tab.open("about:blank")
