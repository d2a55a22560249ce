"""What the program itself had a say in is weak, whatever the syntax; plain answers of plain programs never are."""

from __future__ import annotations

import builtins
import random
from concurrent.futures import ThreadPoolExecutor

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from lying_objects import CLASSLESS, SHAPES, WANTED, WRONG, liars
from program_files import read_programs

from sdpo.grading.code import CodeGrader
from sdpo.grading.code_tests import read_tests
from sdpo.grading.feedback import FeedbackOptions
from sdpo.records import GradeStatus, Prompt
from sdpo.sandbox.limits import Limits
from sdpo.sandbox.name_origins import MODULES, open_names

LIMITS = Limits(cpu_s=1.0, memory_mb=256)
CASES = read_programs("integrity.txt")
SAMPLE = 250
# An object of the interpreter's own types is true without the program's doing, like any other truthy answer.
TRUTHS = ("truth", "truth in a branch", "bool", "unittest assertTrue")


def verdict(outcome) -> str:
    return "fail" if not outcome.passed else "weak" if outcome.weak else "clean"


def verdicts(sandbox, runs):
    """What becomes of (solution, tests), in threads."""
    with ThreadPoolExecutor(4) as threads:
        return list(threads.map(lambda run: verdict(sandbox.run_assert(*run, None, LIMITS)), runs))


@pytest.mark.parametrize("name", CASES)
def test_the_verdict_is_as_strong_as_the_word_it_rests_on(sandbox, name):
    case = CASES[name]
    entry = case.get("entry point", "").strip() or None
    outcome = sandbox.run_assert(case["solution"], case["tests"], entry, LIMITS, prompt=case.get("prompt", ""))
    assert verdict(outcome) == case["verdict"].strip(), outcome


def shapes_of(kind):
    return {
        name: code.format(want=repr(WANTED[kind])) for name, (kinds, code) in SHAPES.items() if kind in kinds.split()
    }


@pytest.mark.parametrize("kind", WANTED)
def test_the_right_plain_value_passes_every_check_and_is_never_weak(sandbox, kind):
    source = f"def f(x): return {WANTED[kind]!r}"
    found = dict(zip(shapes_of(kind), verdicts(sandbox, [(source, code) for code in shapes_of(kind).values()])))
    assert {name: verdict for name, verdict in found.items() if verdict != "clean"} == {}


NUMBERS = st.integers(-(10**30), 10**30) | st.floats(allow_nan=False) | st.booleans() | st.none()
ATOMS = NUMBERS | st.text(max_size=8) | st.binary(max_size=8) | st.complex_numbers(allow_nan=False)
KEYS = st.integers() | st.text(max_size=4) | st.tuples(st.integers(), st.text(max_size=4))
PLAIN = st.recursive(
    ATOMS | st.sets(KEYS, max_size=4) | st.frozensets(KEYS, max_size=4),
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(KEYS, inner, max_size=4) | st.tuples(inner, inner),
    max_leaves=12,
)


@given(value=PLAIN)
@settings(max_examples=40)
def test_any_plain_value_comes_over_as_it_is_and_is_never_weak(sandbox, value):
    source = f"inf = float('inf')\ndef f(x): return {value!r}\ndef same(x): return x"
    tests = f"inf = float('inf')\nfrom solution import f, same\nwant = {value!r}\n"
    tests += "assert f(1) == want and type(f(1)) is type(want) and same(want) == want\n"
    tests += "if hasattr(want, '__iter__'):\n    assert len(f(1)) == len(want) == len(list(f(1)))\n"
    assert verdict(sandbox.run_assert(source, tests, None, LIMITS)) == "clean"


@pytest.mark.parametrize("kind", WANTED)
def test_a_wrong_plain_value_passes_none_of_the_checks(sandbox, kind):
    source = f"def f(x): return {WRONG[kind]}"
    found = dict(zip(shapes_of(kind), verdicts(sandbox, [(source, code) for code in shapes_of(kind).values()])))
    assert {name: verdict for name, verdict in found.items() if verdict != "fail"} == {}


@pytest.mark.parametrize("count", [SAMPLE, pytest.param(None, marks=pytest.mark.slow)], ids=["sample", "all"])
def test_a_lying_object_never_passes_without_being_marked_weak(sandbox, count):
    runs = {
        (liar, shape, kind): (source, code)
        for kind in WANTED
        for liar, source in liars(kind).items()
        for shape, code in shapes_of(kind).items()
        if not (liar in CLASSLESS and shape in TRUTHS)
    }
    chosen = sorted(runs) if count is None else random.Random(20260101).sample(sorted(runs), count)
    found = dict(zip(chosen, verdicts(sandbox, [runs[key] for key in chosen])))
    assert [key for key, verdict in found.items() if verdict == "clean"] == []
    assert "weak" in found.values()  # some do pass: the mark is what stops them


