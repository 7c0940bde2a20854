from __future__ import annotations

import math
import random
from pathlib import Path

import pytest

from meshctl.view.report_page import record as records
from meshctl.view.report_page.record import MAX_PIECES, RunRecord, Series, read_events
from meshctl.view.report_page.sections import facts_of
from tests.view.report_page.made import MadeRun, done


def test_of_many_events_some_stand_for_the_others(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    made = MadeRun(tmp_path / "run")
    made.steps(1, 400)
    whole = read_events(made.run).spans["train", 0]
    monkeypatch.setattr(records, "MAX_DECODED", 100)
    some = read_events(made.run).spans["train", 0]
    assert len(whole) == 400 and len(some) < 200
    assert sum(span.seconds for span in some) == pytest.approx(sum(span.seconds for span in whole), rel=0.05)
    assert sum(span.stages["update"] for span in some) == pytest.approx(400 * 0.3, rel=0.05)


def test_the_state_of_the_repository_is_part_of_the_environment(tmp_path: Path) -> None:
    seen = done(tmp_path / "run").seen
    assert RunRecord.read(seen, "").git == {}
    seen.run.git.write_text("7bdc96b\nmain\n")
    assert facts_of(RunRecord.read(seen, ""))["git"] == "7bdc96b on main"
    seen.run.git.write_text("7bdc96b\nmain\n M recipe.yaml\n")
    assert RunRecord.read(seen, "").git["git"].endswith("on main, with changes that are not committed")


def filled(values: list[float | None]) -> Series:
    series = Series()
    for step, value in enumerate(values, 1):
        series.add(step, value)
    return series


def test_spikes_survive_in_a_long_run() -> None:
    draw = random.Random(0)
    values: list[float | None] = [math.sin(step / 9000) + draw.random() / 100 for step in range(20_000)]
    values[4_321], values[17_777] = 50.0, -50.0
    series = filled(values)
    points = series.points
    assert (4_322, 50.0) in points and (17_778, -50.0) in points
    assert MAX_PIECES / 2 < len(points) <= 4 * MAX_PIECES
    assert points[0] == (1, values[0]) and points[-1] == (20_000, values[-1])
    assert all(value == values[int(step) - 1] for step, value in points)
    assert [step for step, _ in points] == sorted(step for step, _ in points)


def test_few_values_are_kept_exactly_and_what_is_not_finite_is_a_gap(tmp_path: Path) -> None:
    series = filled([3.0, 1.0, 2.0])
    assert series.points == [(1, 3.0), (2, 1.0), (3, 2.0)]
    series = filled([1.0, None, math.nan, 2.0])
    assert series.points == [(1, 1.0), (1, None), (4, 2.0)] and series.gaps == [2, 3]
    assert filled([None, None]).points == [] and filled([]).points == []
    record = RunRecord.read(done(tmp_path / "run").seen, "")
    assert list(record.series) == ["update.loss", "update.lr", "seconds a step"]
    assert record.series["update.loss"].gaps == [6] and record.series["seconds a step"].points[-1] == (
        12,
        0.5,
    )
