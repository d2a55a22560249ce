"""One mathematical object in many spellings is one answer; different objects are different answers.

The comparison itself is asked, without the process that usually runs it; `test_math_grading.py` goes through that.
"""

from __future__ import annotations

from fractions import Fraction

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from sdpo.grading.math_equality import Equality
from sdpo.grading.mathematics import MathGrader
from sdpo.records import Prompt

INTEGERS = st.integers(-30, 30)
RATIONALS = st.fractions(min_value=-20, max_value=20, max_denominator=12)
SUPERSCRIPTS = str.maketrans("0123456789-", "⁰¹²³⁴⁵⁶⁷⁸⁹⁻")
FULL_WIDTH = str.maketrans("0123456789,()", "０１２３４５６７８９，（）")
VULGAR = {Fraction(1, 2): "½", Fraction(1, 3): "⅓", Fraction(2, 3): "⅔", Fraction(1, 4): "¼", Fraction(3, 4): "¾",
          Fraction(1, 5): "⅕", Fraction(5, 8): "⅝"}  # fmt: skip


class InThisProcess:
    """The comparison of the algebra process, asked directly."""

    def __init__(self) -> None:
        self.equal = Equality().texts


GRADER = MathGrader(InThisProcess())  # type: ignore[arg-type]
same = GRADER.equal


def draws(data, *spellings):
    return data.draw(st.sampled_from(spellings))


def styled(data, text):
    """The same text with what only styles it."""
    return draws(
        data,
        text,
        f"${text}$",
        rf"\({text}\)",
        rf"\displaystyle {text}",
        rf"\color{{red}}{{{text}}}",
        rf"\textcolor{{blue}}{{{text}}}",
        rf"{{\color[rgb]{{1,0,0}} {text}}}",
        rf"\boldsymbol{{{text}}}",
        rf"\mathbf{{{text}}}",
        rf"\bm{{{text}}}",
        rf"\underline{{{text}}}",
        rf"\phantom{{9}}{text}",
        rf"{text}\,",
        rf"\mbox{{${text}$}}",
        rf"\text{{${text}$}}",
        rf"\boxed{{{text}}}",
        rf"\large {text}.",
        f"{{{text}}}",
    )


def integer(data, n):
    sign = draws(data, "-", "−", "- ") if n < 0 else draws(data, "", "", "+")
    digits = str(abs(n))
    if len(digits) > 3:
        groups = f"{abs(n):,}"
        digits = draws(data, digits, groups, *(groups.replace(",", s) for s in ("{,}", r",\!", r"\,", " ", r"\ ", "~")))
    return sign + draws(data, digits, digits, digits.translate(FULL_WIDTH) if "," not in digits else digits)


def repeating(value):
    """Digits before the period, and the period; None for a decimal that ends."""
    start = str(int(abs(value)))
    rest, seen, digits = abs(value) - int(start), {}, ""
    while rest and rest not in seen:
        seen[rest] = len(digits)
        digits += str(int(rest * 10))
        rest = rest * 10 - int(rest * 10)
    if not rest:
        return start, digits, ""
    return start, digits[: seen[rest]], digits[seen[rest] :]


def rational(data, value):
    if value.denominator == 1:
        return integer(data, value.numerator)
    sign = draws(data, "-", "−") if value < 0 else ""
    top, bottom = abs(value.numerator), value.denominator
    whole, left = divmod(top, bottom)
    forms = [
        *(rf"{frac}{{{top}}}{{{bottom}}}" for frac in (r"\frac", r"\dfrac", r"\tfrac", r"\cfrac ")),
        *(f"{top}{slash}{bottom}" for slash in ("/", " / ", "⁄")),
        rf"\frac{{{2 * top}}}{{{2 * bottom}}}",
        rf"\left(\frac{{{top}}}{{{bottom}}}\right)",
    ]
    if top < 10 and bottom < 10:
        braces = (rf"{top}{bottom}", rf" {top} {bottom}", rf"{top}{{{bottom}}}", rf"{{{top}}}{bottom}")
        forms += [rf"\frac{arguments}" for arguments in braces]
    if whole and left:
        forms += [rf"{whole}\frac{{{left}}}{{{bottom}}}", f"{whole} {left}/{bottom}"]
    if Fraction(left, bottom) in VULGAR:
        forms.append(f"{whole or ''}{VULGAR[Fraction(left, bottom)]}")
    return sign + draws(data, *forms, *decimals(value))


