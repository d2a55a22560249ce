"""Mathematics as a tree of tokens: one tree for LaTeX, Unicode and plain text, without what only styles it.

Every search here is linear in the text, which a model wrote.
"""

from __future__ import annotations

import re
import unicodedata
from dataclasses import dataclass
from itertools import groupby, pairwise
from typing import TypeAlias

DEEPEST = 40  # levels of braces and environments


class Unreadable(Exception):
    """The text is not mathematics that this program reads. No part of it is compared."""


class NoValue(Unreadable):
    """Something is divided by zero."""


class Group(tuple):
    """What stands in braces, where it is the argument of something."""


class Words(str):
    """A word of running text, as opposed to a product of letters."""


class Apart(str):
    """Letters behind a number and a blank, which may be a unit: 3 cm, while 3cm is a product."""


@dataclass(frozen=True)
class Table:
    """kind: matrix, vmatrix, Vmatrix, cases or lines."""

    kind: str
    rows: tuple[tuple[Items, ...], ...]


Item: TypeAlias = "str | Words | Group | Table"
Items: TypeAlias = "tuple[Item, ...]"

_SEPARATOR = r"(?:,(?:\\!\ ?)?|\{\ ?,\ ?\}(?:\\!)?|\\[,;:!\ ]|[\ ~])"
_TOKEN = re.compile(
    rf"""\\(?:begin|end)\s*\{{\s*[A-Za-z]+\*?\s*\}}
    | \\(?:left|right)\s*\. | \\[A-Za-z]+ | \\.
    | (?<![\d.])[1-9]\d{{0,2}}(?:{_SEPARATOR}\d{{3}})+(?!\d)(?:\.\d+)?
    | (?:\d+(?:\.\d+)?|\.\d+)(?:[eE][+-]?\d+(?!\.?\d|[\^_{{]))?
    | [A-Za-z]+ | \s+ | [<>!]= | \*\* | .""",
    re.VERBOSE | re.DOTALL,
)
_UNFINISHED = re.compile(r"\.(?:\s?\.)+")
_DOUBLED = re.compile(r"\\\\(?=[A-Za-z])")
_CHARACTERS = {
    "−": "-", "–": "-", "×": r"\times ", "·": r"\cdot ", "⋅": r"\cdot ", "∙": r"\cdot ", "•": r"\cdot ", "÷": r"\div ",
    "√": r"\surd ", "∛": r"\sqrt[3]", "∜": r"\sqrt[4]", "∞": r"\infty ", "≤": r"\le ", "⩽": r"\le ", "≥": r"\ge ",
    "⩾": r"\ge ", "≠": r"\ne ", "≈": r"\approx ", "±": r"\pm ", "∓": r"\mp ", "∈": r"\in ", "∪": r"\cup ",
    "∩": r"\cap ", "∖": r"\setminus ", "∅": r"\emptyset ", "°": r"^\circ ", "º": r"^\circ ", "′": "'", "’": "'",
    "ℝ": r"\mathbb{R}", "ℤ": r"\mathbb{Z}", "ℚ": r"\mathbb{Q}", "ℕ": r"\mathbb{N}", "ℂ": r"\mathbb{C}",
    "⟨": r"\langle ", "⟩": r"\rangle ", "〈": r"\langle ", "〉": r"\rangle ", "⌊": r"\lfloor ", "⌋": r"\rfloor ",
    "⌈": r"\lceil ", "⌉": r"\rceil ", "⁄": "/", "∕": "/", "∶": ":", "℃": r"^\circ C", "℉": r"^\circ F", "π": r"\pi ",
    "𝜋": r"\pi ", "∧": r"\land ", "∨": r"\lor ", "→": r"\to ", "…": r"\ldots ", "⋯": r"\ldots ", "，": ",", "∣": "|",
    "\u2126": r"\text{ohm}",
}  # fmt: skip
_MARKED_DIGIT = re.compile("\\d(?:([\u0305\u0304])(?:\\d\\1)*|\u0307)")