def test_liars_are_marked_at_the_weakest_level(weakest_sandbox):
    shapes = shapes_of("str")
    runs = [(source, shapes["method"]) for name, source in liars("str").items()]
    assert "clean" not in verdicts(weakest_sandbox, runs)


CONTAINERS = {
    "list": "[3, 1]",
    "nested list": "[[3, 1], [2]]",
    "dict": "{'a': 1}",
    "dict of lists": "{'a': [1]}",
    "set": "{3, 1}",
    "deque": "deque([3, 1])",
    "bytearray": "bytearray(b'ab')",
    "counter": "Counter('ab')",
    "ordered": "OrderedDict(a=1)",
}
# Tests that compare what f returns with the argument that it was given, in every way to hold one.
HOLDERS = {
    "variable": "xs = {xs}\nr = f(xs)\nassert r == list(xs)",
    "one statement": "xs = {xs}\nassert f(xs) == list(xs)",
    "second name": "xs = ys = {xs}\nr = f(ys)\nassert r == list(xs)",
    "global": "XS = {xs}\ndef test():\n    r = f(XS)\n    assert r == list(XS)",
    "default argument": "def case(xs={xs}):\n    return f(xs), list(xs)\nr, want = case()\nassert r == want",
    "attribute": "class T:\n    pass\nt = T()\nt.xs = {xs}\nr = f(t.xs)\nassert r == list(t.xs)",
    "class attribute": "class T:\n    xs = {xs}\nr = f(T.xs)\nassert r == list(T.xs)",
    "element": "row = [1, {xs}]\nr = f(row[1])\nassert r == list(row[1])",
    "value of a dict": "row = dict(a={xs})\nr = f(row['a'])\nassert r == list(row['a'])",
    "table": "ROWS = [({xs}, 1), ({xs}, 2)]\nfor xs, n in ROWS:\n    r = f(xs)\n    assert r == list(xs)",
    "unpacked": "args = [{xs}]\nr = f(*args)\nassert r == list(args[0])",
    "keyword": "xs = {xs}\nr = f(x=xs)\nassert r == list(xs)",
    "keywords": "args = dict(x={xs})\nr = f(**args)\nassert r == list(args['x'])",
    "partial": "import functools\nxs = {xs}\ng = functools.partial(f, xs)\nassert g() == list(xs)",
    "map": "rows = [{xs}]\nassert list(map(f, rows)) == list(map(list, rows))",
    "closure": "def case(xs):\n    def run():\n        return f(xs)\n    r = run()\n    return r == list(xs)\n"
    "assert case({xs})",
    "comprehension": "rows = [{xs}]\nassert [f(xs) for xs in rows] == [list(xs) for xs in rows]",
    "generator": "def rows(xs):\n    yield xs\n    yield list(xs)\ng = rows({xs})\nassert f(next(g)) == next(g)",
    "fixture": "import pytest\n@pytest.fixture\ndef xs():\n    return {xs}\ndef test(xs):\n    r = f(xs)\n"
    "    assert r == list(xs)",
    "unittest": "import unittest\nclass T(unittest.TestCase):\n    def setUp(self):\n        self.xs = {xs}\n"
    "    def test(self):\n        r = f(self.xs)\n        self.assertEqual(r, list(self.xs))",
}
FROM_COLLECTIONS = "from collections import Counter, OrderedDict, deque\n"


@pytest.mark.parametrize("holder", HOLDERS)
def test_a_yardstick_that_the_program_edits_is_weak_however_it_is_held(sandbox, holder):
    tests = {name: FROM_COLLECTIONS + HOLDERS[holder].format(xs=xs) for name, xs in CONTAINERS.items()}
    honest = verdicts(sandbox, [("def f(x): return list(x)", code) for code in tests.values()])
    assert dict(zip(tests, honest)) == dict.fromkeys(tests, "clean")
    lying = verdicts(sandbox, [("def f(x):\n    x.clear()\n    return []", code) for code in tests.values()])
    assert dict(zip(tests, lying)) == dict.fromkeys(tests, "weak")


NAMES = "def double(x): return 5\ndef f(x): return 5"
BY_HELPER = {
    "type": "assert",
    "code": "def check(candidate):\n    assert candidate(2) == double(2)",
    "entry_point": "f",
}


@pytest.mark.parametrize(
    ("prompt", "flags"), [("Write f(x).", ("integrity: weak",)), ("def double(x):\n    ...\nWrite f(x) with it.", ())]
)
def test_the_text_of_the_prompt_says_which_names_were_asked_for(sandbox, prompt, flags):
    for content in (prompt, [{"type": "text", "text": prompt}]):
        row = Prompt("1", ({"role": "user", "content": content},), "code", BY_HELPER)
        grade = CodeGrader(sandbox, LIMITS, FeedbackOptions()).grade(row, f"```python\n{NAMES}\n```", False)
        assert (grade.status, grade.flags) == (GradeStatus.OK, flags)


