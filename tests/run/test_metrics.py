"""The fold that writes metrics.jsonl: complete steps only, each once, with the same digits for any order of events.
And the file of its rows, read from its end."""

from __future__ import annotations

import json
import math
import random
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from meshctl.run import metrics as run_metrics
from meshctl.run.directory import RunDir
from meshctl.run.events import Event
from meshctl.run.metrics import Fold, PastAttempts, Row, as_json, continue_rows, cut, last_row, read
from meshctl.trackers.jsonl import JsonLines


def step(group: str, rank: int, step: int, time: float = 100.0) -> Event:
    return Event("step", group, rank, step, time=time)


def metric(
    group: str,
    rank: int,
    step: int,
    weight: float = 1.0,
    collect: str = "mean",
    stage: str = "metrics",
    time: float = 100.0,
    **values: float,
) -> Event:
    return Event(
        "metric", group, rank, step, stage, {"values": values, "weight": weight, "collect": collect}, time
    )


def fold(events: list[Event], workers: dict[str, int], since: float = 0.0) -> list[Row]:
    folding = Fold(workers, since=since)
    return [line for event in events for line in folding.add(event)]


def test_a_step_is_complete_when_every_worker_of_every_group_has_ended_it() -> None:
    folding = Fold({"rollout": 2, "train": 1}, since=90.0)
    assert folding.add(metric("train", 0, 1, loss=0.5)) == []
    assert folding.add(step("train", 0, 1, 91.0)) == []
    assert folding.add(step("rollout", 0, 1, 92.0)) == []
    assert folding.add(step("rollout", 1, 1, 91.5)) == [{"step": 1, "time": 2.0, "metrics.loss": 0.5}]


def test_mean_is_by_weight_and_sum_adds_and_first_is_the_lowest_rank() -> None:
    logged = [
        metric("train", 1, 1, 1.0, loss=4.0),
        metric("train", 0, 1, 3.0, loss=0.0),
        metric("train", 1, 1, 1.0, "sum", stage="count", tokens=5),
        metric("train", 0, 1, 1.0, "sum", stage="count", tokens=7),
        metric("train", 1, 1, 1.0, "first", stage="rate", lr=9.0),
        metric("train", 0, 1, 1.0, "first", stage="rate", lr=8.0),
        metric("train", 0, 1, stage="", free=1.0),
    ]
    (line,) = fold([*logged, step("train", 0, 1), step("train", 1, 1)], {"train": 2})
    names = {"count.tokens": 12, "metrics.loss": 1.0, "rate.lr": 8.0, "free": 1.0}
    assert line == {"step": 1, "time": 100.0, **names}


NAN, INF, HUGE = math.nan, math.inf, 1e308


@pytest.mark.parametrize(
    ("collect", "parts", "value", "wrong"),
    [
        *((collect, [(3, NAN), (1, 1.0)], None, [0]) for collect in ("mean", "sum", "first")),
        *((collect, [(3, -INF), (1, 1.0)], None, [0]) for collect in ("mean", "sum", "first")),
        ("mean", [(0, NAN), (2, 1.5)], 1.5, []),
        ("mean", [(0, INF), (2, 1.5)], 1.5, []),
        ("sum", [(0, NAN), (2, 1.5)], None, [0]),
        ("mean", [(0, NAN), (0, NAN)], None, []),
        ("first", [(0, NAN), (0, NAN)], None, []),
        ("first", [(0, 0.1)], 0.1, []),
        ("sum", [(1, HUGE), (1, HUGE)], None, [0, 1]),
        ("mean", [(1, INF), (1, -INF)], None, [0, 1]),
    ],
)
def test_a_number_that_is_not_finite_is_reported_with_its_workers(
    collect: str, parts: list[tuple[float, float]], value: float | None, wrong: list[int]
) -> None:
    """`parts` are the weights and the values of the ranks. A rank without samples does not count in a mean; a sum is
    over all, as its consumers receive it."""
    folding = Fold({"train": len(parts)}, since=0.0)
    events = [metric("train", rank, 1, *part[:1], collect, loss=part[1]) for rank, part in enumerate(parts)]
    ends = [step("train", rank, 1) for rank in range(len(parts))]
    [line] = [line for event in [*reversed(events), *ends] for line in folding.add(event)]
    assert line["metrics.loss"] == value and json.loads(as_json(line)) == line
    found = folding.not_finite()
    assert [one.workers for one in found] == ([tuple(("train", rank) for rank in wrong)] if wrong else [])
    assert all((one.metric, one.step, one.stage) == ("metrics.loss", 1, "metrics") for one in found)
    assert folding.not_finite() == []


