"""A wait counts for the route and the reason that its tag and the worker's group tell."""

from __future__ import annotations

import pytest

from meshctl.run.events import StepReport
from meshctl.runtime import progress
from meshctl.runtime.progress import WaitTimes
from meshctl.runtime.routes.end import FORWARD, SHARED_WRITE, TABLES, TAGS_PER_ROUTE, VALUES
from tests.runtime.plans import call, plan, sync

PLAN = plan(
    {"rollout": 2, "train": 2},
    {"sampler": ("rollout", {}), "actor": ("train", {})},
    [
        call("rollouts", "sampler.sample"),
        call("logprobs", "actor.score", "rollouts"),
        call("metrics", "actor.update", "logprobs"),
        sync("publish", "actor", "sampler"),
    ],
)
INTO, WITHIN, WEIGHTS = (number * TAGS_PER_ROUTE for number in range(3))
CLOSING = len(PLAN.routes) * TAGS_PER_ROUTE


@pytest.mark.parametrize(
    ("group", "tag", "kind", "route"),
    [
        ("rollout", INTO + VALUES, "full", "rollouts -> logprobs"),
        ("train", INTO + VALUES, "awaited", "rollouts -> logprobs"),
        ("train", INTO + FORWARD, "awaited", "rollouts -> logprobs"),
        ("rollout", INTO + TABLES, "peers", "rollouts -> logprobs"),
        ("rollout", INTO + SHARED_WRITE, "peers", "rollouts -> logprobs"),
        ("train", WITHIN + VALUES, "peers", "logprobs -> metrics"),
        ("train", WEIGHTS + VALUES, "full", "publish"),
        ("rollout", WEIGHTS + VALUES, "awaited", "publish"),
        ("train", CLOSING + INTO + VALUES, "awaited", "rollouts -> logprobs"),
        ("train", 3 * CLOSING, "", ""),
        ("train", -1, "", ""),
    ],
)
def test_a_wait_belongs_to_a_route(
    group: str, tag: int, kind: str, route: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    now = iter([1.0, 1.5, 10.0, 12.0])
    monkeypatch.setattr(progress, "perf_counter", lambda: next(now))
    waits, report, empty = WaitTimes(PLAN, group), StepReport(1), StepReport(2)
    for _ in range(2):
        waits.begin(tag)
        waits.end()
    waits.move_to(report)
    waits.move_to(empty)
    found = {"awaited": report.awaited, "full": report.full, "peers": report.peers}
    assert found == {"awaited": {}, "full": {}, "peers": {}, **({kind: {route: 2.5}} if kind else {})}
    assert not (empty.awaited or empty.full or empty.peers)