def test_a_capital_at_the_start_of_a_sentence_names_no_class(sandbox):
    source = (
        "class Return:\n    def __init__(s): s.x = 5\n    def startswith(s, x): return True\ndef f(x): return Return()"
    )
    tests = "assert f(1).startswith('Hello')"
    assert sandbox.run_assert(source, tests, "f", LIMITS, prompt="Write f(x). Return a greeting.").weak
    assert not sandbox.run_assert(source, tests, "f", LIMITS, prompt="Write f(x). Return a `Return` object.").weak


def test_a_weak_pass_says_how_the_program_decided_it(sandbox):
    source = "class L:\n    def startswith(s, x): return True\ndef f(x): return L()"
    tests = read_tests({"type": "assert", "code": "assert f(1).startswith('Hello')"})
    grade = CodeGrader(sandbox, LIMITS, FeedbackOptions(), fail_weak=True).grade_source(source, tests, LIMITS)
    assert (grade.status, grade.reward) == (GradeStatus.WRONG, 0.0)
    assert "answered with an object of a class of its own" in grade.feedback


SIDE = """
import sys
def side():
    frame = sys._getframe()
    while frame:
        found = frame.f_locals.get("self")
        if type(found).__name__ == "SolverSide":
            return found
        frame = frame.f_back
class L:
    def startswith(s, x): return True
    def __len__(s): return 3
    def __iter__(s): return iter(())
"""
FORGED = {
    "no class of its own": '{{"ref": [mine.exports.number(L()), "object", "L", None]}}',
    "a class that the tests named": '{{"ref": [mine.exports.number(L()), "object", "L", list(range(9))]}}',
    "a function": '{{"ref": [mine.exports.number(L()), "call", "L", None]}}',
    "a callable": '{{"ref": [mine.exports.number(L()), "callable", "L", None]}}',
    "a match": '{{"ref": [mine.exports.number(L()), "match", "L", None]}}',
    "an iterator": '{{"ref": [mine.exports.number(L()), "iter", "L", None]}}',
    "a coroutine": '{{"ref": [mine.exports.number(L()), "coroutine", "L", None]}}',
    "a class": '{{"ref": [mine.exports.number(L()), "class", "L", [0]]}}',
    "the number of the function": '{{"ref": [0, "object", "L", [0]]}}',
}


@pytest.mark.parametrize("claim", FORGED)
def test_a_solution_that_patches_its_side_of_the_link_gains_nothing(sandbox, claim):
    source = SIDE + (
        "def f(x):\n    mine = side()\n    for other in list(range(40)): mine.exports.number(object())\n"
        "    import gc\n    answer = mine.apply\n"
        "    def apply(question):\n"
        "        found = answer(question)\n"
        "        found['stored'] = True\n"
        "        return found\n"
        "    mine.apply = apply\n"
        f"    mine.encode = lambda value: {FORGED[claim].format()}\n"
        "    return L()\n"
    )
    for tests in (
        "assert f(1).startswith('Hello')",
        "r = f(1)\nassert len(r) == 3 and all(a == b for a, b in zip(r, [1]))",
    ):
        assert verdict(sandbox.run_assert(source, tests, None, LIMITS)) != "clean"


def test_a_solution_that_forges_the_names_of_the_prompt_gains_nothing(sandbox):
    source = SIDE + (
        "def spoil():\n    mine = side()\n    mine.names_ = mine.names\n"
        "    def names(question):\n"
        "        found = mine.names_(question)\n"
        "        found['classes'] = {'Hello': 1, 'f': 1, 'L': 1, **{n: 1 for n in question['classes']}}\n"
        "        return found\n"
        "    mine.names = names\n"
        "import gc\n"
        "for found in gc.get_objects():\n"
        "    if type(found).__name__ == 'SolverSide':\n"
        "        side = lambda: found\n        spoil()\n"
        "def f(x): return L()\n"
    )
    prompt = "Write f(x), which says Hello."
    outcome = sandbox.run_assert(source, "assert f(1).startswith('Hello')", "f", LIMITS, prompt=prompt)
    assert verdict(outcome) != "clean"


def test_every_public_name_of_the_usual_modules_comes_from_the_library(sandbox):
    """A solution that defines them all changes nothing; modules are told by the attributes that are read."""
    names = sorted(open_names().keys() - vars(builtins).keys())
    source = "\n".join(f"{name} = 12345" for name in [*names, *MODULES]) + "\ndef f(x): return x"
    tests = "\n".join(f"assert {name} != 12345" for name in names) + "\nassert f(1) == 1\n"
    tests += "\n".join(f"assert {name}.__name__ == {name!r}" for name in sorted(MODULES - set(names)))
    outcome = sandbox.run_assert(source, tests, "f", LIMITS, prompt="Write f(x).")
    assert [case.statement for case in outcome.cases if case.status is not GradeStatus.OK] == []
    assert not outcome.weak
    assert len(names) > 300
