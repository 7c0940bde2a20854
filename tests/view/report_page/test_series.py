from __future__ import annotations

import math
import random

from meshctl.view.report_page.series import MAX_PIECES, Series


def filled(values: list[float | None]) -> Series:
    series = Series()
    for step, value in enumerate(values, 1):
        series.add(step, value)
    return series


def test_few_values_are_kept_exactly() -> None:
    series = filled([3.0, 1.0, 2.0])
    assert series.points == [(1, 3.0), (2, 1.0), (3, 2.0)] and not series.is_thinned
    assert (series.first, series.last, series.low, series.high) == ((1, 3.0), (3, 2.0), (2, 1.0), (1, 3.0))


def test_spikes_survive_in_a_long_run() -> None:
    draw = random.Random(0)
    values: list[float | None] = [math.sin(step / 9000) + draw.random() / 100 for step in range(100_000)]
    values[54_321], values[77_777] = 50.0, -50.0
    series = filled(values)
    points = series.points
    assert (54_322, 50.0) in points and (77_778, -50.0) in points
    assert MAX_PIECES / 2 < len(points) <= 4 * MAX_PIECES and series.is_thinned
    assert points[0] == (1, values[0]) and points[-1] == (100_000, values[-1])
    assert all(value == values[int(step) - 1] for step, value in points)
    assert [step for step, _ in points] == sorted(step for step, _ in points)


def test_what_is_not_finite_is_a_gap() -> None:
    series = filled([1.0, None, math.nan, 2.0])
    assert series.points == [(1, 1.0), (1, None), (4, 2.0)] and series.gaps == [2, 3]
    assert filled([None, None]).points == [] and filled([]).points == []
