from __future__ import annotations

import json
import re
import xml.etree.ElementTree as ElementTree
from html import unescape

import pytest

from sdpo.reporting.charts import HEIGHT, MAX_POINTS, WIDTH, Line, clock, line_chart, number, stacked_bars, thin, ticks


def svg(figure: str) -> ElementTree.Element:
    return ElementTree.fromstring(re.search(r"<svg.*?</svg>", figure, re.S)[0])


def coordinates(figure: str) -> list[tuple[float, float]]:
    path = svg(figure).find("path").get("d")
    return [tuple(float(v) for v in point.split()) for point in re.split("[ML]", path)[1:]]


def test_higher_values_are_drawn_higher_and_later_steps_further_right():
    points = coordinates(line_chart("t", [Line("a", [(0, 0.0), (5, 1.0), (10, 0.5)], 0)], bounds=(0.0, 1.0)))
    xs, ys = zip(*points)
    assert list(xs) == sorted(xs)
    assert ys[1] < ys[2] < ys[0]


@pytest.mark.parametrize("values", [[(1, 0.3)], [(1, 0.0), (2, 0.0)], [(3, -2.0), (4, -2.0)], [(1, 1e-9), (2, 1e9)]])
def test_any_finite_data_stays_inside_the_picture(values):
    figure = line_chart("t", [Line("a", values, 0)])
    for element in svg(figure).iter():
        for name in ("cx", "cy", "x", "y", "x1", "y1", "x2", "y2"):
            if element.get(name):
                assert -1 <= float(element.get(name)) <= max(WIDTH, HEIGHT) + 1


@pytest.mark.parametrize("value", [0.3, 0.1, 1e-9])
def test_the_rounding_of_equal_means_is_not_drawn_as_a_change(value):
    values = [sum([value] * n) / n for n in (1, 3, 6, 7, 10, 160)]
    assert len(set(values)) > 1
    assert len({y for _, y in coordinates(line_chart("t", [Line("a", list(enumerate(values)), 0)]))}) == 1


def test_a_single_point_is_a_dot():
    assert svg(line_chart("t", [Line("a", [(1, 0.3)], 0)])).find("circle") is not None


def test_lines_without_points_are_left_out_and_an_empty_chart_is_nothing():
    assert line_chart("t", [Line("a", [], 0)]) == ""
    assert "grader" not in line_chart("t", [Line("a", [(1, 1.0)], 0), Line("grader", [], 1)])
    assert stacked_bars("t", [Line("a", [(1, 0.0)], 0)]) == ""


def test_names_are_escaped_everywhere():
    figure = line_chart("<b>&", [Line('"><script>', [(1, 1.0), (2, 2.0)], 0), Line("b", [(1, 1.0)], 1)], note="<i>")
    assert "<script>" not in figure
    assert "<b>" not in figure
    assert "<i>" not in figure
    data = json.loads(unescape(re.search(r'data-chart="([^"]*)"', figure)[1]))
    assert data["lines"][0][0] == '"><script>'


def test_long_curves_are_averaged_down_to_what_a_screen_shows():
    points = thin([(i, float(i % 2)) for i in range(10 * MAX_POINTS)])
    assert len(points) == MAX_POINTS
    assert all(y == 0.5 for _, y in points)


def test_stacked_bars_reach_the_sum_of_their_parts():
    figure = stacked_bars("t", [Line("a", [(1, 1.0), (2, 1.0)], 0), Line("b", [(1, 2.0), (2, 0.0)], 1)])
    heights = [float(r.get("height")) for r in svg(figure).iter("rect")]
    assert heights[1] == pytest.approx(2 * heights[0], rel=0.01)
    assert len(heights) == 3


def test_many_steps_share_a_bar_that_shows_their_mean():
    figure = stacked_bars("t", [Line("a", [(i, 2.0) for i in range(1, 1001)], 0)])
    assert len(list(svg(figure).iter("rect"))) <= 70
    data = json.loads(unescape(re.search(r'data-chart="([^"]*)"', figure)[1]))
    assert {y for _, y in data["lines"][0][1]} == {2.0}


def test_ticks_are_round_numbers_inside_the_range():
    assert ticks(0.0, 1.0, 4) == [0.0, 0.25, 0.5, 0.75, 1.0]
    assert ticks(1, 3, 6, whole=True) == [1, 2, 3]
    assert [number(value) for value in ticks(0, 40_000, 4)] == ["0", "10k", "20k", "30k", "40k"]


def test_the_axis_of_a_wall_clock_has_round_times():
    figure = line_chart("t", [Line("a", [(0, 0.0), (7200, 1.0)], 0)], x_name="clock", x_text=clock)
    texts = [text.text for text in svg(figure).iter("text")]
    assert "30 min" in texts
    assert "1 h" in texts
