"""Before a model is loaded: does every machine of the run see the run folder, the user's files and the same code?"""

from __future__ import annotations

import copy
import secrets
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import ray
from ray.util.scheduling_strategies import NodeAffinitySchedulingStrategy

from sdpo.config import fields
from sdpo.config.files import READ
from sdpo.config.schema import Config
from sdpo.errors import ClusterError, ConfigError, problem
from sdpo.workers.layout import Layout, Node
from sdpo.workers.seen import code_hash, look, unseen, wait_until_seen

PATIENCE_S = 60.0  # for a first process on a machine, beside what files may take
RUN_FOLDER = "trainer.default_local_dir"


def with_whole_paths(config: Config) -> Config:
    """A copy whose paths are found from any folder: processes on other machines begin elsewhere."""
    config = copy.deepcopy(config)
    for key in (RUN_FOLDER, *READ):
        value = fields.get(config, key)
        if value and (key == RUN_FOLDER or Path(value).exists()):
            section, _, name = key.rpartition(".")
            setattr(fields.get(config, section), name, str(Path(value).absolute()))
    return config


def check_nodes(config: Config, layout: Layout) -> None:
    """Raises ConfigError naming the machine and the path, ClusterError for one that does not answer or runs other
    code. Asks no machine but others than the driver's."""
    others = {node.id: node for node in layout.nodes() if node.id != layout.driver.id}
    if not others:
        return
    paths = {key: value for key in READ if (value := fields.get(config, key)) and Path(value).exists()}
    folder, mark = Path(fields.get(config, RUN_FOLDER)), f".seen_by_{secrets.token_hex(4)}"
    writing = {node.id for node in (*layout.actors, *layout.teachers)}
    wait = config.trainer.file_wait_s
    (folder / mark).touch()
    try:
        asked = {
            node: _ask(node, folder if node.id in writing else None, mark, list(paths.values()), wait)
            for node in others.values()
        }
        for node, answer in asked.items():
            _judge(node, answer(), paths, folder, wait)
        for node in (node for node in others.values() if node.id in writing):
            written = folder / f"{mark}_{node.id}"
            if wait_until_seen(partial(unseen, written), wait):
                raise _private(node, folder, f"what {node.address} writes there is not seen here", wait)
    finally:
        for file in folder.glob(f"{mark}*"):
            file.unlink(missing_ok=True)


def _ask(node: Node, *arguments: Any) -> Callable[[], Any]:
    affinity = NodeAffinitySchedulingStrategy(node.id, soft=False)
    answer = ray.remote(look).options(num_cpus=0, scheduling_strategy=affinity).remote(*arguments, node.id)

    def wait() -> Any:
        try:
            return ray.get(answer, timeout=arguments[-1] + PATIENCE_S)
        except ray.exceptions.RayError as error:
            reason = str(error).strip().splitlines()[-1]
            raise ClusterError(f"{node.address} cannot run this program: {reason}; is it installed there?") from error

    return wait


def _judge(node: Node, answer: tuple[bool, list[str], str], paths: dict[str, str], folder: Path, wait: float) -> None:
    seen, missing, code = answer
    if code != (own := code_hash()):
        raise ClusterError(f"{node.address} runs another version of sdpo ({code}; here {own}): install the same")
    if not seen:
        raise _private(node, folder, f"{node.address} does not see what is written here", wait)
    for key, path in paths.items():
        if path in missing:
            fix = f"{node.address} does not have it: put it on a disk that all machines share"
            raise ConfigError(problem(key, path, "a path that every machine of the run has", fix))


def _private(node: Node, folder: Path, why: str, wait: float) -> ConfigError:
    fix = f"{why} ({wait:g} s, trainer.file_wait_s)"
    return ConfigError(problem(RUN_FOLDER, str(folder), f"a folder that {node.address} and this machine share", fix))
