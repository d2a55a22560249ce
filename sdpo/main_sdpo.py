"""`python -m sdpo.main_sdpo`: compose the configuration, check it, then import torch and train."""

from __future__ import annotations

import argparse
import logging
import os
import sys
import traceback
from typing import NoReturn

import sdpo
from sdpo import interrupt
from sdpo.cli.program import program
from sdpo.config.environment import ENVIRONMENT
from sdpo.errors import DISK_ERRORS, ConfigError, OutputLost, SdpoError


class _Parser(argparse.ArgumentParser):
    def error(self, message: str) -> NoReturn:
        raise ConfigError(f"command line: {message}; see --help")


@program
def main(argv: list[str] | None = None) -> int:
    """Runs `argv` (default: the process's own). Returns the exit code; an error is one line on stderr."""
    argv = sys.argv[1:] if argv is None else argv
    logging.basicConfig(level=logging.WARNING, format="%(levelname)s: %(message)s", stream=sys.stderr)
    try:
        return _run(argv)
    except SdpoError as error:
        if "--traceback" in argv:
            traceback.print_exception(error)
        raise
    except KeyboardInterrupt as stop:
        print(interrupt.message(stop), file=sys.stderr)
        return interrupt.exit_code(stop)
    except OSError as error:
        if error.errno not in DISK_ERRORS or "--traceback" in argv:
            raise
        where = error.filename or "the run folder or /dev/shm"
        raise OutputLost(f"{where}: {error.strerror}; make room, then resume") from error


def _run(argv: list[str]) -> int:
    options = _parse(argv)
    if options.help:
        from sdpo.config.help_text import help_text

        print(help_text())
        return 0
    if options.version:
        print(sdpo.__version__)
        return 0

    from sdpo.config import compose, positions
    from sdpo.config.validate import validate

    if options.cfg:
        from omegaconf import OmegaConf

        tree = compose.compose_tree(options.overrides, options.config_name, options.config_dir)
        config = compose.to_config(tree)
        print(compose.to_yaml(config) if options.resolve else OmegaConf.to_yaml(tree), end="")
        validate(config, files_too=False)
        return 0

    config = compose.compose(options.overrides, options.config_name, options.config_dir)
    if positions.fetch(config):  # lengths may follow what the model says
        config = compose.compose(options.overrides, options.config_name, options.config_dir)
    from sdpo.reprompt.templates import check_templates
    from sdpo.training import run_folder

    validate(config)
    check_templates(config.actor_rollout_ref.actor.self_distillation)
    if config.trainer.total_training_steps and run_folder.is_complete(config, config.trainer.total_training_steps):
        return 0
    for name, value in ENVIRONMENT.items():
        os.environ.setdefault(name, value)
    interrupt.end_at_once_on_signals()
    from sdpo.training.run import train

    interrupt.raise_on_signals()
    return train(config)


def _parse(argv: list[str]) -> argparse.Namespace:
    parser = _Parser(add_help=False, allow_abbrev=False)
    parser.add_argument("overrides", nargs="*")
    parser.add_argument("-h", "--help", action="store_true")
    parser.add_argument("--version", action="store_true")
    parser.add_argument("-cn", "--config-name", default="sdpo")
    parser.add_argument("-cd", "--config-dir", "-cp", "--config-path", dest="config_dir")
    parser.add_argument("-c", "--cfg", choices=["job"])
    parser.add_argument("--resolve", action="store_true")
    parser.add_argument("--traceback", action="store_true")
    return parser.parse_intermixed_args(argv)


if __name__ == "__main__":
    sys.exit(main())
