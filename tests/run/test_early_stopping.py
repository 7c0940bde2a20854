"""A run ends when a metric has not improved for a number of values."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from meshctl.run.best import EarlyStopping, Mode

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
