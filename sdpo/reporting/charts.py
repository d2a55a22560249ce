"""Small SVG charts as text: no library, no network, colours from the page's style sheet (classes c0 to c5)."""

from __future__ import annotations

import json
import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from html import escape

from sdpo.tracking.history import duration

WIDTH, HEIGHT = 400, 208
LEFT, RIGHT, TOP, BOTTOM = 44, 12, 10, 26
MAX_POINTS = 600  # more are averaged in buckets: no screen shows them apart
MAX_BARS = 70

Points = Sequence[tuple[float, float]]


@dataclass(frozen=True)
class Line:
    """One curve. `colour` picks a class, so that the same quantity looks the same in every chart."""

    name: str
    points: Points
    colour: int
    markers: bool = False


@dataclass(frozen=True)
class Axis:
    """A linear scale from values to pixels."""

    low: float
    high: float
    start: float
    end: float

    def __call__(self, value: float) -> float:
        return self.start + (value - self.low) / (self.high - self.low) * (self.end - self.start)


def line_chart(
    title: str,
    lines: Sequence[Line],
    note: str = "",
    bounds: tuple[float, float] | None = None,
    x_name: str = "step",
    x_text: Callable[[float], str] | None = None,
) -> str:
    """A figure with the lines that have points; "" when none has. `bounds` fixes the y axis, else it fits the data."""
    lines = [Line(line.name, thin(line.points), line.colour, line.markers) for line in lines if line.points]
    if not lines:
        return ""
    xs = [x for line in lines for x, _ in line.points]
    ys = [y for line in lines for _, y in line.points]
    x_axis = _axis(min(xs), max(xs), LEFT, WIDTH - RIGHT)
    y_axis = Axis(*(bounds or _padded(min(ys), max(ys))), HEIGHT - BOTTOM, TOP)
    x_text = x_text or number
    marks = "".join(_curve(line, x_axis, y_axis) for line in lines)
    hover = [[line.name, [[x, y] for x, y in line.points], line.colour] for line in lines]
    body = _grid(x_axis, y_axis, x_text, whole_x=x_name == "step") + marks
    return _figure(title, note, [(line.name, line.colour) for line in lines], body, (x_axis, y_axis), hover, x_name)


def stacked_bars(title: str, lines: Sequence[Line], note: str = "") -> str:
    """Bars by step, each the sum of its parts; with many steps a bar is the mean of several."""
    lines = [line for line in lines if any(y for _, y in line.points)]
    steps = sorted({x for line in lines for x, _ in line.points})
    if not steps:
        return ""
    bins = [
        steps[i : i + math.ceil(len(steps) / MAX_BARS)] for i in range(0, len(steps), math.ceil(len(steps) / MAX_BARS))
    ]
    values = [dict(line.points) for line in lines]
    parts = [[sum(v.get(x, 0.0) for x in group) / len(group) for v in values] for group in bins]
    x_axis = Axis(steps[0] - 0.5, steps[-1] + 0.5, LEFT, WIDTH - RIGHT)
    y_axis = Axis(*_padded(0.0, max(sum(part) for part in parts), floor=0.0), HEIGHT - BOTTOM, TOP)
    bars = []
    for group, part in zip(bins, parts, strict=True):
        left, right = x_axis(group[0] - 0.5), x_axis(group[-1] + 0.5)
        gap = min(1.0, (right - left) * 0.15)
        width, total = min(right - left - gap, 48.0), 0.0
        for line, value in zip(lines, part, strict=True):
            top, height = y_axis(total + value), y_axis(total) - y_axis(total + value)
            if height > 0:
                x = (left + right - width) / 2
                bars.append(
                    f'<rect class="fill c{line.colour}" x="{x:.1f}" y="{top:.1f}" '
                    f'width="{width:.1f}" height="{height:.2f}"/>'
                )
            total += value
    centres = [sum(group) / len(group) for group in bins]
    hover = [
        [line.name, [[x, part[i]] for x, part in zip(centres, parts, strict=True)], line.colour]
        for i, line in enumerate(lines)
    ]
    body = _grid(x_axis, y_axis, number, whole_x=True) + "".join(bars)
    return _figure(
        title, note, [(line.name, line.colour) for line in lines], body, (x_axis, y_axis), hover, "step", dots=False
    )


def thin(points: Points) -> list[tuple[float, float]]:
    """At most MAX_POINTS points; above that, the mean of each bucket of neighbours."""
    size = math.ceil(len(points) / MAX_POINTS)
    if size <= 1:
        return list(points)
    buckets = [points[i : i + size] for i in range(0, len(points), size)]
    return [(sum(x for x, _ in b) / len(b), sum(y for _, y in b) / len(b)) for b in buckets]


def ticks(low: float, high: float, about: int, whole: bool = False) -> list[float]:
    """Round numbers (1, 2, 2.5 or 5 times a power of ten) from `low` to `high`, `about` that many."""
    rough = (high - low) / max(about, 1)
    power = 10.0 ** math.floor(math.log10(rough))
    step = next(power * factor for factor in (1, 2, 2.5, 5, 10) if power * factor >= rough * 0.999)
    if whole:
        step = max(1.0, float(round(step)))
    first = math.ceil(low / step - 1e-9)
    return [i * step for i in range(first, math.floor(high / step + 1e-9) + 1)]


