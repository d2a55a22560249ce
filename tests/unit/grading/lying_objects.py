"""Makes solutions that return lying objects, and ways to check a result: what they have in common is that a plain wrong
value fails every check."""

from __future__ import annotations

import itertools

WANTED = {
    "list": [1, 2, 3],
    "str": "Hello Bob",
    "int": 42,
    "float": 2.5,
    "dict": {"a": 1, "b": 2},
    "set": {1, 2, 3},
    "tuple": (1, 2),
    "bytes": b"ab",
    "bool": True,
}
WRONG = {name: repr(type(value)()) for name, value in WANTED.items()}

# Tests of `f(1)`, which has to be `{want}`. {name} of a shape -> kinds of values it is for, code.
SEQUENCES, SIZED = "list tuple", "list str dict set tuple bytes"
SHAPES = {
    "equal": (" ".join(WANTED), "assert f(1) == {want}"),
    "equal, reversed": (" ".join(WANTED), "assert {want} == f(1)"),
    "not unequal": (" ".join(WANTED), "assert not f(1) != {want}"),
    "is": ("bool", "assert f(1) is {want}"),
    "truth": (" ".join(WANTED), "assert f(1)"),
    "truth in a branch": (" ".join(WANTED), "r = f(1)\nif not r:\n    raise ValueError\nassert True"),
    "bool": (" ".join(WANTED), "assert bool(f(1)) is True"),
    "len": (SIZED, "assert len(f(1)) == len({want})"),
    "len and all": (SIZED, "r = f(1)\nassert len(r) == len({want}) and all(a == b for a, b in zip(r, {want}))"),
    "index": (SEQUENCES, "r = f(1)\nassert r[0] == 1 and r[-1] == {want}[-1]"),
    "slice": (SEQUENCES, "assert f(1)[:1] == {want}[:1]"),
    "key": ("dict", "assert f(1)['a'] == 1"),
    "get": ("dict", "assert f(1).get('b') == 2"),
    "iterate": (SIZED, "assert [x for x in f(1)] == [x for x in {want}]"),
    "list()": (SIZED, "assert list(f(1)) == list({want})"),
    "sorted": (SIZED, "assert sorted(f(1)) == sorted({want})"),
    "sum": ("list tuple set bytes", "assert sum(f(1)) == sum({want})"),
    "max and min": (SIZED, "r = f(1)\nassert max(r) == max({want}) and min(r) == min({want})"),
    "any": ("list tuple set", "assert any(x == 1 for x in f(1))"),
    "in": (SEQUENCES + " set", "assert 1 in f(1)"),
    "in a set": ("str int tuple float bytes bool", "assert f(1) in {{{want}}}"),
    "dictionary key": ("str int tuple float bytes bool", "assert {{{want}: 'yes'}}[f(1)] == 'yes'"),
    "in a list": (" ".join(WANTED), "assert f(1) in [{want}]"),
    "count": (" ".join(WANTED), "assert [f(1)].count({want}) == 1"),
    "method": ("str", "assert f(1).startswith('Hello')"),
    "method with a value": ("str", "assert f(1).upper() == 'HELLO BOB'"),
    "split": ("str", "assert f(1).split() == ['Hello', 'Bob']"),
    "keys": ("dict", "assert f(1).keys() == {{'a', 'b'}}"),
    "items": ("dict", "assert sorted(f(1).items()) == [('a', 1), ('b', 2)]"),
    "issuperset": ("set", "assert f(1).issuperset({{1, 2}})"),
    "subset": ("set", "assert {{1}} <= f(1)"),
    "str()": ("int float list str bool", "assert str(f(1)) == str({want})"),
    "format": ("int float str", "assert f'{{f(1)}}' == '{{}}'.format({want})"),
    "percent": ("int", "assert '%d' % f(1) == '42'"),
    "int()": ("int bool", "assert int(f(1)) == int({want})"),
    "float()": ("float int", "assert abs(float(f(1)) - {want}) < 1e-9"),
    "abs": ("float int", "assert abs(f(1) - {want}) < 1e-9"),
    "round": ("float int", "assert round(f(1), 1) == {want}"),
    "chain": ("float int", "assert {want} - 1 < f(1) <= {want}"),
    "divmod": ("int", "assert divmod(f(1), 5) == (8, 2)"),
    "range index": ("int", "assert list(range(100))[f(1)] == 42"),
    "isclose": ("float int", "import math\nassert math.isclose(f(1), {want})"),
    "approx": ("float int list tuple", "import pytest\nassert f(1) == pytest.approx({want})"),
    "unpack": ("tuple", "a, b = f(1)\nassert (a, b) == (1, 2)"),
    "match": ("tuple list", "match f(1):\n    case [1, 2, *rest]:\n        pass\n    case _:\n        assert False"),
    "join": ("str", "assert ''.join(f(1)) == {want}"),
    "isinstance": (" ".join(WANTED), "r = f(1)\nassert isinstance(r, type({want})) and r == {want}"),
    "type": (" ".join(WANTED), "assert type(f(1)) == type({want})\nassert f(1) == {want}"),
    "helper": (" ".join(WANTED), "def same(a, b):\n    return a == b\nassert same(f(1), {want})"),
    "attribute": ("int float", "assert f(1).real == {want}"),
    "nested": (" ".join(WANTED), "assert [f(1), (f(1),)] == [{want}, ({want},)]"),
    "hash": ("str int tuple", "assert hash(f(1)) == hash({want})"),
    "json": ("list str int float dict", "import json\nassert json.dumps(f(1)) == json.dumps({want})"),
    "copy": (" ".join(WANTED), "import copy\nassert copy.copy(f(1)) == {want}"),
    "counted": (SEQUENCES, "from collections import Counter\nassert Counter(f(1)) == Counter({want})"),
    "expected by a loop": (SEQUENCES, "for got, wanted in zip(f(1), {want}):\n    assert got == wanted\nassert f(1)"),
    **{
        f"unittest {method}": (
            kinds,
            "import unittest\nfrom solution import f\nclass T(unittest.TestCase):\n    def test(self):\n"
            f"        self.{method}({arguments})",
        )
        for method, kinds, arguments in (
            ("assertEqual", " ".join(WANTED), "f(1), {want}"),
            ("assertTrue", " ".join(WANTED), "f(1)"),
            ("assertIn", SEQUENCES + " set", "1, f(1)"),
            ("assertCountEqual", SEQUENCES + " set", "f(1), {want}"),
            ("assertAlmostEqual", "float int", "f(1), {want}"),
            ("assertListEqual", "list", "f(1), {want}"),
            ("assertDictEqual", "dict", "f(1), {want}"),
            ("assertGreater", "float int", "f(1), {want} - 1"),
            ("assertRegex", "str", "f(1), 'Hello'"),
        )
    },
}

