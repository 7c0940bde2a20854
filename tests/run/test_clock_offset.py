"""The offset between two clocks, measured over connections with any delays."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from meshctl.run.clock import DRIFT, TICK, Offset, best_at

seconds = st.floats(0, 5)
starts = st.floats(0, 1e7)


@given(starts, st.floats(-1e7, 1e7), seconds, seconds)
def test_the_error_bounds_the_measurement_whatever_the_delays(
    sent: float, ahead: float, out: float, back: float
) -> None:
    found = Offset.measured(sent, sent + out + ahead, sent + out + back)
    assert abs(found.value - ahead) <= found.error + 1e-6
    assert abs(found.error - (out + back) / 2) < 1e-6
    assert found.corrected == (0.0 if abs(found.value) <= found.error + TICK else found.value)


@given(st.lists(st.tuples(st.floats(0, 3600), seconds, seconds), min_size=1, max_size=20), st.floats(0, 3600))
def test_of_many_readings_of_a_drifting_clock_the_best_one_is_within_its_error(
    readings: list[tuple[float, float, float]], at: float
) -> None:
    def remote(time: float) -> float:
        return time * (1 + DRIFT / 2) + 1234.5

    found = [Offset.measured(sent, remote(sent + out), sent + out + back) for sent, out, back in readings]
    best = best_at(found, at)
    assert best is not None
    assert all(best.error_at(at) <= one.error_at(at) for one in found)
    assert abs(best.value - (remote(at) - at)) <= best.error_at(at) + 1e-6
    assert best_at([], at) is None
