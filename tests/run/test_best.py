"""The best checkpoints, whose value is the last one at or before their step, and the end of a run whose metric does
not improve."""

from __future__ import annotations

import json
from pathlib import Path

from hypothesis import given
from hypothesis import strategies as st

from meshctl.run.best import BestCheckpoints, EarlyStopping, Mode, ScoredCheckpoint
from meshctl.run.directory import RunDir

Rows = dict[int, float | None]


def test_a_row_that_arrives_again_replaces_itself() -> None:
    best = BestCheckpoints("eval.loss", 1, "min")
    best.add({"step": 3, "eval.loss": 1.0})
    best.add({"step": 3, "eval.loss": 5.0})
    assert best.among([3]) == [ScoredCheckpoint(3, 5.0, 3)]


@given(
    st.dictionaries(st.integers(1, 30), st.none() | st.integers(-3, 3).map(float), max_size=12),
    st.sets(st.integers(1, 30), max_size=10),
    st.integers(1, 4),
    st.sampled_from(["min", "max"]),
)
def test_the_best_are_those_of_the_definition(rows: Rows, steps: set[int], keep: int, mode: Mode) -> None:
    ordered = dict(sorted(rows.items()))
    last = {step: max((one for one in ordered if one <= step), default=None) for step in steps}
    valued = [
        (step, ordered[at], at) for step, at in last.items() if at is not None and ordered[at] is not None
    ]
    expected = sorted(valued, key=lambda one: (one[1] if mode == "min" else -(one[1] or 0.0), one[0]))[:keep]
    best = BestCheckpoints("m.x", keep, mode)
    for step, value in ordered.items():
        best.add({"step": step, "m.x": value})
    assert [(one.step, one.value, one.value_step) for one in best.among(sorted(steps))] == expected


# On disk


def saved(folder: Path, *steps: int) -> RunDir:
    run = RunDir(folder)
    for step in steps:
        run.checkpoint(step).mkdir(parents=True)
        run.publish_checkpoint(step)
    return run


def kept(run: RunDir) -> list[str]:
    return sorted(path.name for path in run.checkpoints.iterdir() if not path.name.startswith("."))


def test_exempt_checkpoints_are_kept_with_the_newest(tmp_path: Path) -> None:
    run = saved(tmp_path, 1, 2, 3, 4, 9)
    run.publish_checkpoint(4)
    run.prune_checkpoints(4, keep=2, exempt={1})
    assert kept(run) == ["latest", "step-1", "step-3", "step-4", "step-9"]
    assert run.saved() == 4


def test_the_best_are_written_and_read(tmp_path: Path) -> None:
    run = saved(tmp_path, 10, 20)
    assert run.read_best() == ("", [])
    scored = [ScoredCheckpoint(20, 0.5, 15), ScoredCheckpoint(10, 0.75, 10)]
    run.write_best("eval.loss", "min", scored)
    assert run.read_best() == ("eval.loss", scored)
    assert json.loads(run.best.read_text()) == {
        "on": "eval.loss",
        "mode": "min",
        "checkpoints": [
            {"checkpoint": "step-20", "step": 20, "value": 0.5, "value_step": 15},
            {"checkpoint": "step-10", "step": 10, "value": 0.75, "value_step": 10},
        ],
    }


def test_a_listed_checkpoint_that_is_not_there_is_left_out(tmp_path: Path) -> None:
    run = saved(tmp_path, 10)
    run.write_best("eval.loss", "min", [ScoredCheckpoint(20, 0.5, 20), ScoredCheckpoint(10, 0.75, 10)])
    assert [one.step for one in run.read_best()[1]] == [10]


Values = list[float | None]


def decided(values: Values, patience: int, mode: Mode = "min", every: int = 10) -> tuple[int | None, str]:
    """The step of the row after which the run ends, and why. Between values there are rows without one."""
    stopping = EarlyStopping("eval.loss", mode, patience)
    for number, value in enumerate(values, 1):
        stopping.add({"step": number * every - 1, "train.loss": 0.0})
        stopping.add({"step": number * every, "eval.loss": value})
        if stopping.reason:
            return number * every, stopping.reason
    return None, ""


def test_patience_counts_values_and_not_steps() -> None:
    reason = "`eval.loss` has not improved in 3 values, up to step 50: its best value is 1, in step 20"
    assert decided([3.0, 1.0, 2.0, 1.5, 1.0], 3) == (50, reason)


def test_a_value_that_is_not_finite_is_no_improvement() -> None:
    assert decided([2.0, None, None], 2)[0] == 30
    assert decided([None, None], 2) == (20, "`eval.loss` had no finite value in 2 values, up to step 20")


@given(
    st.lists(st.none() | st.integers(-4, 4).map(float), max_size=20),
    st.integers(1, 4),
    st.sampled_from(["min", "max"]),
    st.integers(0, 20),
)
def test_a_continued_run_decides_as_one_that_was_not_interrupted(
    values: Values, patience: int, mode: Mode, cut: int
) -> None:
    """The rows after a checkpoint are computed again; those before it are read from the file."""
    rows = [{"step": step, "m.x": value} for step, value in enumerate(values, 1)]
    again = EarlyStopping("m.x", mode, patience)
    for row in [*rows[:cut], *rows[max(0, cut - 2) :]]:
        again.add(row)
    reason = decided(values, patience, mode, every=1)[1].replace("eval.loss", "m.x")
    assert again.reason == reason


@given(st.lists(st.none() | st.integers(-4, 4).map(float), max_size=20), st.integers(1, 4))
def test_it_ends_at_the_first_values_in_a_row_that_are_not_better_than_all_before(
    values: Values, patience: int
) -> None:
    def is_record(index: int) -> bool:
        value = values[index]
        return value is not None and all(before is None or value < before for before in values[:index])

    ends = (
        index + 1
        for index in range(patience - 1, len(values))
        if not any(is_record(one) for one in range(index - patience + 1, index + 1))
    )
    assert decided(values, patience, every=1)[0] == next(ends, None)