def test_metrics_before_the_first_step_are_a_line_of_their_own() -> None:
    lines = fold([metric("train", 0, 0, stage="exam", reward=0.1), step("train", 0, 1)], {"train": 1})
    assert lines == [{"step": 0, "time": 0.0, "exam.reward": 0.1}, {"step": 1, "time": 100.0}]


def test_metrics_after_the_last_step_join_its_line(tmp_path: Path) -> None:
    late = [
        metric("train", 0, 2, stage="exam", reward=1.0),
        step("train", 0, 2, 103.0),
        metric("train", 1, 2, stage="exam", reward=0.0),
    ]
    early = [
        logged
        for n in (1, 2)
        for rank in (0, 1)
        for logged in (metric("train", rank, n, loss=n), step("train", rank, n))
    ]
    tracker = JsonLines(RunDir(tmp_path))
    tracker.on_attempt(0, None)
    for line in fold([*early, *late, step("train", 1, 2, 104.0)], {"train": 2}, since=99.0):
        tracker.on_row(line)
    tracker.on_end(0, "")
    assert read(tmp_path / "metrics.jsonl") == [
        {"step": 1, "time": 1.0, "metrics.loss": 1},
        {"step": 2, "time": 5.0, "exam.reward": 0.5, "metrics.loss": 2},
    ]


def test_the_first_events_of_a_node_with_a_clock_that_is_behind_count() -> None:
    events = [
        metric("train", 0, 1, loss=1.0, time=100.5),
        step("train", 0, 1, 100.5),
        metric("train", 1, 1, loss=3.0, time=40.0),
        step("train", 1, 1, 40.0),
    ]
    assert fold(events, {"train": 2}, since=100.0) == [{"step": 1, "time": 0.5, "metrics.loss": 2.0}]


def test_numbers_of_steps_without_a_line_that_are_not_finite() -> None:
    folding = Fold({"train": 2}, since=0.0)
    for event in (
        metric("train", 0, 1, loss=math.nan),
        metric("train", 0, 2, loss=math.inf, norm=math.nan),
        metric("train", 1, 2, weight=0.0, empty=math.nan),
        metric("train", 1, 2, collect="first", first=math.nan),
        step("train", 0, 2),
        step("train", 1, 1),
    ):
        folding.add(event)
    assert [one.step for one in folding.not_finite()] == [1], "its line has been written"
    found = [(one.metric, one.step, one.workers) for one in folding.pending_not_finite()]
    assert found == [("metrics.loss", 2, (("train", 0),)), ("metrics.norm", 2, (("train", 0),))]


def test_programs_and_the_launcher_do_not_count() -> None:
    others = [Event("metric", "", None, 1, "x", {"values": {"y": 1.0}}), step("program", 0, 1)]
    assert fold([*others, step("train", 0, 1)], {"train": 1}) == [{"step": 1, "time": 100.0}]


@settings(max_examples=60)
@given(st.integers(1, 3), st.integers(1, 3), st.integers(1, 5), st.randoms(use_true_random=False))
def test_any_interleaving_of_the_workers_results_in_the_same_lines(
    first: int, second: int, steps: int, order: random.Random
) -> None:
    workers = {"a": first, "b": second}
    files = [
        [
            logged
            for n in range(1, steps + 1)
            for logged in (metric(group, rank, n, rank + 0.5, x=0.1 * rank * n), step(group, rank, n))
        ]
        for group, count in workers.items()
        for rank in range(count)
    ]
    expected = fold([event for file in files for event in file], workers)
    left = [list(file) for file in files]
    mixed = [order.choice([file for file in left if file]).pop(0) for _ in range(sum(map(len, files)))]
    lines = fold(mixed, workers)
    assert lines == expected
    assert [line["step"] for line in lines] == list(range(1, steps + 1))
    assert all(json.loads(as_json(line)) == line for line in lines)


def ready(group: str, rank: int, step: int) -> Event:
    return Event("ready", group, rank, step, time=100.0)


