"""Stopped agents and node processes are reported, and end a run in which no worker advances."""

from __future__ import annotations

import pytest

from meshctl.engines.supervise.stopped import StoppedWatch


def until(watch: StoppedWatch, begin: float, end: float, pids: dict[int, int], advanced: float) -> list[str]:
    found, now = list[str](), begin
    while now < end:
        found += watch.poll(now, pids, advanced)
        now += 0.5
    return found


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
    watch = StoppedWatch(100.0, 10.0, lambda pid: pid == 1)
    [line] = until(watch, 0.0, 30.0, pids, 0.0)
    assert f"{name} is stopped (SIGSTOP); `kill -CONT 1`" in line


def test_the_run_ends_when_no_worker_advances() -> None:
    watch = StoppedWatch(100.0, 10.0, lambda pid: True)
    for now in range(0, 300, 10):
        until(watch, now, now + 10, {0: 1}, advanced=now)
    assert watch.take_expired() == "", "the workers go on"
    until(watch, 300, 395, {0: 1}, advanced=290)
    assert watch.take_expired() == (
        "the fork server is stopped (SIGSTOP), and no worker has advanced for 100 s (`run.patience`)"
    )


def test_without_patience_nothing_ends_the_run() -> None:
    watch = StoppedWatch(0.0, 10.0, lambda pid: True)
    until(watch, 0.0, 3000.0, {0: 1}, 0.0)
    assert watch.take_expired() == ""