def decimals(value):
    start, digits, period = repeating(value)
    if not period:
        number, places = int(start + digits), len(digits)
        return [f"{start}.{digits}", f"{start}.{digits}0", f"{number}e-{places}", rf"{number}\times 10^{{-{places}}}",
                f"{number}×10{f'-{places}'.translate(SUPERSCRIPTS)}"]  # fmt: skip
    if len(period) > 7:
        return []
    dots = rf"\dot{{{period[0]}}}" + (rf"{period[1:-1]}\dot{{{period[-1]}}}" if len(period) > 1 else "")
    marked = "".join(digit + "\u0305" for digit in period)
    periods = (rf"\overline{{{period}}}", rf"\bar{{{period}}}", f"({period})", marked, dots)
    return [f"{start}.{digits}{repeated}" for repeated in periods]


def root(data, value):
    factor, radicand = value
    roots = [rf"\sqrt{{{radicand}}}", f"√{radicand}", f"√({radicand})", rf"\sqrt[2]{{{radicand}}}", rf"\sqrt{radicand}"]
    square = rf"\sqrt{{{factor * factor * radicand}}}"
    return draws(
        data,
        rf"{factor}\cdot {draws(data, *roots, rf'{radicand}^{{1/2}}', rf'{radicand}^{{0.5}}')}",
        f"{factor}{draws(data, *roots)}",
        rf"\frac{{{2 * factor}{draws(data, *roots)}}}{{2}}",
        rf"\frac{{{factor * radicand}}}{{{draws(data, *roots)}}}",
        square if factor > 0 else f"-{square}",
    )


def joined(data, parts, separators=(",", ", ", r",\,", r", \quad ")):
    return draws(data, *separators).join(parts)


def pair(data, value):
    left, right = draws(data, ("(", ")"), (r"\left(", r"\right)"), (r"\bigl( ", r" \bigr)"), (r"\lparen ", r"\rparen "))
    return left + joined(data, [rational(data, part) for part in value], (", ", r",\,", r", \quad ")) + right


def set_of(data, value):
    left, right = draws(data, (r"\{", r"\}"), (r"\left\{", r"\right\}"), (r"\lbrace ", r"\rbrace "), (r"\{ ", r" \}"))
    parts = [rational(data, part) for part in data.draw(st.permutations(sorted(value)))]
    return left + joined(data, parts, (", ", r",\,")) + right


def interval(data, value):
    (low, high), closed_left, closed_right = value
    ends = rational(data, low), rational(data, high)
    left, right = "[" if closed_left else "(", "]" if closed_right else ")"
    below, above = (r"\le" if closed_left else "<"), (r"\leq" if closed_right else "<")
    unicode = {r"\le": "≤", r"\leq": "⩽", "<": "<"}
    return draws(
        data,
        f"{left}{ends[0]}, {ends[1]}{right}",
        rf"\left{left} {ends[0]} , {ends[1]} \right{right}",
        rf"x \in {left}{ends[0]}, {ends[1]}{right}",
        f"x ∈ {left}{ends[0]}, {ends[1]}{right}",
        f"{ends[0]} {below} x {above} {ends[1]}",
        f"{ends[0]} {unicode[below]} x {unicode[above]} {ends[1]}",
        f"{ends[1]} {'>=' if closed_right else '>'} x {'>=' if closed_left else '>'} {ends[0]}",
        rf"\{{x \mid {ends[0]} {below} x {above} {ends[1]}\}}",
        *([f"]{ends[0]}, {ends[1]}["] if not closed_left and not closed_right else []),
    )