def _commands(names: str) -> frozenset[str]:
    return frozenset(f"\\{name}" for name in re.findall(r"[A-Za-z]+", names))


_STYLE = _commands("""displaystyle textstyle scriptstyle limits nolimits left right middle mleft mright big bigl bigr
    bigm Big Bigl Bigr Bigm bigg biggl biggr Bigg Biggl Biggr bf rm it sf tt cal em bfseries itshape normalfont tiny
    scriptsize small normalsize large Large LARGE huge Huge quad qquad enspace thinspace nobreak allowbreak strut
    mathstrut hfill hfil newline par hline noindent centering relax protect null boldmath unboldmath""") | {
    "\\,", "\\;", "\\:", "\\!", "\\>", "\\ ", "\\/", "\\-", "\\(", "\\)", "\\[", "\\]", "~", "\\\n", "\\\t",
}  # fmt: skip
_DROPPED_ARGUMENTS = {r"\color": 1, r"\textcolor": 1, r"\colorbox": 1, r"\fcolorbox": 2, r"\hspace": 1, r"\vspace": 1,
                      r"\phantom": 1, r"\hphantom": 1, r"\vphantom": 1, r"\label": 1, r"\kern": 1}  # fmt: skip
_TEXT = _commands("text textrm textbf textit textsf texttt textnormal textsc textup emph mbox hbox mathrm operatorname")
_TRANSPARENT = _commands("""mathbf mathit mathsf mathtt mathnormal boldsymbol bm pmb underline uline boxed fbox
    ensuremath smash mathop mathord mathopen mathclose""")
_BLANKS = frozenset(["\\,", "\\;", "\\:", "\\ ", "~", "\\>", r"\quad", r"\enspace", r"\thinspace"])
_GREEK = re.findall(
    r"\w+",
    """alpha beta gamma delta epsilon zeta eta theta iota kappa lambda mu nu xi rho sigma tau
    upsilon phi chi psi omega ell""",
)
INDEX = r"\aleph"  # the parameter of every family of answers
NAMES = frozenset([INDEX, *(rf"\{letter}" for name in _GREEK for letter in (name, name.capitalize()))])
_FRESH = frozenset(["=", "<", ">", r"\le", r"\ge", r"\approx", ",", ";"])  # behind these a number may begin
# Products as well, as in 2\pi ft, but for a square or a cube.
_AMBIGUOUS = frozenset(["ft", "mg", "ms", "mL", "ml", "cL", "cl", "hr", "yr"])
FUNCTIONS = _commands("sin cos tan cot sec csc sinh cosh tanh arcsin arccos arctan log ln exp max min gcd lcm")
_ALIASES = {
    r"\dfrac": r"\frac", r"\tfrac": r"\frac", r"\cfrac": r"\frac", r"\dbinom": r"\binom", r"\tbinom": r"\binom",
    r"\lbrace": r"\{", r"\rbrace": r"\}", r"\lbrack": "[", r"\rbrack": "]", r"\lparen": "(", r"\rparen": ")",
    r"\leq": r"\le", r"\leqslant": r"\le", r"\geq": r"\ge", r"\geqslant": r"\ge", r"\neq": r"\ne", r"\lt": "<",
    r"\gt": ">", "<=": r"\le", ">=": r"\ge", "!=": r"\ne", r"\times": r"\cdot", "**": "^", "*": r"\cdot",
    r"\ast": r"\cdot",
    r"\varnothing": r"\emptyset", r"\lvert": "|", r"\rvert": "|", r"\vert": "|", r"\mid": "|",
    r"\colon": ":", r"\rightarrow": r"\to", r"\dots": r"\ldots",
    r"\cdots": r"\ldots", r"\varphi": r"\phi", r"\varepsilon": r"\epsilon", r"\vartheta": r"\theta", r"\lg": r"\log",
    r"\pounds": "£", r"\euro": "€", r"\textdollar": r"\$", r"\widehat": r"\hat", r"\widetilde": r"\tilde",
    r"\backslash": r"\setminus", r"\land": Words("and"), r"\wedge": Words("and"), r"\lor": Words("or"),
    r"\vee": Words("or"), "%": r"\%", r"\simeq": r"\approx", "infinity": r"\infty", "pi": r"\pi", "sqrt": r"\surd",
}  # fmt: skip
_ENVIRONMENTS = {
    **dict.fromkeys(("matrix", "pmatrix", "bmatrix", "Bmatrix", "smallmatrix", "array"), "matrix"),
    **dict.fromkeys(("aligned", "align", "gathered", "gather", "split", "equation"), "lines"),
    "vmatrix": "vmatrix",
    "Vmatrix": "Vmatrix",
    "cases": "cases",
    "dcases": "cases",
}
ACCENTS = _commands("vec hat bar overline overrightarrow tilde dot mathbb mathcal mathfrak")
_ARGUMENTS = dict.fromkeys(["^", "_", r"\sqrt", r"\surd", *ACCENTS], 1) | {r"\frac": 2, r"\binom": 2}