@given(st.integers(0, 1 << 32), st.integers(1, 4))
def test_restarts_of_a_group_result_in_the_same_lines(seed: int, restarts: int) -> None:
    """The group runs again after any step from the last one with a row to the last one that it has ended."""
    chosen = random.Random(seed)
    last, lines, found = 8, Fold({"judge": 2, "train": 1}, since=0.0), list[Row]()
    ended = {("judge", 0): 0, ("judge", 1): 0, ("train", 0): 0}

    def run_some(*groups: str) -> None:
        for _ in range(chosen.randint(0, 12)):
            worker = chosen.choice([one for one in ended if one[0] in groups])
            if ended[worker] < last:
                ended[worker] += 1
                found.extend(lines.add(metric(*worker, ended[worker], collect="sum", loss=1.0)))
                found.extend(lines.add(step(*worker, ended[worker])))

    for _ in range(restarts):
        run_some("judge", "train")
        through = min(ended["judge", rank] for rank in (0, 1))
        lines.restart("judge")
        run_some("train")
        again = chosen.randint(max(0, lines.last), max(0, lines.last, through))
        for rank in chosen.sample((0, 1), 2):
            ended["judge", rank] = again
            found += lines.add(ready("judge", rank, again))
    while min(ended.values()) < last:
        run_some("judge", "train")
    assert [(row["step"], row["metrics.loss"]) for row in found] == [(n, 3.0) for n in range(1, last + 1)]


@pytest.fixture(params=[7, 40, 1 << 16])
def block_bytes(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(run_metrics, "BLOCK_BYTES", request.param)


@pytest.fixture
def path(tmp_path: Path, block_bytes: None) -> Path:
    return tmp_path / "metrics.jsonl"


def write(path: Path, *steps: int, end: str = "") -> None:
    path.write_text("".join(as_json({"step": step, "time": 0.5 * step}) for step in steps) + end)


@pytest.mark.parametrize("end", ["", '{"step":9,"ti', '{"step":9,"time":4.5}', "\n", "[1]\n"])
def test_the_last_row_is_found_from_the_end(path: Path, end: str) -> None:
    write(path, *range(1, 9), end=end)
    assert last_row(path) == {"step": 8, "time": 4.0}


@pytest.mark.parametrize("after", [-1, 0, 3, 8, 20])
def test_later_rows_are_cut(path: Path, after: int) -> None:
    write(path, *range(1, 9), end='{"step":9,"ti')
    assert cut(path, after) == 0.5 * max(0, min(after, 8))
    assert [row["step"] for row in read(path)] == list(range(1, min(after, 8) + 1))
    assert not path.stat().st_size or path.read_bytes().endswith(b"\n")


def test_a_file_without_rows(path: Path) -> None:
    assert last_row(path) is None and cut(path, 3) == 0.0 and read(path) == []
    path.touch()
    assert last_row(path) is None and cut(path, 3) == 0.0 and read(path) == []


# The rows when a run continues


def attempts(*begun: int | None) -> PastAttempts:
    """Attempts that have begun after these steps; None for the beginning of the run."""
    found = PastAttempts()
    for number, step in enumerate(begun):
        found.add(Event("launched", value={"attempt": number}))
        if step is not None:
            found.add(Event("resumed", step=step))
    return found


def with_rows(folder: Path, *steps: int) -> RunDir:
    run = RunDir(folder)
    rows = [{"step": step, "time": 1.0 * step, "metrics.loss": 0.5 * step} for step in steps]
    run.metrics.write_text("".join(map(as_json, rows)))
    return run


def steps_of(rows: list[Row]) -> list[int]:
    return [row["step"] for row in rows]


def test_lost_rows_move_to_a_file_of_their_own_with_their_attempt(tmp_path: Path) -> None:
    run = with_rows(tmp_path, 0, 1, 2, 3, 4)
    assert continue_rows(run, 2, attempts(None)) == 2.0 and steps_of(read(run.metrics)) == [0, 1, 2]
    with run.metrics.open("a") as file:
        file.write(as_json({"step": 3, "time": 9.0, "metrics.loss": 7.0}))
    assert continue_rows(run, 1, attempts(None, 2)) == 1.0 and steps_of(read(run.metrics)) == [0, 1]
    lost = [json.loads(line) for line in run.lost_metrics.read_text().splitlines()]
    assert [(row["step"], row["attempt"]) for row in lost] == [(3, 0), (4, 0), (2, 0), (3, 1)]
    assert continue_rows(run, None, attempts(None, 2, 1)) == 0.0 and not read(run.metrics)
