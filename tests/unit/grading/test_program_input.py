"""Honest programs that read, count and wait in every usual way, with files and without any."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor

import pytest

from sdpo.sandbox.limits import Limits

# Each prints the line that it was given.
READERS = """
print(input())
print(next(iter(input, "")))
print(open(0).read().strip())
with open(0) as f: print(f.readline().strip())
print(open("/dev/stdin").read().strip())
print(open(b"/dev/stdin", "rb").read().decode().strip())
print(open(file="/dev/stdin", mode="rb", buffering=0).read().decode().strip())
print(open("/dev/fd/0", encoding="utf-8").read().strip())
print(open("/proc/self/fd/0").read().strip())
print(open("/dev/../dev//stdin").read().strip())
import builtins; print(builtins.open("/dev/stdin").read().strip())
import io; print(io.open("/dev/stdin").read().strip())
from io import open; print(open("/dev/stdin").read().strip())
import io; print(io.FileIO(0).read().decode().strip())
import io, sys; sys.stdin = io.TextIOWrapper(sys.stdin.buffer, encoding="utf-8"); print(input())
import io, os; input = io.BytesIO(os.read(0, os.fstat(0).st_size)).readline; print(input().decode().strip())
import pathlib; print(pathlib.Path("/dev/stdin").read_text().strip())
import pathlib; print(pathlib.Path("/dev/stdin").read_bytes().decode().strip())
from pathlib import Path; print(Path("/dev/fd/0").open().readline().strip())
import pathlib; print(pathlib.Path("/dev", "stdin").exists() and input())
import os; print(os.path.exists("/dev/stdin") and os.access("/dev/stdin", os.R_OK) and input())
import os; print(os.read(0, 100).decode().strip())
import os, shutil; print(os.stat in os.supports_dir_fd and shutil.rmtree.avoids_symlink_attacks and input())
import os, sys; print(os.read(sys.stdin.fileno(), 100).decode().strip())
import os; print(os.read(os.open("/dev/stdin", os.O_RDONLY), 100).decode().strip())
import os; print(os.fdopen(0).read().strip())
import os; print(os.fdopen(0, "rb").readline().decode().strip())
import os; b = bytearray(6); os.readv(0, [b]); print(b.decode().strip())
import sys; print(sys.stdin.read().strip())
import sys; print(sys.stdin.readline().strip())
import sys; print(sys.stdin.readlines()[0].strip())
import sys; print(*[line.strip() for line in sys.stdin])
import sys; print(sys.__stdin__.read().strip())
import sys; print(sys.stdin.buffer.read().decode().strip())
import sys; print(sys.stdin.buffer.readline().decode().strip())
import sys; print(sys.stdin.buffer.raw.read().decode().strip())
import sys; b = bytearray(50); n = sys.stdin.buffer.readinto(b); print(b[:n].decode().strip())
import sys; sys.stdin.reconfigure(encoding="utf-8"); print(input())
import sys; print(sys.stdin.detach().read().decode().strip())
import fileinput; print(*[line.strip() for line in fileinput.input()])
import fileinput; print(*[line.strip() for line in fileinput.input("/dev/stdin")])
import fileinput; print(*[line.strip() for line in fileinput.input(files=("-",))])
import codecs; print(codecs.open("/dev/stdin", "r", "utf-8").read().strip())
import codecs, sys; print(codecs.getreader("utf-8")(sys.stdin.buffer).read().strip())
import csv, sys; print(" ".join(next(csv.reader(sys.stdin))))
import mmap; print(mmap.mmap(0, 0, prot=mmap.PROT_READ)[:].decode().strip())
import select, sys; assert select.select([sys.stdin], [], [], 0)[0]; print(input())
import asyncio, sys; print(asyncio.run(asyncio.to_thread(sys.stdin.readline)).strip())
import numpy as np, sys; print(*np.loadtxt(sys.stdin, dtype=str, ndmin=1))
import numpy as np; print(*np.loadtxt("/dev/stdin", dtype=str, ndmin=1))
import numpy as np; print(*np.genfromtxt("/dev/stdin", dtype=str).ravel())
class A: o = open\\nprint(A().o("/dev/stdin").read().strip())
open("/dev/stdout", "w").write(input() + "\\\\n")
import pathlib; pathlib.Path("/dev/stdout").write_text(input() + "\\\\n")
"""
COUNTERS = """
n = 10**5000; assert len(str(n)) == 5001 and int(str(n)) == n; print(input())
import sys; assert int("9" * 20_000) % 7 >= 0 and sys.get_int_max_str_digits() == 0; print(input())
assert f"{3**20_000}"[-1] == "1" and len("%d" % 2**20_000) == 6021; print(input())
import json; assert json.loads(json.dumps([10**9000])) == [10**9000]; print(input())
from fractions import Fraction; assert str(Fraction(10**5000, 3)).endswith("/3"); print(input())
import math; assert len(str(math.factorial(2000))) == 5736; print(input())
"""
_WAIT = "lambda _: time.sleep(0.05)"
_START, _TELL, _BIG = "[x.start() for x in w]", "print(input())", "bytes(1 << 20)"
_DEEP = "threading.Thread(target=lambda: print(f(9000) and input())).start()"
WAITERS = f"""
import time; from concurrent.futures import ThreadPoolExecutor as T; list(T(8).map({_WAIT}, range(8))); print(input())
import time; from concurrent.futures import ThreadPoolExecutor as T; list(T(64).map({_WAIT}, range(64))); print(input())
import threading as t; e = t.Event(); w = [t.Thread(target=e.wait) for _ in range(64)]; {_START}; e.set(); {_TELL}
import threading as t, zlib; w = [t.Thread(target=zlib.crc32, args=[{_BIG}]) for _ in range(64)]; {_START}; {_TELL}
import threading, sys; sys.setrecursionlimit(9999); f = lambda n: n and 1 + f(n - 1); {_DEEP}
"""


def program(line: str) -> str:
    return line.replace("\\n", "\n").replace("\\\n", "\\n")


@pytest.mark.parametrize("box", ["sandbox", "weakest_sandbox"])
@pytest.mark.parametrize("lines", [READERS, COUNTERS, WAITERS], ids=["read", "count", "wait"])
def test_every_usual_way_to_read_to_count_and_to_wait_works(request, box, lines):
    runner = request.getfixturevalue(box)
    sources = [program(line) for line in lines.strip().split("\n")]

    def failure(source: str) -> tuple | None:
        outcome = runner.run_program(source, b"hello\n", Limits(cpu_s=4, memory_mb=128))
        return None if (outcome.stdout, outcome.exit_code) == (b"hello\n", 0) else (source, outcome)

    with ThreadPoolExecutor(4) as threads:
        assert [found for found in threads.map(failure, sources) if found] == []


def test_a_thread_may_ask_for_a_larger_stack(sandbox):
    source = (
        "import threading, sys\nsys.setrecursionlimit(1 << 20); threading.stack_size(1 << 27)\n"
        "def f(n): return 0 if n == 0 else 1 + max(map(f, [n - 1]))\n"
        "threading.Thread(target=lambda: print(f(20_000))).start()"
    )
    assert sandbox.run_program(source, b"", Limits(cpu_s=4)).stdout == b"20000\n"