def tree(text: str) -> Items:
    """Raises Unreadable where braces or environments do not match."""
    return _flat(_clean(_nested(_latex(text)), text=False))


def _latex(text: str) -> str:
    """Unicode's mathematics in LaTeX, without Markdown around all of it."""
    for mark in ("$", "**", "__", "*", "`", "$"):
        inner = text.strip()[len(mark) : -len(mark)]
        if inner and mark not in inner and text.strip() == mark + inner + mark:
            text = inner
    if not text.isascii():
        text = _MARKED_DIGIT.sub(_repeating, text)
        runs = groupby(text, key=lambda c: unicodedata.decomposition(c).split(" ")[0] if c > "\x7f" else "")
        text = "".join(_unicode_run(kind, "".join(run)) for kind, run in runs)
    text = _UNFINISHED.sub(r"\\ldots ", text)
    return text if "\\begin" in text else _DOUBLED.sub(r"\\", text)


def _repeating(match: re.Match[str]) -> str:
    """Digits under combining marks."""
    digits = "".join(c for c in match[0] if c.isdigit())
    return rf"\overline{{{digits}}}" if match[1] else rf"\dot{{{digits}}}"


def _unicode_run(kind: str, run: str) -> str:
    if kind == "<super>" and "º" not in run:
        return f"^{{{_ascii(run)}}}"
    if kind == "<sub>":
        return f"_{{{_ascii(run)}}}"
    if kind == "<fraction>":
        return "".join(r"\frac{{{}}}{{{}}}".format(*_ascii(c).split("/")) for c in run)
    return _ascii(run)


def _ascii(run: str) -> str:
    return "".join(c if c < "\x80" else _CHARACTERS.get(c) or _compatible(c) for c in run)


def _compatible(c: str) -> str:
    if unicodedata.category(c) == "Cf":
        return ""
    folded = unicodedata.normalize("NFKC", c)
    return "".join(_CHARACTERS.get(part) or _greek(part) for part in folded)


def _greek(c: str) -> str:
    name = unicodedata.name(c, "").split(" ")
    if name[:1] != ["GREEK"] or len(name) != 4:
        return " " if c.isspace() else c
    letter = name[3].lower().replace("lamda", "lambda")
    return f"\\{letter if name[1] == 'SMALL' else letter.capitalize()} "


class _Open:
    """A brace or an environment that is being read; the outermost has no kind."""

    def __init__(self, kind: str) -> None:
        self.kind = kind
        self.rows: list[list[list[Item]]] = [[[]]]

    @property
    def items(self) -> list[Item]:
        return self.rows[-1][-1]


