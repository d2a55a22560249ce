"""Who may import whom: the layers of docs/architecture.md."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator
from pathlib import Path

import pytest

ROWS = (
    ("records", "packed", "errors", "interrupt", "config"),
    ("sandbox",),
    ("algorithms", "losses", "kernels", "reprompt", "tokens", "grading", "data"),
    ("models", "offload", "teacher", "rollout", "weights", "tracking"),
    ("environments", "embedded", "reporting"),
    ("workers",),
    ("training",),
    ("screening", "evaluation"),
    ("cli", "main_sdpo"),
)
# Plain data without imports of its own: limits and reports read what an algorithm is before anything heavy loads.
READ_BY_ALL = "sdpo.algorithms.registry"
ROW_OF = {part: row for row, parts in enumerate(ROWS) for part in parts}

# Library -> the only places of sdpo/ that may import it (folders end with a slash).
HOMES = {
    "ray": ("workers/",),
    "verl.single_controller": ("workers/",),
    "vllm": ("rollout/vllm_engine.py", "rollout/vllm_async.py", "weights/", "grading/vllm_calls.py"),
    "peft": ("models/", "teacher/adapters.py"),
    "hydra": ("config/compose.py", "main_sdpo.py"),
    "omegaconf": ("config/compose.py", "main_sdpo.py"),
    **dict.fromkeys(
        (
            "wandb",
            "wandb_workspaces",
            "trackio",
            "tensorboard",
            "mlflow",
            "swanlab",
            "verl.utils.tracking",
            "torch.utils.tensorboard",
        ),
        ("tracking/", "reporting/"),
    ),
}


def modules(repository: Path) -> Iterator[tuple[str, ast.Module]]:
    """(path below sdpo/, syntax tree) of every module of the package."""
    package = repository / "sdpo"
    for path in sorted(package.rglob("*.py")):
        yield path.relative_to(package).as_posix(), ast.parse(path.read_text(encoding="utf-8"), filename=str(path))


def imported(path: str, tree: ast.Module) -> Iterator[tuple[int, str]]:
    """(line, absolute dotted name) of everything the module at `path` below sdpo/ imports, anywhere in it."""
    package = ["sdpo", *Path(path).parent.parts]
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            for alias in node.names:
                yield node.lineno, alias.name
        elif isinstance(node, ast.ImportFrom):
            base = package[: len(package) - node.level + 1] if node.level else []
            source = ".".join([*base, *filter(None, [node.module])])
            for alias in node.names:  # `from sdpo import records` names a module, too
                yield node.lineno, f"{source}.{alias.name}"


def part_of(path: str) -> str:
    return path.split("/")[0].removesuffix(".py")


def part_imported(name: str) -> str | None:
    pieces = name.split(".")
    return pieces[1] if pieces[0] == "sdpo" and len(pieces) > 1 and not pieces[1].startswith("__") else None


def backward_arrows(path: str, tree: ast.Module) -> Iterator[str]:
    row = ROW_OF.get(part_of(path), len(ROWS))
    for line, name in imported(path, tree):
        target = part_imported(name)
        if target is not None and ROW_OF.get(target, -1) > row and not name.startswith(READ_BY_ALL):
            yield f"sdpo/{path}:{line} imports {name}: {part_of(path)} must not know {target}"


def away_from_home(path: str, tree: ast.Module) -> Iterator[str]:
    for line, name in imported(path, tree):
        for library, homes in HOMES.items():
            inside = any(path.startswith(home) if home.endswith("/") else path == home for home in homes)
            if (name == library or name.startswith(library + ".")) and not inside:
                yield f"sdpo/{path}:{line} imports {name}: its home is {' or '.join(homes)}"


def test_every_part_has_a_row(repository: Path) -> None:
    parts = {part_of(path) for path, _ in modules(repository)} - {"__init__"}
    assert parts == ROW_OF.keys(), f"add or remove here and in docs/architecture.md: {sorted(parts ^ ROW_OF.keys())}"


def test_the_page_has_the_same_rows(repository: Path) -> None:
    page = (repository / "docs/architecture.md").read_text(encoding="utf-8")
    layers = page.partition("\n## Layers\n")[2].partition("\n## ")[0]
    rows = [re.findall(r"`(\w+)`", line.split("|")[1]) for line in layers.splitlines() if line.startswith("| `")]
    assert rows == [list(row) for row in ROWS]


def test_no_import_points_back(repository: Path) -> None:
    found = [arrow for path, tree in modules(repository) for arrow in backward_arrows(path, tree)]
    assert not found, "\n" + "\n".join(found)


def test_parts_of_one_row_do_not_import_in_a_circle(repository: Path) -> None:
    arrows: dict[str, set[str]] = {}
    for path, tree in modules(repository):
        names = [name for _, name in imported(path, tree) if not name.startswith(READ_BY_ALL)]
        targets = set(map(part_imported, names)) & ROW_OF.keys() - {part_of(path)}
        arrows.setdefault(part_of(path), set()).update(targets)

    def reach(part: str, seen: frozenset[str]) -> frozenset[str]:
        for target in arrows.get(part, set()) - seen:
            seen = reach(target, seen | {target})
        return seen

    circular = sorted(part for part in arrows if part in reach(part, frozenset()))
    assert not circular, f"these import each other: {circular}"


def test_modules_of_one_part_do_not_import_in_a_circle(repository: Path) -> None:
    """Also not for the sake of a type: what a module needs of another one is then a protocol of its own."""
    trees = dict(modules(repository))
    names = {"sdpo." + path.removesuffix(".py").removesuffix("/__init__").replace("/", "."): path for path in trees}
    arrows = {
        path: {
            names[target]
            for _, name in imported(path, tree)
            for target in (name, name.rpartition(".")[0])
            if target in names and part_of(names[target]) == part_of(path) and names[target] != path
        }
        for path, tree in trees.items()
    }
    assert not (found := circles(arrows)), found


def circles(arrows: dict[str, set[str]]) -> list[list[str]]:
    """Those that import each other, by groups."""

    def reach(start: str) -> set[str]:
        seen: set[str] = set()
        left = [start]
        while left:
            for target in arrows[left.pop()] - seen:
                seen.add(target)
                left.append(target)
        return seen

    reached = {module: reach(module) for module in arrows}
    groups = {tuple(sorted(o for o in reached[m] if m in reached[o])) for m in arrows if m in reached[m]}
    return sorted(map(list, groups))


def test_a_circle_is_found() -> None:
    assert circles({"a": {"b"}, "b": {"c"}, "c": {"a"}, "d": {"a"}}) == [["a", "b", "c"]]


def test_what_everybody_reads_imports_nothing_but_errors(repository: Path) -> None:
    path = READ_BY_ALL.removeprefix("sdpo.").replace(".", "/") + ".py"
    tree = ast.parse((repository / "sdpo" / path).read_text(encoding="utf-8"))
    tree.body = [node for node in tree.body if not isinstance(node, ast.If)]  # `if TYPE_CHECKING`
    assert {name.split(".")[1] for _, name in imported(path, tree) if name.startswith("sdpo.")} == {"errors"}


def test_only_algorithms_names_an_algorithm(repository: Path) -> None:
    """A value of `loss_mode` in code outside means that adding an algorithm is more than a file and a line."""
    from sdpo.algorithms.registry import ALGORITHMS

    known = {*ALGORITHMS, *(descriptor.label for descriptor in ALGORITHMS.values())} - {"sdpo"}  # the package's name
    found = [
        f"sdpo/{path}:{node.lineno} {ast.unparse(node)}"
        for path, tree in modules(repository)
        if not path.startswith("algorithms/")
        for node in ast.walk(tree)
        if isinstance(node, ast.Constant)
        and node.value in known
        or isinstance(node, ast.Compare)
        and "loss_mode" in ast.unparse(node)
    ]
    assert not found, "\n" + "\n".join(found)


def test_heavy_libraries_stay_in_their_homes(repository: Path) -> None:
    found = [stray for path, tree in modules(repository) for stray in away_from_home(path, tree)]
    assert not found, "\n" + "\n".join(found)


@pytest.mark.parametrize(
    ("path", "source", "complaints"),
    [
        ("algorithms/sdpo.py", "from sdpo.workers import actor", 1),
        ("algorithms/sdpo.py", "def f():\n    from ..training.loop import run", 1),
        ("algorithms/sdpo.py", "from ..records import Group\nfrom .rows import usable", 0),
        ("errors.py", "from sdpo import training", 1),
        ("training/loop.py", "import sdpo.workers.actor\nfrom sdpo import __version__", 0),
        ("training/loop.py", "import ray", 1),
        ("workers/ray_group.py", "import ray\nfrom verl.single_controller.ray import RayWorkerGroup", 0),
        ("teacher/base.py", "from verl.single_controller.ray import RayWorkerGroup", 1),
        ("teacher/base.py", "import raylib\nfrom verl import DataProto", 0),
    ],
)
def test_the_walk_sees_what_it_should(path: str, source: str, complaints: int) -> None:
    tree = ast.parse(source)
    assert len([*backward_arrows(path, tree), *away_from_home(path, tree)]) == complaints