def matrix(data, value):
    row = draws(data, r"\\", r" \\ ", "\\\\\n", r"\\[2pt] ")
    column = draws(data, "&", " & ", "  &\t")
    kind = draws(data, "pmatrix", "bmatrix", "matrix", "array")
    body = row.join(column.join(rational(data, part) for part in line) for line in value)
    body += draws(data, "", r" \\", "\n")
    if kind == "array":
        return rf"\left[\begin{{array}}{{{'c' * len(value[0])}}}{body}\end{{array}}\right]"
    brackets = (r"\left(", r"\right)") if kind == "matrix" else ("", "")
    return rf"{brackets[0]}\begin{{{kind}}}{body}\end{{{kind}}}{brackets[1]}"


UNITS = {
    "": [""],
    "cm": [r"\text{ cm}", " cm", r"\,\mathrm{cm}", r"\text{ centimeters}", r"~\text{cm}", r"\ \textrm{cm}"],
    "cm2": [r"\text{ cm}^2", " cm^2", " cm²", r"\text{ square centimeters}", r"\text{ sq. cm}", r"\,\mathrm{cm}^{2}"],
    "km/h": [r"\text{ km/h}", " km/h", r"\text{ km per hour}", r"\frac{\text{km}}{\text{h}}", r"\,\mathrm{km\,h^{-1}}"],
    "dollar": [r"\text{ dollars}", " dollars", r"\text{ USD}", r"\$"],
    "apple": [r"\text{ apples}", " apples", r"\text{ red apples}"],
    "degree": [r"^\circ", "°", r"^{\circ}", r"\degree", r"\text{ degrees}", " degrees"],
}


def quantity(data, value):
    number, unit = value
    return draws(data, str(number), f"{number}.0", integer(data, number)) + draws(data, *UNITS[unit])


VALUES = ["5", "1.5", r"\frac32", r"\frac{3}{2}", "3/2", "1 1/2", r"36\pi", r"36\pi ", r"3\sqrt{2}", "10^3", "2^{10}"]
BARE = ["cm", "km", "kg", "inches", "dollars", "apples", "cm^2", "cm³", "km/h", "km/s^2", "miles per hour", "g/mL"]
SEPARATORS = [" ", r"\,", "~", r"\ ", r" \ "]


@settings(max_examples=100)
@given(data=st.data(), value=st.sampled_from(VALUES), other=st.sampled_from(VALUES), unit=st.sampled_from(BARE))
def test_a_bare_unit_with_a_blank_before_it_may_stand_behind_any_number(data, value, other, unit):
    answer = styled(data, f"{value}{draws(data, *SEPARATORS)}{unit}")
    assert same(value, answer) and same(answer, value)
    assert same(answer, rf"{value}\text{{ {unit.replace('^2', '').replace('^', '')}}}") or "^" in unit
    assert same(other, answer) == same(other, value)


PRODUCTS = ["ft", "rh", "xy", "mg", "mv", "kx", "abc", "xyz", "mgh", "bh", "x", "ab c", "m", "g", "V/t", "h/g", "kT"]


@settings(max_examples=60)
@given(data=st.data(), value=st.sampled_from([v for v in VALUES if not v[-1].isdigit() or "f" in v]),
       letters=st.sampled_from(PRODUCTS))  # fmt: skip
def test_a_product_of_letters_is_not_answered_by_its_number(data, value, letters):
    product = f"{value}{draws(data, *SEPARATORS)}{letters}"
    assert not same(product, value) and not same(value, product)


@settings(max_examples=60)
@given(data=st.data(), word=st.sampled_from(["east", "no", "listen", "Tuesday", "red", "stop", "NO", "angle", "even"]))
def test_a_word_is_not_answered_by_another_arrangement_of_its_letters(data, word):
    letters = "".join(data.draw(st.permutations(word)))
    spelling = draws(data, letters, rf"\text{{{letters}}}", f"${letters}$", letters.lower())
    assert same(word, spelling) == (letters.lower() == word.lower())


