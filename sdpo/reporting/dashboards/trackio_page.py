"""Trackio: its own server with a front end of ours, which draws the panels from Trackio's database."""

from __future__ import annotations

import json
from pathlib import Path

from sdpo.reporting.dashboards.panels import as_json
from sdpo.reporting.page import CHART_SCRIPT, STYLE

ASSETS = Path(__file__).parent / "trackio_assets"


def write_frontend(folder: Path, n: int = 4) -> Path:
    """The front end's files, for `trackio.show(frontend_dir=...)` and `trackio sync --frontend`. Returns the folder."""
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "index.html").write_text((ASSETS / "index.html").read_text(encoding="utf-8"), encoding="utf-8")
    (folder / "panels.json").write_text(json.dumps(as_json(n)), encoding="utf-8")
    script = CHART_SCRIPT + (ASSETS / "dashboard.js").read_text(encoding="utf-8")
    (folder / "dashboard.js").write_text(script, encoding="utf-8")
    style = STYLE + (ASSETS / "dashboard.css").read_text(encoding="utf-8")
    (folder / "dashboard.css").write_text(style, encoding="utf-8")
    return folder


def show(project: str, folder: Path, n: int = 4, port: int | None = None) -> None:
    """Runs Trackio's server with the front end, on this machine only, until it is interrupted."""
    import trackio

    write_frontend(folder, n)
    trackio.show(
        project, frontend_dir=folder, server_port=port, host="127.0.0.1", open_browser=False, block_thread=True
    )