def _nested(text: str) -> list[Item]:
    stack = [_Open("")]
    for match in _TOKEN.finditer(text):
        token = match[0]
        top = stack[-1]
        if token == "{" or token.startswith("\\begin"):
            stack.append(_Open(token[6:].strip(" {}\t\n") if token != "{" else "{"))
            if len(stack) > DEEPEST:
                raise Unreadable("nested too deep")
        elif token == "}" or token.startswith("\\end"):
            if top.kind != (token[4:].strip(" {}\t\n") if token != "}" else "{"):
                raise Unreadable("braces do not match")
            stack.pop()
            stack[-1].items.append(Group(top.items) if token == "}" else _table(top))
        elif token == "&" and top.kind not in ("", "{"):
            top.rows[-1].append([])
        elif token == "\\\\" and top.kind not in ("", "{"):
            top.rows.append([[]])
        else:
            top.items.append(_number(token) if token[-1].isdigit() and token[0] != "\\" else token)
    if len(stack) > 1:
        raise Unreadable("a brace is not closed")
    return stack[0].items


def _number(token: str) -> str:
    """Separators of thousands go, but plain commas, which may separate the parts of a pair."""
    if "{" in token or "\\" in token or " " in token or "~" in token:
        return re.sub(r"[^\d.]", "", token)
    return token


def _table(read: _Open) -> Table:
    kind = _ENVIRONMENTS.get(read.kind.rstrip("*"))
    if kind is None:
        raise Unreadable(f"environment {read.kind}")
    rows = [[_flat(_clean(cell, text=False)) for cell in row] for row in read.rows]
    if read.kind == "array":
        first = [item for item in read.rows[0][0] if not (isinstance(item, str) and item.isspace())]
        if first and isinstance(first[0], Group):
            rows[0][0] = _flat(_clean(first[1:], text=False))
    for row in rows[1:]:  # the space after a row: \\[2pt]
        if row[0][:1] == ("[",) and row[0][3:4] == ("]",):
            row[0] = row[0][4:]
    if len(rows) > 1 and not any(rows[-1]):
        rows.pop()
    return Table(kind, tuple(tuple(row) for row in rows))


def _clean(items: list[Item], text: bool) -> list[Item]:
    """Without blanks and style; text in words, everything else under its one name."""
    infix = next((i for i, item in enumerate(items) if item in (r"\over", r"\choose")), None)
    if infix is not None:
        command = r"\frac" if items[infix] == r"\over" else r"\binom"
        items = [command, Group(items[:infix]), Group(items[infix + 1 :])]
    out: list[Item] = []
    in_words = text
    shifts = items.count("$")
    queue = list(reversed(items))
    item: Item = ""
    numeric = True  # no letters so far but words and units
    while queue:
        before, item = item, queue.pop()
        if isinstance(item, Group):
            out.append(Group(_flat(_clean(list(item), in_words))))
            numeric = numeric and _is_numeric(out[-1])
        elif not isinstance(item, str):
            out.append(item)
        elif item in _TEXT:
            out.extend(_named(_clean(_argument(queue), text=True)))
        elif item in _TRANSPARENT:
            inner = _flat(_clean(_argument(queue), in_words))
            out.append(inner[0] if len(inner) == 1 else Group(inner))
            numeric = numeric and _is_numeric(out[-1])
        elif item in _DROPPED_ARGUMENTS:
            for _ in range(_DROPPED_ARGUMENTS[item]):
                _argument(queue)
        elif item in _STYLE or item.isspace() or item.startswith(("\\left", "\\right")) and item.endswith("."):
            continue
        elif item == "$":
            in_words = text and not in_words
            if shifts == 1:
                out.append(r"\$")
        elif item in (r"\degree", r"\textdegree"):
            out.extend(("^", r"\circ"))
        elif item[0].isalpha() and in_words:
            out.append(Words(item))
        elif item == r"\Omega" and isinstance(out[-1] if out else "", Words | Apart) and out[-1] in ("k", "M"):
            out[-1] = Apart(f"{out[-1]}ohm")
        else:
            spaced = isinstance(before, str) and (before.isspace() or before in _BLANKS)
            behind = numeric and (spaced and _ends_number(out, queue, item) or out[-1:] == ["/"] and is_word(item))
            out.append(_letters(item, spaced, behind, queue, out))
            power_of_ten = item == "x" and "10" in queue[-2:]
            numeric = out[-1] in _FRESH or numeric and (_is_numeric(out[-1]) or power_of_ten)
    return out