@settings(max_examples=40)
@given(data=st.data(), start=RATIONALS, step=RATIONALS.filter(bool), far=RATIONALS.filter(lambda q: q % 1), n=INTEGERS)
def test_a_family_is_the_same_counted_from_another_number_or_downwards(data, start, step, far, n):
    def written(first, by):
        letter = draws(data, "k", "n", "m")
        integers = rf"\text{{where }}{letter}\text{{ is an integer}}"
        tails = rf", {letter}\in\mathbb{{Z}}", rf"\ ({letter} \in \mathbb Z)", rf", {integers}"
        tail = draws(data, *tails, rf"\text{{ for all integers }}{letter}")
        return rf"x=({first})\pi+({by}){letter}\pi{tail}"

    gold = written(start, step)
    assert same(gold, written(start + n * step, draws(data, step, -step)))
    assert not same(gold, written(start + far * step, step))
    assert not same(gold, written(start, 2 * step))


@settings(max_examples=40)
@given(data=st.data(), points=st.lists(RATIONALS, min_size=1, max_size=3, unique=True), other=RATIONALS)
def test_all_numbers_but_some_are_the_intervals_between_them(data, points, other):
    def written(points):
        texts = [rational(data, point) for point in points]
        ends = [r"-\infty", *(rational(data, point) for point in sorted(points)), r"\infty"]
        return draws(
            data,
            r"\cup ".join(f"({low}, {high})" for low, high in zip(ends, ends[1:], strict=False)),
            rf"\mathbb{{R}}\setminus\{{{', '.join(texts)}\}}",
            ", ".join(rf"x\ne {text}" for text in texts),
        )

    assert same(written(points), written(data.draw(st.permutations(points))))
    changed = [other, *points[1:]]
    assert same(written(points), written(changed)) == (set(changed) == set(points))


OBJECTS = {
    "integer": (st.integers(-10**7, 10**7), integer),
    "rational": (RATIONALS, rational),
    "root": (st.tuples(st.sampled_from([-3, -2, 2, 3, 5]), st.sampled_from([2, 3, 5, 6, 7])), root),
    "pair": (st.tuples(RATIONALS, RATIONALS), pair),
    "set": (st.frozensets(INTEGERS.map(Fraction), min_size=1, max_size=4), set_of),
    "interval": (
        st.tuples(
            st.tuples(RATIONALS, RATIONALS).filter(lambda ends: ends[0] < ends[1]),
            st.booleans(),
            st.booleans(),
        ),
        interval,
    ),
    "matrix": (st.integers(1, 3).flatmap(
        lambda columns: st.lists(st.tuples(*[RATIONALS] * columns), min_size=2, max_size=3).map(tuple)), matrix),
    "quantity": (st.tuples(st.integers(1, 999), st.sampled_from([unit for unit in UNITS if unit])), quantity),
}  # fmt: skip


@pytest.mark.parametrize("kind", OBJECTS)
@settings(max_examples=25)
@given(data=st.data())
def test_two_spellings_of_one_object_are_one_answer(kind, data):
    objects, spell = OBJECTS[kind]
    value = data.draw(objects)
    assert same(styled(data, spell(data, value)), styled(data, spell(data, value)))


@pytest.mark.parametrize("kind", OBJECTS)
@settings(max_examples=25)
@given(data=st.data())
def test_spellings_of_two_objects_are_two_answers(kind, data):
    objects, spell = OBJECTS[kind]
    one = data.draw(objects)
    other = data.draw(objects.filter(lambda value: value != one))
    assert not same(styled(data, spell(data, one)), styled(data, spell(data, other)))


