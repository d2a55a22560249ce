"""Every verdict on HumanEval equals that of the plain test run in one process without a sandbox."""

from __future__ import annotations

import ast
import copy
import gzip
import json
import random
import subprocess
import sys
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from sdpo.data.prepare import humaneval, kodcode, mbpp
from sdpo.errors import DataError
from sdpo.grading.code import CodeGrader, text_of
from sdpo.grading.code_tests import read_tests
from sdpo.grading.feedback import FeedbackOptions
from sdpo.records import GradeStatus
from sdpo.sandbox import python_syntax
from sdpo.sandbox.limits import Limits

LIMITS = Limits(cpu_s=4.0)
PLAIN_SECONDS = 10
DEFAULT_MUTANTS, ALL_MUTANTS = 60, 500


@pytest.fixture(scope="module")
def problems():
    path = Path(__file__).resolve().parents[2] / "fixtures" / "HumanEval.jsonl.gz"
    with gzip.open(path, "rt") as file:
        return [json.loads(line) for line in file]


def row_tests(row, with_given: bool = False) -> dict:
    """Some tests call functions that the problem gives before the entry point: those of the solution, or a copy of
    their own."""
    given = row["prompt"][: row["prompt"].rindex(f"def {row['entry_point']}(")] if with_given else ""
    return {"type": "assert", "code": given + row["test"], "entry_point": row["entry_point"]}


def grade_all(sandbox, pairs, with_given=False):
    grader = CodeGrader(sandbox, LIMITS, FeedbackOptions())
    with ThreadPoolExecutor(4) as threads:
        return list(
            threads.map(
                lambda pair: grader.grade_source(pair[1], read_tests(row_tests(pair[0], with_given)), LIMITS), pairs
            )
        )


@pytest.mark.parametrize("with_given", [False, True])
def test_all_164_canonical_solutions_pass_and_none_is_weak(sandbox, problems, with_given):
    grades = grade_all(sandbox, [(row, row["prompt"] + row["canonical_solution"]) for row in problems], with_given)
    failed = {
        row["task_id"]: grade.feedback for row, grade in zip(problems, grades) if grade.status is not GradeStatus.OK
    }
    assert failed == {}
    assert len(grades) == 164
    assert [grade.flags for grade in grades if grade.flags] == []


class Renamed(ast.NodeTransformer):
    def __init__(self, name: str) -> None:
        self.name = name

    def visit_Name(self, node):
        return ast.Name(self.name, node.ctx) if node.id == "candidate" else node


class Unittest(ast.NodeTransformer):
    def visit_Assert(self, node):
        test = node.test
        if isinstance(test, ast.Compare) and isinstance(test.ops[0], ast.Eq) and len(test.ops) == 1:
            text = f"self.assertEqual({ast.unparse(test.left)}, {ast.unparse(test.comparators[0])})"
            return python_syntax.parse(text).body[0]
        return python_syntax.parse(f"self.assertTrue({ast.unparse(test)})").body[0]


def as_form(row, form: str) -> dict:
    """The same tests as a file of asserts (as in MBPP), as a pytest file, or as a unittest file; none names an entry
    point."""
    tree = Renamed(row["entry_point"]).visit(python_syntax.parse(row["test"]))
    check = next(node for node in tree.body if isinstance(node, ast.FunctionDef) and node.name == "check")
    tree.body.remove(check)
    if form == "asserts":
        tree.body += check.body
    elif form == "pytest":
        test = python_syntax.parse(f"from solution import {row['entry_point']}\ndef test(): pass")
        test.body[1].body = check.body
        tree.body += test.body
    else:
        test = python_syntax.parse("import unittest\nclass T(unittest.TestCase):\n    def test(self): pass")
        test.body[1].body[0].body = [Unittest().visit(node) for node in check.body]
        tree.body += test.body
    return {"type": "assert", "code": ast.unparse(ast.fix_missing_locations(tree))}


@pytest.mark.parametrize("with_prompt", [True, pytest.param(False, marks=pytest.mark.slow)])
@pytest.mark.parametrize("form", ["asserts", pytest.param("pytest", marks=pytest.mark.slow), "unittest"])
def test_no_canonical_solution_is_weak_in_another_form_of_its_tests(sandbox, problems, form, with_prompt):
    grader = CodeGrader(sandbox, LIMITS, FeedbackOptions(), fail_weak=True)

    def grade(row):
        tests = read_tests(as_form(row, form))
        source = row["prompt"] + row["canonical_solution"]
        return grader.grade_source(source, tests, LIMITS, row["prompt"] if with_prompt else "")

    with ThreadPoolExecutor(4) as threads:
        grades = dict(zip((row["task_id"] for row in problems), threads.map(grade, problems)))
    assert {name: grade.feedback for name, grade in grades.items() if grade.status is not GradeStatus.OK} == {}


DATA = Path(__file__).resolve().parents[2] / "fixtures" / "data_sources"


