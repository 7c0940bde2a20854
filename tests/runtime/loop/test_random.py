"""Random pipelines of threads end, whatever their routes."""

from __future__ import annotations

from typing import Any

from hypothesis import HealthCheck, given, settings

from tests.runtime import in_process
from tests.runtime.pipelines import Echo, Source, made, pipelines
from tests.runtime.plans import call, plan


@settings(max_examples=60, suppress_health_check=[HealthCheck.too_slow])
@given(pipelines())
def test_random_pipelines_never_deadlock_and_always_end(job: Any) -> None:
    outcome = in_process.run(job, lambda name, rank: made(name))
    assert not outcome.faults
    assert set(outcome.last.values()) == {4}


def test_groups_that_send_to_each_other_in_opposite_orders() -> None:
    job = plan(
        {"a": 2, "b": 2}, {"left": ("a", {}), "right": ("b", {}), "a": ("a", {}), "b": ("b", {})},
        [call("l", "left.next", samples=4), call("r", "right.next", samples=4), call("rl", "b.take", "l"), call("lr", "a.take", "r"),
         call("back", "a.take", "rl"), call("forth", "b.take", "lr")], steps=20,
    )  # fmt: skip
    outcome = in_process.run(job, lambda name, rank: Source() if name in ("left", "right") else Echo([]))
    assert not outcome.faults