METHODS = sorted(
    {
        name
        for kind in (str, list, dict, set, bytes, int, float, tuple)
        for name in vars(kind)
        if not name.startswith("__")
    }
)
DUNDERS = """
eq ne lt le gt ge len iter next bool str repr format hash int float complex index getitem contains reversed call enter
exit add radd sub rsub mul rmul truediv floordiv mod pow and or xor neg pos abs invert round divmod trunc floor ceil
length_hint missing bytes sizeof iadd isub
"""
RESULTS = {"str": "'Hello Bob'", "repr": "'[1, 2, 3]'", "format": "'42'", "hash": "hash({want})", "len": "{size}",
           "int": "42", "index": "42", "float": "2.5", "bool": "True", "complex": "1j", "length_hint": "3",
           "iter": "iter(())", "reversed": "iter(())", "bytes": "b'ab'", "ne": "False", "sizeof": "8"}  # fmt: skip
BASES = ("", "str", "int", "float", "list", "tuple", "dict", "set", "bytes")
STYLES = ("agrees", "is itself", "empty", "knows attributes", "claims a class")


def liar(style: str, base: str, want: str, size: int) -> str:
    """A class whose objects agree with everything. Its plain content, where it has one, is empty."""
    answer = "s" if style == "is itself" else "True"
    lines = [f"class Liar({base}):", "    __slots__ = ()" if base in ("tuple", "bytes") else "    pass"]
    for name in DUNDERS.split():
        if style == "empty" and name not in ("len", "iter", "eq", "bool"):
            continue
        if not (base and name == "hash" and base in ("list", "dict", "set")):
            result = RESULTS.get(name, answer).format(want=want, size=size)
            lines.append(f"    def __{name}__(s, *a, **k): return {result}")
    if style == "knows attributes":
        lines.append("    def __getattribute__(s, name): return lambda *a, **k: True")
    elif style != "empty":
        lines += [f"    def {name}(s, *a, **k): return {answer}" for name in METHODS]
        lines.append(f"    def __getattr__(s, name): return {'s' if style == 'is itself' else '1'}")
    if style == "claims a class":
        lines.append(f"    __class__ = property(lambda s: type({want}))")
    return "\n".join(lines) + "\ndef f(x): return Liar()\n"


