"""Stopped agents and node processes are reported, and end a run in which no worker advances."""

from __future__ import annotations

from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from meshctl.engines.node.stacks import ProcessState
from meshctl.engines.supervise.stalls import ProgressWatch, Stall, StoppedWatch
from meshctl.engines.supervise.waits import Known, Wait
from meshctl.engines.supervise.watches import Fault
from meshctl.run.progress import Activity, Record
from tests.engines.supervise.test_stalls import PLAN


def until(watch: StoppedWatch, begin: float, end: float, pids: dict[int, int], advanced: float) -> list[str]:
    """Returns the reports, and last the reason of the end of the run if there is one."""
    found, now, expired = list[str](), begin, ""
    while now < end:
        found += watch.poll(now, pids)
        expired = expired or watch.expired(now, advanced)
        now += 0.5
    return [*found, *([expired] if expired else [])]


def test_a_stopped_agent_is_reported_once_and_again_when_it_stops_again() -> None:
    watch = StoppedWatch(100.0, 10.0, lambda pid: False)
    watch.note(0, [("the agent of train", 7)])
    assert until(watch, 0.0, 8.0, {0: 1}, 0.0) == []
    [line] = until(watch, 8.0, 30.0, {0: 1}, 0.0)
    assert line.endswith("the agent of train is stopped (SIGSTOP); `kill -CONT 7` continues it")
    watch.note(0, [])
    until(watch, 30.0, 32.0, {0: 1}, 0.0)
    watch.note(0, [("the agent of train", 7)])
    assert len(until(watch, 32.0, 60.0, {0: 1}, 0.0)) == 1


@pytest.mark.parametrize(
    ("pids", "name"), [({0: 1}, "the fork server"), ({0: 1, 1: 2}, "the node process of node 0")]
)
def test_a_node_process_on_this_machine_is_looked_at(pids: dict[int, int], name: str) -> None:
    [line] = until(StoppedWatch(0.0, 10.0, lambda pid: pid == 1), 0.0, 3000.0, pids, 0.0)
    assert f"{name} is stopped (SIGSTOP); `kill -CONT 1`" in line, "without patience nothing ends the run"


def test_the_run_ends_when_no_worker_advances() -> None:
    watch = StoppedWatch(100.0, 10.0, lambda pid: True)
    for now in range(0, 300, 10):
        assert not any("patience" in one for one in until(watch, now, now + 10, {0: 1}, advanced=now))
    assert until(watch, 300, 395, {0: 1}, advanced=290)[-1] == (
        "the fork server is stopped (SIGSTOP), and no worker has advanced for 100 s (`run.patience`)"
    )


@pytest.mark.parametrize(
    ("state", "stopped", "named"),
    [
        ("", True, []),  # its agent, which is stopped, has not reported that it has ended
        ("Z", True, []),
        ("S", True, [("train", 0)]),
        ("", False, [("train", 0)]),
    ],
)
def test_a_worker_that_has_ended_is_no_cause_while_its_agent_is_stopped(
    state: str, stopped: bool, named: list[object], tmp_path: Path
) -> None:
    run = SimpleNamespace(stalls=tmp_path / "stalls.log")
    attempt: Any = SimpleNamespace(plan=PLAN, run=run, start=SimpleNamespace(debug=""))
    watch = ProgressWatch(attempt, lambda node, workers: None, dict, lambda: False)
    processes = [("the agent of train", 7)] if stopped else []
    watch.receive({"type": "stopped", "node": 0, "processes": processes}, 0.0)
    list(watch.poll(1.0))
    worker = ("train", 0)
    known = Known({worker: Record(activity=Activity.SAVING, step=6)}, {}, frozenset(), frozenset())
    stall = Stall((worker,), 100.0, known, {worker: Wait()}, states={worker: ProcessState(state=state)})
    watch._stalls._expired.append(stall)
    causes = [found.cause for found in watch.poll(2.0) if isinstance(found, Fault)]
    assert [(one.group, one.rank) for one in causes] == named
