"""`python -m sdpo.cli.watch RUN [--port 8700]`: a page on this machine that follows a run, going on or ended."""

from __future__ import annotations

import argparse
import sys

from sdpo.cli.program import program
from sdpo.reporting.live.run import LiveRun
from sdpo.reporting.live.server import WatchServer

PORT = 8700


@program
def main(argv: list[str] | None = None) -> int:
    parser = argparse.ArgumentParser(prog="python -m sdpo.cli.watch", description=__doc__)
    parser.add_argument("run", help="run folder (trainer.default_local_dir)")
    parser.add_argument("--port", type=int, default=PORT, help="0: any free one (default: %(default)s)")
    options = parser.parse_args(argv)
    server = WatchServer(LiveRun(options.run), options.port)
    print(f"{server.url}   (this machine only; Ctrl-C ends it; from elsewhere: ssh -L {server.server_port}:127.0.0.1:"
          f"{server.server_port} HOST)", flush=True)  # fmt: skip
    with server:
        try:
            server.serve_forever()
        except KeyboardInterrupt:
            print()
    return 0


if __name__ == "__main__":
    sys.exit(main())
