"""`python -m sdpo.cli.evaluate MODEL_OR_RUN... [OVERRIDES...]`: answers to held-out problems, graded as in training.

python -m sdpo.cli.evaluate RUN                          the last weights of a run, on its own held-out problems
python -m sdpo.cli.evaluate builtin://tiny/hard RUN RUN@best   three models on the same problems, and the differences
python -m sdpo.cli.evaluate RUN --data FILE... -n 16     other problems; several files: target and what must not suffer
python -m sdpo.cli.evaluate NAME --base-url http://localhost:8000/v1 --like RUN   a model behind a server

Settings are those of the first run that is named (or --like RUN), else those of sdpo.main_sdpo; `key=value` changes
one, such as `data.apply_chat_template_kwargs.enable_thinking=false`.
"""

from __future__ import annotations

import argparse
import json
import logging
import os
import sys
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

from sdpo.cli.numbers import positive_whole
from sdpo.cli.output_file import make_writable, writing
from sdpo.cli.program import program
from sdpo.errors import ConfigError, problem

if TYPE_CHECKING:
    from sdpo.config.schema import Config
    from sdpo.evaluation.measure import Measured
    from sdpo.records import Group


@program
def main(argv: list[str] | None = None) -> int:
    options = _parse(argv)
    logging.basicConfig(level=logging.WARNING, format="%(levelname)s: %(message)s", stream=sys.stderr)
    config = _settings(options)
    from sdpo.config.environment import ENVIRONMENT

    for name, value in ENVIRONMENT.items():
        os.environ.setdefault(name, value)
    answers = options.out / "answers.jsonl" if options.out else None
    if answers:
        make_writable(answers, "--out")
        answers.write_text("")
    measured = _measure(options, config, answers)

    from sdpo.evaluation import tables

    found = tables.Evaluation(measured, config.actor_rollout_ref.rollout.val_kwargs.n, _about(config, options))
    print(tables.text(found))
    if options.out:
        with writing(options.out, "--out"):
            (options.out / "results.json").write_text(json.dumps(tables.as_json(found), indent=1) + "\n")
            (options.out / "table.md").write_text(tables.markdown(found))
            (options.out / "index.html").write_text(tables.html(found, "Evaluation"))
        print(options.out / "index.html")
    return 0


def _measure(options: argparse.Namespace, config: Config, answers: Path | None) -> list[Measured]:
    def say(told: str) -> None:
        print(told, file=sys.stderr, flush=True)

    def keep(name: str, group: Group) -> None:
        from sdpo.tracking.run_log import sample_record

        if answers:
            rows = [sample_record(0, "val", group.prompt, sample, None) | {"model": name} for sample in group.samples]
            with writing(answers, "--out"), answers.open("a", encoding="utf-8") as file:
                file.writelines(json.dumps(row, ensure_ascii=False) + "\n" for row in rows)

    if options.base_url:
        from sdpo.evaluation.server import Server, gradable

        server, prompts = Server(options.base_url, config), gradable(config)[: options.problems]
        return [server.measure(name, prompts, say, partial(keep, name)) for name in options.models]
    from sdpo.evaluation.measure import measure
    from sdpo.evaluation.subjects import find

    subjects = [find(name, config) for name in options.models]  # all, before minutes are spent on the first
    return [measure(config, s, say, partial(keep, s.name), options.problems) for s in subjects]


def _settings(options: argparse.Namespace) -> Config:
    """Raises ConfigError for what a run would refuse, and without problems."""
    from sdpo.config import compose
    from sdpo.config.validate import validate
    from sdpo.evaluation.subjects import is_run, run_folder
    from sdpo.tracking.history import CONFIG_FILE

    overrides = list(options.overrides)
    if options.answers:
        overrides.append(f"actor_rollout_ref.rollout.val_kwargs.n={options.answers}")
    if options.data:
        overrides.append(f"data.val_files={json.dumps(options.data)}")
    run = options.like or next((name for name in options.models if is_run(name)), None)
    if run is not None:
        folder, _ = run_folder(run)
        config = compose.of_run(folder / CONFIG_FILE, overrides)
    else:
        if not options.base_url and not any(text.startswith("actor_rollout_ref.model.path=") for text in overrides):
            overrides.append(f"actor_rollout_ref.model.path='{options.models[0]}'")
        config = compose.compose(overrides, options.config_name, options.config_dir)
    validate(config)
    if not config.data.val_files:
        raise ConfigError(problem("data.val_files", [], "files with problems", "give --data FILE..."))
    return config


def _about(config: Config, options: argparse.Namespace) -> dict[str, Any]:
    sampling = config.actor_rollout_ref.rollout.val_kwargs
    return {
        "problems": ", ".join(config.data.val_files),
        "temperature": sampling.temperature if sampling.do_sample else 0.0,
        "top_p": sampling.top_p,
        "top_k": sampling.top_k,
        "longest answer, tokens": config.data.max_response_length,
        "template options": dict(config.data.apply_chat_template_kwargs) or "–",
        "right": f"reward of at least {config.trainer.val_success_threshold:g}",
        "engine": options.base_url or config.actor_rollout_ref.rollout.name,
        "seed": config.data.seed,
    }


def _parse(argv: list[str] | None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        prog="python -m sdpo.cli.evaluate",
        description=__doc__,
        allow_abbrev=False,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("words", nargs="+", metavar="MODEL_OR_RUN", help="and settings (key=value), in any order")
    parser.add_argument("--data", nargs="+", metavar="FILE", help="problems; default: data.val_files")
    parser.add_argument("-n", dest="answers", type=positive_whole, help="answers to each problem (val_kwargs.n)")
    parser.add_argument("--problems", type=positive_whole, help="only the first so many")
    parser.add_argument("--like", metavar="RUN", help="settings of this run")
    parser.add_argument("--base-url", metavar="URL", help="names are those of models that this server has")
    parser.add_argument("--out", type=Path, help="folder for results.json, table.md, index.html and answers.jsonl")
    parser.add_argument("-cn", "--config-name", default="sdpo")
    parser.add_argument("-cd", "--config-dir")
    options = parser.parse_intermixed_args(argv)
    options.overrides = [word for word in options.words if "=" in word or word.startswith("~")]
    options.models = [word for word in options.words if word not in options.overrides]
    if not options.models:
        parser.error("name a model or a run")
    if twice := [name for name in options.models if options.models.count(name) > 1]:
        raise ConfigError(problem("MODEL_OR_RUN", twice[0], "each model once"))
    return options


if __name__ == "__main__":
    sys.exit(main())