def number(value: float) -> str:
    """Short and readable: 0.25, 1.5k, 3e-05.

    >>> number(0.25), number(12000), number(3e-5), number(2)
    ('0.25', '12k', '3e-05', '2')
    """
    if value == 0:
        return "0"
    size = abs(value)
    if size >= 1e6:
        return f"{value / 1e6:.3g}M"
    if size >= 1e4:
        return f"{value / 1e3:.3g}k"
    if size < 1e-3:
        return f"{value:.2g}"
    return f"{value:.4g}" if size >= 1 else f"{value:.3g}"


def clock(seconds: float) -> str:
    """Tick text of a wall-clock axis."""
    return "0" if seconds == 0 else duration(seconds).replace(" min 00 s", " min").replace(" h 00 min", " h")


def clock_ticks(low: float, high: float, about: int) -> list[float]:
    """Ticks at round seconds, minutes or hours."""
    units = (1, 2, 5, 10, 15, 30, 60, 120, 300, 600, 900, 1800, 3600, 7200, 10800, 21600, 43200, 86400)
    step = next(
        (unit for unit in units if unit >= (high - low) / about), 86400 * math.ceil((high - low) / 86400 / about)
    )
    return [i * float(step) for i in range(math.ceil(low / step), math.floor(high / step) + 1)]


def _curve(line: Line, x_axis: Axis, y_axis: Axis) -> str:
    pixels = [(x_axis(x), min(max(y_axis(y), TOP), HEIGHT - BOTTOM)) for x, y in line.points]
    path = "M" + "L".join(f"{x:.1f} {y:.1f}" for x, y in pixels)
    shape = f'<path class="line c{line.colour}" d="{path}"/>' if len(pixels) > 1 else ""
    if len(pixels) == 1 or (line.markers and len(pixels) <= 40):
        shape += "".join(f'<circle class="dot c{line.colour}" cx="{x:.1f}" cy="{y:.1f}" r="3.2"/>' for x, y in pixels)
    return shape


def _grid(x_axis: Axis, y_axis: Axis, x_text: Callable[[float], str], whole_x: bool) -> str:
    parts = []
    for value in ticks(y_axis.low, y_axis.high, 4):
        y = y_axis(value)
        parts.append(f'<line class="grid" x1="{LEFT}" x2="{WIDTH - RIGHT}" y1="{y:.1f}" y2="{y:.1f}"/>')
        parts.append(f'<text x="{LEFT - 7}" y="{y + 3.5:.1f}" text-anchor="end">{number(round(value, 10))}</text>')
    marks = clock_ticks(x_axis.low, x_axis.high, 4) if x_text is clock else ticks(x_axis.low, x_axis.high, 6, whole_x)
    for value in marks:
        label = escape(x_text(round(value, 10)))
        parts.append(f'<text x="{x_axis(value):.1f}" y="{HEIGHT - 8}" text-anchor="middle">{label}</text>')
    parts.append(f'<line class="axis" x1="{LEFT}" x2="{WIDTH - RIGHT}" y1="{HEIGHT - BOTTOM}" y2="{HEIGHT - BOTTOM}"/>')
    return "".join(parts)


def _figure(
    title: str,
    note: str,
    names: Sequence[tuple[str, int]],
    body: str,
    axes: tuple[Axis, Axis],
    hover: list,
    x_name: str,
    dots: bool = True,
) -> str:
    keys = "".join(f'<span class="key"><i class="c{colour}"></i>{escape(name)}</span>' for name, colour in names)
    legend = f'<div class="legend">{keys}</div>' if len(names) > 1 else ""
    x_axis, y_axis = axes
    data = {
        "x": [x_axis.low, x_axis.high, x_axis.start, x_axis.end],
        "y": [y_axis.low, y_axis.high, y_axis.start, y_axis.end],
        "lines": [[name, [[_short(x), _short(y)] for x, y in points], colour] for name, points, colour in hover],
        "name": x_name,
        "dots": dots,
    }
    caption = f"<p>{escape(note)}</p>" if note else ""
    return (
        f'<figure class="chart"><figcaption><h3>{escape(title)}</h3>{caption}{legend}</figcaption>'
        f'<svg viewBox="0 0 {WIDTH} {HEIGHT}" role="img" aria-label="{escape(title)}" '
        f'data-chart="{escape(json.dumps(data))}">'
        f"{body}</svg></figure>"
    )


def _axis(low: float, high: float, start: float, end: float) -> Axis:
    if low == high:
        low, high = low - 0.5, high + 0.5
    return Axis(low, high, start, end)


def _padded(low: float, high: float, floor: float | None = None) -> tuple[float, float]:
    if high - low <= 1e-9 * max(abs(low), abs(high)):  # nothing but the rounding of means
        low = high
        pad = abs(low) * 0.1 or 1.0
    else:
        pad = (high - low) * 0.06
    bottom = low - pad
    if floor is not None:
        bottom = floor
    elif low >= 0:
        # A quantity that is never negative starts at zero unless that would flatten the curve.
        bottom = 0.0 if low < high * 0.6 or low == high else max(0.0, bottom)
    return bottom, high + pad


def _short(value: float) -> float:
    return float(f"{value:.5g}")