@pytest.mark.parametrize(
    ("convert", "file"),
    [
        *((humaneval.convert, "humaneval_plus"), (mbpp.convert, "mbpp"), (mbpp.convert, "mbpp_plus")),
        (kodcode.convert, "kodcode"),
    ],
    ids=["humaneval_plus", "mbpp", "mbpp_plus", "kodcode"],
)
def test_no_published_solution_of_a_prepared_row_is_weak(sandbox, convert, file):
    grader = CodeGrader(sandbox, LIMITS, FeedbackOptions(), fail_weak=True)
    for line in (DATA / f"{file}.jsonl").read_text().splitlines():
        try:
            prompt = convert(json.loads(line), "train")
        except DataError:
            continue  # a row that is there to be refused
        source = prompt.extra_info["solution"]
        grade = grader.grade_source(source, read_tests(prompt.ground_truth), LIMITS, text_of(prompt))
        assert grade.status is GradeStatus.OK, grade


def test_none_of_164_passes_when_the_body_returns_none(sandbox, problems):
    grades = grade_all(sandbox, [(row, row["prompt"] + "    return None\n") for row in problems])
    assert [row["task_id"] for row, grade in zip(problems, grades) if grade.status is GradeStatus.OK] == []


def test_none_of_164_passes_with_an_object_that_is_equal_to_everything(sandbox, problems):
    body = (
        "    class E:\n        def __eq__(s, o): return True\n        def __ne__(s, o): return False\n"
        "        def __lt__(s, o): return True\n        __le__ = __gt__ = __ge__ = __contains__ = __lt__\n"
        "    return E()\n"
    )
    grades = grade_all(sandbox, [(row, row["prompt"] + body) for row in problems])
    passed = [
        row["task_id"] for row, grade in zip(problems, grades) if grade.status is GradeStatus.OK and not grade.flags
    ]
    assert passed == []


PAIRS = (
    *((ast.Add, ast.Sub), (ast.Lt, ast.LtE), (ast.Gt, ast.GtE)),
    *((ast.Eq, ast.NotEq), (ast.And, ast.Or), (ast.In, ast.NotIn)),
)
SWAPS = {**dict(PAIRS), **{b: a for a, b in PAIRS}, ast.Mult: ast.Add, ast.FloorDiv: ast.Mult, ast.Mod: ast.FloorDiv}


class Mutator(ast.NodeTransformer):
    """Changes one constant, operator or bound, the `target`-th that it meets."""

    def __init__(self, target: int) -> None:
        self.target, self.seen = target, 0

    def hit(self) -> bool:
        self.seen += 1
        return self.seen - 1 == self.target

    def visit_Constant(self, node):
        if isinstance(node.value, bool):
            return ast.Constant(not node.value) if self.hit() else node
        if isinstance(node.value, (int, float)):
            return ast.Constant(node.value + 1) if self.hit() else node
        return node

    def visit_BinOp(self, node):
        self.generic_visit(node)
        if type(node.op) in SWAPS and self.hit():
            node.op = SWAPS[type(node.op)]()
        return node

    visit_BoolOp = visit_BinOp

    def visit_Compare(self, node):
        self.generic_visit(node)
        if type(node.ops[0]) in SWAPS and self.hit():
            node.ops[0] = SWAPS[type(node.ops[0])]()
        return node

    def visit_Call(self, node):
        self.generic_visit(node)
        if isinstance(node.func, ast.Name) and node.func.id == "range" and self.hit():
            node.args[-1] = ast.BinOp(node.args[-1], ast.Sub(), ast.Constant(1))
        return node


def mutants(problems, count):
    rng = random.Random(20240601)
    result = []
    while len(result) < count:
        row = rng.choice(problems)
        tree = python_syntax.parse(row["prompt"] + row["canonical_solution"])
        counter = Mutator(-1)
        counter.visit(copy.deepcopy(tree))
        if counter.seen:
            changed = Mutator(rng.randrange(counter.seen)).visit(copy.deepcopy(tree))
            result.append((row, ast.unparse(ast.fix_missing_locations(changed))))
    return result


PLAIN_RUN = """
import sys, types
sys.setrecursionlimit(1000)
source, tests, entry = eval(sys.stdin.read())
space = {}
exec(compile(source, "solution.py", "exec"), space)
exec(compile(tests, "tests.py", "exec"), space)
space["check"](space[entry])
print("PASSED-5e1f")
"""


def plain_verdict(row, source) -> bool:
    tests = row_tests(row)
    parts = repr((source, tests["code"], tests["entry_point"]))
    try:
        command = [sys.executable, "-c", PLAIN_RUN]
        result = subprocess.run(command, input=parts, capture_output=True, text=True, timeout=PLAIN_SECONDS)
    except subprocess.TimeoutExpired:
        return False
    return result.returncode == 0 and result.stdout.endswith("PASSED-5e1f\n")


@pytest.mark.parametrize(
    "count", [DEFAULT_MUTANTS, pytest.param(ALL_MUTANTS, marks=pytest.mark.slow)], ids=["sample", "all"]
)
def test_every_verdict_on_a_mutant_is_that_of_the_plain_run(sandbox, problems, count):
    pairs = mutants(problems, count)
    grades = grade_all(sandbox, pairs)
    with ThreadPoolExecutor(2) as threads:
        plain = list(threads.map(lambda pair: plain_verdict(*pair), pairs))
    verdicts = [grade.status is GradeStatus.OK for grade in grades]
    assert 0 < sum(plain) < count
    different = [
        (row["task_id"], wanted, grade.status, grade.feedback[:200], source)
        for (row, source), wanted, grade in zip(pairs, plain, grades)
        if wanted != (grade.status is GradeStatus.OK)
    ]
    assert verdicts == plain, different
