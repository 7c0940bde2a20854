"""The end of a run without a fault."""

from __future__ import annotations

import signal
from pathlib import Path

from processes import Launch, alive, family, plan_of, rows_of, wait

from tests.log_text import output_of


def test_a_run_from_start_to_finish(launch: Launch, tmp_path: Path) -> None:
    run = launch(plan_of(tmp_path, ("one", 2), ("two", 1)))
    assert run.end() == 0, run.output()
    assert {event.value["code"] for event in run.events("exited")} == {0}
    assert [row["step"] for row in rows_of(run.run)] == [1, 2, 3]
    assert output_of(run.run.log("one", 1)) == "one:1 is ready\n"
    assert {event.value["threads"] for event in run.events("ready")} == {1}
    assert [event.step for event in run.events("checkpoint")] == [1, 2, 3]
    assert run.run.latest.readlink() == Path("step-3")
    assert [event.value for event in run.events("over")] == [{"code": 0, "reason": ""}]


def test_a_first_signal_ends_in_order(launch: Launch, tmp_path: Path) -> None:
    run = launch(plan_of(tmp_path, ("one", 2), ("two", 2)), "forever").ready(4)
    run.send(signal.SIGHUP)
    assert run.end() == 129, run.output()
    assert len({event.step for event in run.events("done")}) == 1 and len(run.events("done")) == 4
    assert {event.value["code"] for event in run.events("exited")} == {0}


def test_before_anybody_is_ready_one_signal_is_enough(launch: Launch, tmp_path: Path) -> None:
    run = launch(plan_of(tmp_path, ("one", 1), grace=1000), "one:0 slow")
    wait(lambda: len(run.events("started")) == 1, "a worker")
    run.send(signal.SIGINT)
    assert run.end() == 130


def test_a_checkpoint_is_saved_on_request_and_the_run_goes_on(launch: Launch, tmp_path: Path) -> None:
    run = launch(plan_of(tmp_path, ("one", 2), ("two", 1)), "forever rarely").ready(3)
    for count in (1, 2):
        run.send(signal.SIGUSR1)
        wait(lambda count=count: len(run.events("checkpoint")) == count, "a checkpoint")
    last = max(event.step for event in run.events("step"))
    wait(lambda: max(event.step for event in run.events("step")) > last, "a further step")
    run.send(signal.SIGUSR2)
    assert run.end() == 143, run.output()
    assert len({event.step for event in run.events("saved")}) == 2 and len(run.events("saved")) == 6


def test_the_end_of_the_time_limit_is_an_end_in_order(launch: Launch, tmp_path: Path) -> None:
    """A request for a checkpoint has no effect on a run that saves none."""
    run = launch(plan_of(tmp_path, ("one", 2), checkpoint=None, time_limit=5400.0), "forever rarely").ready(2)
    run.send(signal.SIGUSR1)
    wait(lambda: len(run.events("warning")) == 1, "a warning")
    (tmp_path / "over").touch()
    assert run.end() == 0, run.output()
    assert len({event.step for event in run.events("done")}) == 1 and len(run.events("done")) == 2
    assert not run.events("saved")
    reason = "`run.time_limit` of 90m is over"
    assert [event.value["reason"] for event in run.events("stopping")] == [reason]
    assert [event.value for event in run.events("over")] == [{"code": 0, "reason": reason}]


def test_an_end_that_is_forced_after_the_time_limit_is_a_failure(launch: Launch, tmp_path: Path) -> None:
    """A worker never ends its second step, and ignores SIGTERM."""
    plan = plan_of(tmp_path, ("one", 2), grace=0.5, time_limit=3600.0)
    run = launch(plan, "forever stubborn hang one:0").ready(2)
    pids = family(run.pid)
    run.wait_for_step(1)
    (tmp_path / "over").touch()
    assert run.end() == 5 and not any(map(alive, pids))
    error = "error: the run did not end within 0.5s (`run.grace`) after its `time_limit`\n"
    assert run.output() == error


def test_a_time_limit_that_is_over_before_the_first_step_is_a_failure(launch: Launch, tmp_path: Path) -> None:
    run = launch(plan_of(tmp_path, ("one", 1), grace=1000, time_limit=1.0), "one:0 slow")
    wait(lambda: len(run.events("started")) == 1, "a worker")
    (tmp_path / "over").touch()
    assert run.end() == 5
    assert run.output() == "error: `run.time_limit` of 1s was over before step 1\n"


def test_a_run_that_goes_on_is_held_and_then_continues(launch: Launch, tmp_path: Path) -> None:
    plan = plan_of(tmp_path, ("one", 1))
    run = launch(plan, "forever").ready(1)
    held = launch(plan, again=True)
    assert held.end() == 4
    assert "is still running" in held.output()
    run.send(signal.SIGTERM)
    assert run.end() == 143
    saved = run.run.latest.resolve()
    again = launch(plan, again=True)
    assert again.end() == 0, again.output()
    assert again.run == run.run
    assert [event.value["path"] for event in again.events("resumed")] == [str(saved)]
    assert again.run.read_start().attempt == 1
