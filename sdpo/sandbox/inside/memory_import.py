"""Serves the standard library from memory, for runs that may not open files (or whose user id may not read the
interpreter's)."""

from __future__ import annotations

import importlib
import importlib.machinery
import importlib.util
import marshal
import os
import sys
import sysconfig
from collections.abc import Iterator

_SKIPPED = """
test tests idlelib tkinter turtledemo lib2to3 ensurepip distutils site-packages dist-packages __pycache__ pydoc_data
msilib idle_test venv turtle.py antigravity.py this.py
"""
SKIPPED = frozenset(_SKIPPED.split())
SKIPPED_EXTENSIONS = ("_test", "xx", "_tkinter", "_ctypes_test", "_xx", "_curses", "nis", "ossaudiodev")
NUMPY_PARTS = (
    "numpy.random",
    "numpy.linalg",
    "numpy.fft",
    "numpy.polynomial",
    "numpy.ma",
    "numpy.testing",
    "numpy.typing",
)
PYC_HEADER = 16


class MemoryFinder:
    """Finder and loader: module name -> (marshalled code, whether it is a package). No base class: importlib.abc
    would bring twenty modules into every run."""

    def __init__(self, modules: dict[str, tuple[bytes, bool]]) -> None:
        self.modules = modules

    def find_spec(self, name: str, path: object = None, target: object = None) -> importlib.machinery.ModuleSpec | None:
        if name not in self.modules:
            return None
        package = self.modules[name][1]  # the stubs know only loaders with `load_module`
        return importlib.util.spec_from_loader(name, self, origin="memory", is_package=package)  # type: ignore[arg-type]

    def create_module(self, spec: object) -> None:
        """The ordinary kind of module."""

    def exec_module(self, module: object) -> None:
        code, _ = self.modules[module.__name__]  # type: ignore[attr-defined]
        exec(marshal.loads(code), vars(module))

    def get_code(self, name: str) -> object:
        return marshal.loads(self.modules[name][0])


def install() -> None:
    """Reads the library now, imports its extension modules, and takes precedence over the path from here on."""
    folder = sysconfig.get_path("stdlib")
    for name in extension_names():
        try:
            importlib.import_module(name)
        except ImportError:
            continue  # needs a library that this machine lacks
    finder = MemoryFinder(dict(read_modules(folder, "")))
    at = next((i for i, f in enumerate(sys.meta_path) if f is importlib.machinery.PathFinder), len(sys.meta_path))
    sys.meta_path.insert(at, finder)


def extension_names() -> list[str]:
    folder = sysconfig.get_path("platstdlib") + "/lib-dynload"
    if not os.path.isdir(folder):
        return []
    names = (name.split(".")[0] for name in os.listdir(folder) if name.endswith(".so"))
    return sorted(name for name in names if not name.startswith(SKIPPED_EXTENSIONS))


def read_modules(folder: str, prefix: str) -> Iterator[tuple[str, tuple[bytes, bool]]]:
    for entry in sorted(os.listdir(folder)):
        path = f"{folder}/{entry}"
        if entry in SKIPPED or entry.startswith("config-"):
            continue
        if entry.endswith(".py"):
            name = prefix + entry[:-3]
            code = read_code(path)
            if code is not None:
                yield (prefix[:-1], (code, True)) if entry == "__init__.py" else (name, (code, False))
        elif os.path.isfile(f"{path}/__init__.py"):
            yield from read_modules(path, f"{prefix}{entry}.")


def read_code(path: str) -> bytes | None:
    """The cached byte code where there is some, else the compiled source."""
    cached = importlib.util.cache_from_source(path)
    try:
        with open(cached, "rb") as file:
            data = file.read()
        if data[:4] == importlib.util.MAGIC_NUMBER:
            return data[PYC_HEADER:]
    except OSError:
        pass  # not compiled yet
    try:
        with open(path, "rb") as file:
            return marshal.dumps(compile(file.read(), path, "exec", dont_inherit=True))
    except (OSError, SyntaxError, ValueError):
        return None
