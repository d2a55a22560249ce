"""Units: what they measure, and how much of it."""

from __future__ import annotations

import re
from dataclasses import dataclass
from fractions import Fraction

from .math_spelling import Apart, Group, Item, Items, Unreadable, Words, is_word

# dimension: names and sizes. The size of a degree is in multiples of pi.
_TABLE = {
    "length": "m meter metre 1; mm millimeter millimetre .001; cm centimeter centimetre .01; dm decimeter .1; "
    "km kilometer kilometre 1000; nm nanometer 1e-9; in inch .0254; ft foot feet .3048; "
    "yd yard .9144; mi mile 1609.344",
    "time": "s sec \\sec second 1; ms millisecond .001; min \\min minute 60; h hr hour 3600; day 86400; week 604800",
    "years": "month 1; year yr 12; decade 120",
    "mass": "g gram .001; mg milligram 1e-6; kg kilogram 1; t ton tonne 1000; lb pound .45359237; "
    "oz ounce .028349523125",
    "volume": "L l liter litre 1; mL ml milliliter millilitre .001; cL cl .01; gal gallon 3.785411784; "
    "quart .946352946; pint .473176473",
    "dollar": "\\$ dollar USD usd buck 1; ¢ cent penny pennies .01; nickel .05; dime .1; quarter .25",
    "euro": "€ euro EUR 1",
    "sterling": "£ GBP 1",
    "yen": "¥ yen JPY 1",
    "rupee": "₹ rupee Rs INR 1",
    "angle": "degree deg 1; radian rad 0",
    "celsius": "celsius Celsius 1",
    "fahrenheit": "fahrenheit Fahrenheit 1",
    "kelvin": "K kelvin 1",
    "speed": "mph 0.44704; kph kmh 5/18",
    "energy": "J joule 1; kJ kilojoule 1000; cal calorie 4.184; kcal 4184; kWh 3600000",
    "power": "W watt 1; kW kilowatt 1000",
    "force": "N newton 1",
    "pressure": "Pa pascal 1; kPa 1000",
    "charge": "C coulomb 1",
    "current": "A ampere amp 1",
    "voltage": "V volt 1",
    "resistance": "ohm \\Omega 1; kohm 1000; Mohm 1000000",
    "frequency": "Hz hertz 1; kHz 1000; MHz 1000000",
    "amount": "mol mole 1",
    "percent": "\\% percent pct percentage 1",
    "any": "unit 1",
}
_COMPOUND = {"volume": ({"length": 3}, Fraction(1, 1000)), "speed": ({"length": 1, "time": -1}, Fraction(1))}
_SCALES = {"ten": 1, "hundred": 2, "thousand": 3, "lakh": 5, "million": 6, "crore": 7, "billion": 9, "trillion": 12}
_SCALES |= {f"{name}s": power for name, power in _SCALES.items()}
_POWERS = {"square": 2, "squared": 2, "sq": 2, "cubic": 3, "cubed": 3, "cu": 3}
# Words after a number that change it, or that make more of it than the name of what was counted.
_NO_UNIT = frozenset(
    re.findall(
        r"\w+",
        """is are was be not no non if than but for when because to plus minus times over or nor only never
    divided by factorial pi root dozen dozens gross score scores half halves third thirds fourth fourths
    quarters fifth fifths sixth sixths seventh sevenths eighth eighths ninth ninths tenth tenths hundredth hundredths
    thousandth thousandths millionth millionths zero one two three four five six seven eight nine eleven
    twelve twenty thirty forty fifty sixty
    negative negated opposite below under beneath above less more fewer greater smaller larger least most
    doubled double twice tripled triple thrice halved quadrupled multiplied added subtracted increased decreased
    squareroot reciprocal inverse inverted conjugate complement modulo mod remainder exponent
    incorrect wrong false untrue invalid impossible unknown undefined maybe perhaps possibly probably
    about approximately roughly nearly almost too many few off etc isn isnt aint without except
    neither none unless rather instead error mistake infinity""",
    )
)
_ADJECTIVES = frozenset(
    re.findall(
        r"\w+",
        """negative opposite false untrue wrong incorrect invalid impossible unknown smaller larger greater double
    triple inverse""",
    )
)
_DIVISIONS = ("/", "per", "a", "an", "each", "every")
_PLURALS = {"people": "person", "children": "child", "men": "man", "women": "woman"}
_TEMPERATURES = {"c": "celsius", "f": "fahrenheit"}
CURRENCIES = frozenset(["\\$", "€", "£", "¥", "₹"])
PERCENT = "percent"


@dataclass(frozen=True)
class Unit:
    dimensions: tuple[tuple[str, int], ...]
    size: Fraction = Fraction(1)

    def __mul__(self, other: Unit) -> Unit:
        powers = dict(self.dimensions)
        for name, power in other.dimensions:
            powers[name] = powers.get(name, 0) + power
        return Unit(tuple(sorted((n, p) for n, p in powers.items() if p)), self.size * other.size)

    def __pow__(self, power: int) -> Unit:
        return Unit(tuple((name, p * power) for name, p in self.dimensions), self.size**power)

    @property
    def is_any(self) -> bool:
        """Plain "units"."""
        return [name for name, _ in self.dimensions] == ["any"]

    def measures_the_same(self, other: Unit) -> bool:
        """Anything agrees with plain "units" of the same power: 4 square units, 4 cm^2."""
        for one, two in ((self, other), (other, self)):
            if one.is_any:
                return sum(power for _, power in two.dimensions) == one.dimensions[0][1]
        return self.dimensions == other.dimensions


