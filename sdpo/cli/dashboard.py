"""`python -m sdpo.cli.dashboard wandb|trackio --project NAME`: the panels of this package in a tracker.

wandb: saves a workspace (and with --report a report) in the project; --print shows the workspace's specification and
needs no login. trackio: serves Trackio's local database with a front end of ours; --write only writes that front end.
"""

from __future__ import annotations

import argparse
import json
import sys
import tempfile
from pathlib import Path

from sdpo.cli.numbers import positive_whole
from sdpo.cli.output_file import writing
from sdpo.cli.program import program
from sdpo.errors import ConfigError


@program
def main(argv: list[str] | None = None) -> int:
    options = _parse(argv)
    try:
        return _wandb(options) if options.tracker == "wandb" else _trackio(options)
    except KeyboardInterrupt:
        return 0
    except ImportError as error:
        print(f"error: {error}; install it with pip install 'sdpo[{options.tracker}]'", file=sys.stderr)
        return ConfigError.exit_code


def _wandb(options: argparse.Namespace) -> int:
    from sdpo.reporting.dashboards.wandb_views import report, save, workspace

    if options.print:
        model = workspace(options.entity or "ENTITY", options.project, options.n)._to_model()
        print(json.dumps(json.loads(model.model_dump_json(by_alias=True, exclude_none=True)), indent=1))
        return 0
    if not options.entity:
        raise ConfigError("dashboard: --entity is needed: the W&B user or team that owns the project")
    print(save(workspace(options.entity, options.project, options.n)))
    if options.report:
        print(save(report(options.entity, options.project, options.n)))
    return 0


def _trackio(options: argparse.Namespace) -> int:
    from sdpo.reporting.dashboards.trackio_page import show, write_frontend

    if options.write:
        with writing(options.write, "--write"):
            print(write_frontend(options.write, options.n))
        return 0
    with tempfile.TemporaryDirectory() as folder:
        show(options.project, Path(folder), options.n, options.port)
    return 0


def _parse(argv: list[str] | None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        prog="python -m sdpo.cli.dashboard", description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    trackers = parser.add_subparsers(dest="tracker", required=True)
    wandb, trackio = trackers.add_parser("wandb"), trackers.add_parser("trackio")
    for tracker in (wandb, trackio):
        tracker.add_argument("--project", default="sdpo", help="trainer.project_name of the runs (default: sdpo)")
        tracker.add_argument("--n", type=positive_whole, default=4, help="val_kwargs.n of the runs (default: 4)")
    wandb.add_argument("--entity", help="user or team")
    wandb.add_argument("--report", action="store_true", help="a report as well")
    wandb.add_argument("--print", action="store_true", help="print the workspace's specification, save nothing")
    trackio.add_argument("--port", type=int, help="default: the first free one from 7860")
    trackio.add_argument("--write", type=Path, metavar="FOLDER", help="write the front end there, serve nothing")
    return parser.parse_args(argv)


if __name__ == "__main__":
    sys.exit(main())