def _letters(run: str, spaced: bool, behind: bool, queue: list[Item], out: list[Item]) -> Item:
    """Outside of a text: a function, a constant, a product, or letters set apart by blanks, which are a unit or a word
    behind a number (12 apples), and a word beside others (no root)."""
    if f"\\{run}" in FUNCTIONS:
        return f"\\{run}"
    if run == r"\Omega" and behind:
        return Apart("ohm")
    if run in _ALIASES or not run.isalpha():
        return _ALIASES.get(run, run)
    after = queue[-2] if len(queue) > 1 and isinstance(queue[-1], str) and queue[-1].isspace() else ""
    beside = isinstance(after, str) and after.isalpha() and len(after) > 1 and f"\\{after}" not in FUNCTIONS
    beside = beside or spaced and isinstance(out[-1] if out else "", Words)
    if len(run) > 1 and beside or behind and is_word(run):
        return Words(run)
    return Apart(run) if behind else run


def is_word(run: str) -> bool:
    """Three letters that can be spoken and are not in the order of the alphabet, as those of a product are."""
    small = run.lower()
    product = set(small).isdisjoint("aeiou") or all(a < b for a, b in pairwise(small))
    return len(run) > 2 and run.isalpha() and run[1:].islower() and not product


def _ends_number(out: list[Item], queue: list[Item], run: str) -> bool:
    """Can what was read so far, which has no letters, be a number with its unit behind it?"""
    last = out[-1] if out else ""
    fraction = out[-2:-1] == [r"\frac"]
    if isinstance(last, str) and last[-1:].isdigit() and not fraction:
        return True
    power = queue[-2] if queue[-1:] == ["^"] and len(queue) > 1 else ""
    certain = run not in _AMBIGUOUS or power in ("2", "3", Group("2"), Group("3"))
    return certain and (isinstance(last, Group) or last in (")", "!", r"\pi") or fraction and len(str(last)) == 2)


def _is_numeric(item: Item) -> bool:
    if isinstance(item, Group):
        return all(map(_is_numeric, item))
    if not isinstance(item, str) or isinstance(item, Words | Apart):
        return True
    return not (item.isalpha() or item in NAMES or item in FUNCTIONS)


def _named(words: list[Item]) -> list[Item]:
    """\\operatorname{sin} and \\mathrm{sin} are \\sin."""
    return [f"\\{words[0]}"] if len(words) == 1 and f"\\{words[0]}" in FUNCTIONS else words


def _argument(queue: list[Item]) -> list[Item]:
    """Takes the next argument off the reversed queue, and an option in brackets before it."""
    while queue and isinstance(queue[-1], str) and (queue[-1].isspace() or queue[-1] == "*"):
        queue.pop()
    if queue and queue[-1] == "[" and "]" in queue:
        while queue.pop() != "]":
            pass
    if not queue:
        return []
    item = queue.pop()
    return list(item) if isinstance(item, Group) else [item]


def _flat(items: list[Item]) -> Items:
    """Braces that are nobody's argument go."""
    out: list[Item] = []
    due = 0
    option = False
    for item in items:
        if isinstance(item, Group) and not due:
            out.extend(item)
            continue
        if out[-1:] in (["^"], ["_"]) and isinstance(item, Group) and len(item) == 1:
            out.append(item[0])  # x_{1} is x_1
        else:
            out.append(item)
        option = (option or (item == "[" and out[-2:-1] == [r"\sqrt"])) and item != "]"
        if option or item == "]" and due:
            continue
        due = max(due - 1, 0) if due else 0
        if isinstance(item, str):
            due = _ARGUMENTS.get(item, due)
    return tuple(out)
