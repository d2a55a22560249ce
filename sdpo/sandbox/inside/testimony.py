"""Whose word an answer is.

The tests ask for some things of the solution by name: functions, classes, constants. Plain data that these return is
judged here and needs no trust. What any other code of the solution says - methods, iteration, conversion, truth of an
object whose class nobody named - is its own word in its own case, and makes the verdict weak, whatever the syntax.
"""

from __future__ import annotations

from dataclasses import dataclass

NOTHING, CALLS, ALL = range(3)  # how far the tests asked for an object: not at all, for what calls return, for it all
SILENT = frozenset({"setattr", "delattr", "setitem", "delitem"})  # they answer nothing
CALLABLE = ("call", "callable", "class", "error")
PROTOCOLS = {"coroutine": ("await",), "manager": ("enter", "exit")}  # of functions, like a generator's `next`
MATCH_METHODS = frozenset({"group", "groups", "groupdict", "start", "end", "span"})  # no code of a program in them
GENERATOR_METHODS = frozenset({"send", "throw", "close"})


@dataclass
class Known:
    """An object of the solution. `classes`: numbers of the named classes that its class derives from; None where its
    type is one of the interpreter's, whose code a program cannot write."""

    kind: str
    classes: list[int] | None
    asked: int = NOTHING
    named: bool = False  # asked for by a name of its own, not as an object of a class
    method: bool = False  # a function that belongs to an object that was asked for
    exhausted: bool = False


class Testimony:
    def __init__(self) -> None:
        self.known: dict[int, Known] = {}
        self.holders: set[int] = set()  # numbers of classes that only hold functions: no answer is an object of them
        self.weak: list[str] = []
        self.received: list[tuple[int, bool]] = []  # of the answer being read: objects, and whether they are new

    def meet(self, number: int, kind: str, classes: object) -> None:
        new = number not in self.known
        if new:
            own = [n for n in classes if isinstance(n, int)] if isinstance(classes, list) else None
            named = any(self.is_asked_class(n) for n in own or ())
            self.known[number] = Known(kind, own, ALL if named else NOTHING)
        elif self.known[number].kind == "class" and kind not in ("class", "error"):  # it was said to be one
            self.known[number].asked = NOTHING
        self.received.append((number, new))

    def is_asked_class(self, number: int) -> bool:
        known = self.known.get(number)
        return known is not None and known.kind in ("class", "error") and known.asked == ALL

    def ask_for_class(self, number: int) -> None:
        """The tests or the prompt want a class of its name."""
        self.known[number] = Known("class", [], ALL)

    def ask_for(self, as_class: bool, holder: bool) -> None:
        """The tests or the prompt name what was received. A class under the name of a function is only called, since a
        program could answer with its objects instead of values; and so is an object whose class nobody named."""
        for number, _ in self.received:
            known = self.known[number]
            known.named = known.asked == NOTHING
            self.holders |= {number} if holder else set()
            whole = as_class if known.kind in ("class", "error") else known.classes is None
            known.asked = max(known.asked, ALL if whole else CALLS)

    def borrow(self, name: str) -> None:
        """A name that nobody asked for was read. An object is judged when it is used; a plain value is used already,
        and so is what goes by an asked-for name as well."""
        if not self.received or not all(new for _, new in self.received):
            self.weak.append(f"the tests use {name}, which the program made")

    def weigh(self, operation: str, number: int, detail: object, raised: bool, stored: bool) -> None:
        """An answer about object `number` was read. `stored`: an attribute that was only looked up, by no code."""
        subject = self.known[number]
        if not self._fair(subject, operation, detail, raised, stored):
            self.weak.append(f"{operation} was decided by an object of the program")
            return
        if operation == "next" and raised:
            subject.exhausted = True
        for received, new in self.received:
            self._take(subject, operation, self.known[received], new)

    def _fair(self, subject: Known, operation: str, detail: object, raised: bool, stored: bool) -> bool:
        kinds = {self.known[number].kind for number, _ in self.received}
        if subject.asked == ALL:
            return True
        if operation == "call":
            return subject.asked == CALLS or subject.kind in ("class", "error") and bool(kinds) and not raised
        if subject.kind == "iter" and subject.classes is None:
            if operation == "iter":  # a second loop over it finds nothing, and `all` of nothing holds
                return not subject.exhausted
            return operation == "next" or operation == "getattr" and detail in GENERATOR_METHODS
        if subject.kind == "match" and (operation == "getitem" or operation == "getattr" and detail in MATCH_METHODS):
            return subject.classes is None and not raised
        if subject.kind in PROTOCOLS:
            return operation in PROTOCOLS[subject.kind]
        if operation in SILENT:
            return not raised
        if operation == "bool" and subject.classes is None:
            return True  # e.g. a match of a pattern; a program could as well answer True
        return operation == "getattr" and stored and kinds.isdisjoint(CALLABLE)

    def _take(self, subject: Known, operation: str, received: Known, new: bool) -> None:
        """An object came with a fair answer: what the tests may do with it."""
        attribute = operation == "getattr"
        constructed = operation == "call" and subject.kind == "class"
        themselves = (
            received.named and received.kind in ("callable", "object") or self.holders & set(received.classes or ())
        )
        if themselves and not attribute and not constructed:
            self.weak.append("the program answered with an object that is under test itself")
        if received.asked or received.kind == "plain":
            return
        if new and operation in ("iter", "reversed", "enter") and subject.asked == ALL:
            received.asked = ALL  # what the protocol of an asked-for object works with
        elif received.kind in ("call", "callable"):
            received.asked = CALLS if new else NOTHING
            received.method = attribute and not self.holders & set(subject.classes or ())
        elif attribute and received.kind in ("class", "error"):
            received.asked = ALL if new else NOTHING
        elif received.classes is not None and not (attribute or constructed or self._is_part(subject)):
            self.weak.append("the program answered with an object of a class of its own")

    def _is_part(self, subject: Known) -> bool:
        """Whether an answer comes from within an object that was asked for, e.g. a node of a list: it may be looked at,
        and is judged by what it is asked. A function under test owes a value."""
        return subject.method or subject.asked == ALL and subject.kind not in ("call", "callable")