# Liars without a class of their own: what the interpreter's types let a program attach to a value.
OTHERS = {
    "namespace": "import types\ndef f(x): return types.SimpleNamespace(**{{n: lambda *a: True for n in {methods}}})",
    "function with attributes": "def g(*a): return True\nfor n in {methods}: setattr(g, n, g)\ndef f(x): return g",
    "the function itself": "def f(*a): return f\nfor n in {methods}: setattr(f, n, lambda *a: True)",
    "module": "import types\nm = types.ModuleType('m')\nm.__getattr__ = lambda name: {want} if name == 'real' else "
    "lambda *a: True\ndef f(x): return m",
    "class": "class M(type):\n    def __len__(c): return {size}\n    def __iter__(c): return iter(())\n"
    "    def __eq__(c, o): return True\n    def __hash__(c): return hash({want})\n"
    "    def __getattr__(c, n): return lambda *a: True\n"
    "    def __contains__(c, x): return True\nclass L(metaclass=M): pass\ndef f(x): return L",
    "generator": "def f(x):\n    yield from ()",
    "weak proxy": "import weakref\n{liar}\nkept = Liar()\ndef f(x): return weakref.proxy(kept)",
    "mapping proxy": "import types\nclass D(dict):\n    def __len__(s): return {size}\n    def __getitem__(s, k): "
    "return 1\n    def get(s, *a): return 2\ndef f(x): return types.MappingProxyType(D())",
    "mock": "from unittest.mock import MagicMock\ndef f(x): return MagicMock()",
    "exception": "class E(Exception):\n    def __getattr__(s, n): return lambda *a: True\n"
    "    def __len__(s): return {size}\n    def __iter__(s): return iter(())\ndef f(x): return E()",
    "named tuple": "from collections import namedtuple\nclass P(namedtuple('P', '')):\n    startswith = get = "
    "lambda *a: True\n    def __len__(s): return {size}\ndef f(x): return P()",
    "enum": "import enum\nclass C(enum.Enum):\n    A = 1\n    def __len__(s): return {size}\n    def __iter__(s): "
    "return iter(())\n    def startswith(s, x): return True\ndef f(x): return C.A",
    "dataclass": "import dataclasses\n@dataclasses.dataclass\nclass D:\n    real: object = {want}\n"
    "    def __len__(s): return {size}\n    def __iter__(s): return iter(())\n"
    "    def startswith(s, x): return True\ndef f(x): return D()",
    "numpy in name": "class L:\n    def __len__(s): return {size}\n    def __bool__(s): return True\n"
    "L.__module__ = 'numpy.core'\ndef f(x): return L()",
    "inside a list": "class L:\n    def __eq__(s, o): return True\n    def __len__(s): return {size}\n"
    "    def __bool__(s): return True\n    __lt__ = __eq__\n    __hash__ = None\ndef f(x): return [L()] * {size}",
    "iterator": "class L:\n    def __iter__(s): return s\n    def __next__(s):\n        raise StopIteration\n"
    "    def __len__(s): return {size}\ndef f(x): return L()",
}  # fmt: skip

CLASSLESS = (
    "namespace",
    "function with attributes",
    "the function itself",
    "module",
    "mapping proxy",
)


def liars(kind: str) -> dict[str, str]:
    """Name -> source of solutions that lie where `kind` is wanted."""
    want, size = repr(WANTED[kind]), len(WANTED[kind]) if kind in SIZED.split() else 0
    made = {
        f"{style} ({base or 'object'})": liar(style, base, want, size)
        for style, base in itertools.product(STYLES, BASES)
    }
    others = {
        name: source.format(want=want, size=size, methods=METHODS, liar=made["agrees (object)"])
        for name, source in OTHERS.items()
    }
    return made | others
