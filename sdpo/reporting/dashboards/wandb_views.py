"""Weights & Biases: a workspace over a project's runs, and a report that compares them."""

from __future__ import annotations

from typing import Any

import wandb
import wandb_workspaces.reports.v2 as wr
import wandb_workspaces.workspaces as ws

from sdpo.errors import ConfigError
from sdpo.reporting.dashboards.panels import Panel, Section, sections

NAME = "sdpo"


def workspace(entity: str, project: str, n: int = 4) -> ws.Workspace:
    """Not saved yet; needs no login."""
    return ws.Workspace(
        name=NAME,
        entity=entity,
        project=project,
        sections=[ws.Section(name=section.title, panels=_laid_out(section), is_open=True) for section in sections(n)],
    )


def report(entity: str, project: str, n: int = 4) -> wr.Report:
    """Accuracy, signal and cost of a project's runs, grouped as the runs' groups are. Saving it needs a login."""
    blocks: list[Any] = [
        wr.P("Held-out accuracy against the clock and against samples, and what each run had to learn from.")
    ]
    for section in sections(n):
        runs = wr.Runset(entity=entity, project=project, name="runs")
        blocks += [wr.H2(section.title), wr.PanelGrid(runsets=[runs], panels=_laid_out(section))]
    return wr.Report(entity=entity, project=project, title="SDPO runs", description="made by sdpo", blocks=blocks)


def save(view: ws.Workspace | wr.Report) -> str:
    """Its address. Raises ConfigError when W&B does not take it (no login, no such entity, no network)."""
    if not wandb.login(prompt=False):
        raise ConfigError("wandb: not logged in; run `wandb login` (or set WANDB_API_KEY) first")
    try:
        view.save()
    # The client raises bare exceptions for refused requests; a person needs the words, not the trace.
    except Exception as error:
        raise ConfigError(f"wandb did not take the dashboard: {' '.join(str(error).split())}") from error
    return str(view.url)


def _laid_out(section: Section) -> list[wr.LinePlot]:
    """Three panels in a row of 24 columns."""
    panels = [_plot(panel) for panel in section.panels]
    for place, panel in enumerate(panels):
        panel.layout = wr.Layout(x=8 * (place % 3), y=6 * (place // 3), w=8, h=6)
    return panels


def _plot(panel: Panel) -> wr.LinePlot:
    return wr.LinePlot(
        title=panel.title,
        x=panel.x,
        y=list(panel.metrics),
        title_x=panel.x_title,
        title_y=panel.y_title or None,
        range_y=(0.0, 1.0) if panel.share else (None, None),
        plot_type="stacked-area" if panel.stacked else "line",
    )