def expression(data, depth):
    """A value with one of its spellings: "sum" binds loosest, "atom" needs no brackets."""
    operator = data.draw(st.sampled_from(["+", "-", "*", "/", "^", "neg", "abs"])) if depth else "atom"
    if operator == "atom":
        value = data.draw(st.integers(0, 9))
        return Fraction(value), str(value), "atom"
    left, left_text, left_kind = expression(data, depth - 1)
    bracketed = draws(data, f"({left_text})", rf"\left({left_text}\right)", f"[{left_text}]")
    if operator == "neg":
        return -left, f"-{left_text if left_kind != 'sum' else bracketed}", "sum"
    if operator == "abs" and "vert" not in left_text and "|" not in left_text:
        bars = draws(data, (r"\left|", r"\right|"), ("|", "|"), (r"\lvert ", r"\rvert"))
        return abs(left), bars[0] + left_text + bars[1], "atom"
    if operator == "abs":
        return left, left_text, left_kind
    if operator == "^":
        power = data.draw(st.integers(0, 3))
        base = left_text if left_kind == "atom" and left_text.isdigit() else bracketed
        return (
            left**power,
            f"{base}{draws(data, f'^{power}', f'^{{{power}}}', str(power).translate(SUPERSCRIPTS))}",
            "product",
        )
    right, right_text, right_kind = expression(data, depth - 1)
    if operator in "+-":
        shown = right_text if right_kind != "sum" else f"({right_text})"
        return (left + right if operator == "+" else left - right), f"{left_text} {operator} {shown}", "sum"
    if operator == "*":
        first = left_text if left_kind == "atom" else bracketed
        second = right_text if right_kind == "atom" else f"({right_text})"
        sign = draws(data, r"\cdot ", r"\times ", "*", "·") if second[0] != "(" else draws(data, "", r"\cdot ", " × ")
        return left * right, f"{first}{sign}{second}", "product"
    if not right:
        return left, left_text, left_kind
    return (
        left / right,
        draws(data, rf"\frac{{{left_text}}}{{{right_text}}}", rf"\dfrac {{{left_text}}} {{{right_text}}}"),
        "atom",
    )


@settings(max_examples=150)
@given(data=st.data())
def test_an_expression_is_its_value_and_no_other(data):
    value, text, _ = expression(data, data.draw(st.integers(1, 3)))
    answer = styled(data, text)
    assert same(rational(data, value), answer)
    assert not same(rational(data, value + data.draw(st.sampled_from([1, Fraction(1, 7), -2]))), answer)


def factored(data, roots):
    factors = [f"(x {'-' if root >= 0 else '+'} {abs(root)})" if root else "x" for root in roots]
    return draws(data, "", r"\cdot ").join(data.draw(st.permutations(factors)))


def expanded(data, roots):
    coefficients = [1]
    for root in roots:
        shifted = [*coefficients, 0]
        coefficients = [a - root * b for a, b in zip(shifted, [0, *coefficients], strict=True)]
    terms = []
    for power, c in zip(range(len(roots), -1, -1), coefficients, strict=True):
        x = (
            ""
            if not power
            else "x"
            if power == 1
            else draws(data, f"x^{power}", f"x^{{{power}}}", f"x{power}".translate(SUPERSCRIPTS))
        )
        if c:
            terms.append(f"{'-' if c < 0 else '+'} {abs(c) if abs(c) > 1 or not x else ''}{x}")
    return " ".join(data.draw(st.permutations(terms))).removeprefix("+ ")


ROOTS = st.lists(st.integers(-5, 5), min_size=1, max_size=4).map(sorted)


@settings(max_examples=25)
@given(data=st.data(), one=ROOTS, other=ROOTS)
def test_a_polynomial_is_the_same_expanded_and_factored(data, one, other):
    left, right = expanded(data, one), factored(data, other)
    name = draws(data, ("", ""), ("y = ", ""), ("", "f(x) = "), ("p(x)=", "p(x) = "))
    assert same(name[0] + left, styled(data, name[1] + right)) == (one == other)
    assert same(name[0] + left, styled(data, name[1] + factored(data, one)))


@settings(max_examples=25)
@given(data=st.data(), parts=st.lists(RATIONALS, min_size=2, max_size=4, unique=True))
def test_several_boxes_in_one_sentence_are_all_the_answers_in_any_order(data, parts):
    gold = ", ".join(rational(data, part) for part in parts)
    boxes = [rf"$\boxed{{{rational(data, part)}}}$" for part in data.draw(st.permutations(parts))]
    joint = draws(data, ", ", " and ", " or ", r"\text{ and }", r" \quad ", "; ", ", and ")
    grade = GRADER.grade(Prompt("p", (), "math", gold), "So the answers are " + joint.join(boxes) + ".", False)
    fewer = GRADER.grade(Prompt("p", (), "math", gold), "So the answers are " + joint.join(boxes[1:]) + ".", False)
    assert (grade.reward, fewer.reward) == (1.0, 0.0)