def _known() -> dict[str, Unit]:
    known = {}
    for dimension, entries in _TABLE.items():
        base, factor = _COMPOUND.get(dimension, ({dimension: 1}, Fraction(1)))
        for entry in entries.split(";"):
            *names, size = entry.split()
            unit = Unit(tuple(sorted(base.items())), Fraction(size) * factor)
            known.update(dict.fromkeys(names, unit))
    return known


_KNOWN = _known()


def known_unit(word: str) -> Unit | None:
    found = _KNOWN.get(word) or _KNOWN.get(word.lower() if len(word) > 2 else word)
    if found is None and len(word) > 2:
        for ending in ("s", "es"):
            found = found or _KNOWN.get(word.lower().removesuffix(ending))
    return found


def names_unit(item: object, loose: bool) -> bool:
    """Letters outside of a text are a unit only where several of them stand apart: 5 cm, while 5cm may be 5 times c
    times m. Loose: there is a unit already, or the other answer has one too."""
    if isinstance(item, Words) or not isinstance(item, str):
        return isinstance(item, Words)
    if item in CURRENCIES or item in _SCALES or item.lower() in ("\\%", "¢", "\\min", "\\sec", "am", "pm"):
        return True
    if isinstance(item, Apart) and len(item) > 1 or loose:
        return known_unit(item) is not None or item in _POWERS or loose and is_word(item)
    return False


def begins_unit(items: Items, at: int, loose: bool) -> bool:
    """A letter does with a unit of several letters below it, which is no quotient that is read, and in m/s."""
    if names_unit(items[at], loose):
        return True
    below = str(items[at + 2]) if items[at + 1 : at + 2] == ("/",) and len(items) > at + 2 else ""
    known = isinstance(items[at], Apart) and known_unit(str(items[at])) and known_unit(below)
    return bool(known) and (len(below) > 1 or (items[at], below) == ("m", "s"))


def read_unit(items: Items) -> tuple[Unit, int]:
    """The unit, and the power of ten that words such as "million" bring. Raises Unreadable."""
    scale = 0
    while items and isinstance(items[0], str) and items[0].lower() in _SCALES:
        scale, items = scale + _SCALES[items[0].lower()], items[1:]
    half = "".join(item for item in items if isinstance(item, str) and item.isalpha()).lower()
    if half in ("am", "pm"):
        return Unit(((half, 1),)), scale
    if items[:1] in (("/",), ("per",)):
        return _product(items[1:]) ** -1, scale
    unit, start = Unit(()), 0
    if not items and scale:
        return unit, scale
    for at in [i for i, item in enumerate(items) if i and item in _DIVISIONS] + [len(items)]:
        if at > start:
            unit *= _product(items[start:at]) ** (-1 if start else 1)
        start = at + 1
    return unit, scale


def _argument(item: Item) -> Items:
    """Of a fraction, which takes one letter of several."""
    if isinstance(item, Group):
        return item
    if len(str(item)) > 1 and not str(item).startswith("\\"):
        raise Unreadable("which letters the fraction takes")
    return (item,)


def _product(items: Items) -> Unit:
    """Units multiplied. Of words that are no unit the last one before "of" says what was counted, unless a unit stands
    beside."""
    unit, last, counted, power, at = Unit(()), None, "", 1, 0
    while at < len(items):
        item, word, at = items[at], str(items[at]).lower(), at + 1
        if item == "\\frac" and len(items) > at + 1:
            above, below = map(_argument, items[at : at + 2])
            last = read_unit(above)[0] * read_unit(below)[0] ** -1
            unit, at = unit * last, at + 2
        elif item == "^" and items[at : at + 1] == ("\\circ",):
            scale = _TEMPERATURES.get("".join(map(str, items[at + 1 : at + 2])).lower())
            last = _KNOWN[scale or "degree"]
            unit, at = unit * last, at + (2 if scale else 1)
        elif item == "^" or word in ("squared", "cubed"):
            exponent = _exponent(items[at : at + 1]) if item == "^" else _POWERS[word]
            if last is None:
                raise Unreadable("an exponent without a unit")
            unit, at = unit * last ** (exponent - 1), at + (item == "^")
        elif word in _POWERS:
            power = _POWERS[word]
        elif item in ("\\cdot", "-", "."):
            continue
        elif not names_unit(item, True) or word in _NO_UNIT and not _describes(word, items[at : at + 1]):
            raise Unreadable(f"no unit: {item}")
        elif word in ("degree", "degrees") and str(items[at : at + 1]).lower()[2:3] in ("c", "f"):
            continue
        elif (found := known_unit(str(item))) is not None:
            if found.dimensions == ((PERCENT, 1),) and unit.dimensions:
                raise Unreadable("a percentage of something")
            last = found**power
            unit, power = unit * last, 1
        elif len(word) < 3 and word != "of":
            raise Unreadable("a letter that is no unit")
        elif "of" not in items[: at - 1]:
            counted = _singular(word) if word != "of" else counted
    if last is None and not counted:
        raise Unreadable("no unit")
    return unit if last is not None else Unit(((counted, power),))


def _describes(word: str, following: Items) -> bool:
    """42 negative integers are 42, while 42 negative is not."""
    noun = str(following[0]).lower() if following else ""
    plural = noun != _singular(noun) and not noun.endswith("ss") and noun not in _NO_UNIT and not known_unit(noun)
    return word in _ADJECTIVES and plural


def _exponent(items: Items) -> int:
    text = "".join(map(str, items[0] if items and isinstance(items[0], Group) else items))
    if not text.removeprefix("-").isdecimal() or len(text) > 2:
        raise Unreadable("a unit's exponent")
    return int(text)


def _singular(word: str) -> str:
    if word in _PLURALS:
        return _PLURALS[word]
    if word.endswith("ies"):
        return word[:-3] + "y"
    if word.endswith(("xes", "ches", "shes", "sses")):
        return word[:-2]
    return word.removesuffix("s") if len(word) > 3 else word
