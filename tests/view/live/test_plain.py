from __future__ import annotations

import io
from dataclasses import replace

from meshctl.run.directory import RunDir
from meshctl.run.events import Event
from meshctl.view.live.plain import PlainOutput
from tests.view.conftest import Pinned
from tests.view.recorded import Recorded, make_plan


def test_a_run_at_most_a_line_a_second_and_the_last_step_always(
    recorded: Recorded, run: RunDir, pinned: Pinned
) -> None:
    stream = io.StringIO()
    view = PlainOutput(recorded.plan, run, stream)
    view.on_attempt(0, None)
    recorded.feed(view)
    view.on_end(0, "")
    view.on_end(0, "")
    pinned("lines.txt", stream.getvalue())


def test_slow_steps_have_a_line_each(run: RunDir) -> None:
    stream = io.StringIO()
    view = PlainOutput(make_plan(steps=0), run, stream)
    for step in (1, 2, 3):
        view.on_row({"step": step, "time": 10.0 * step, "metrics.loss": None})
        assert stream.getvalue().count("step") == step
    assert stream.getvalue().splitlines()[-1] == "step 3  30.0 s  metrics.loss not finite"


def test_a_line_that_comes_again_with_more_is_printed_with_all(run: RunDir) -> None:
    stream = io.StringIO()
    view = PlainOutput(make_plan(), run, stream)
    view.on_row({"step": 1, "time": 1.0, "metrics.loss": 0.5})
    view.on_row({"step": 1, "time": 1.1, "metrics.loss": 0.5, "exam.reward": 0.9})
    view.on_end(0, "")
    assert stream.getvalue().splitlines()[-1] == "step 1/12  1.1 s  exam.reward 0.9  metrics.loss 0.5"


def test_the_output_of_the_launcher(run: RunDir) -> None:
    stream = io.StringIO()
    view = PlainOutput(replace(make_plan(), name="x"), run, stream)
    view.on_attempt(1, 40)
    view.on_event(Event("stopping", value={"reason": "interrupted"}))
    view.on_event(Event("checkpoint", step=41))
    view.on_event(Event("warning", value={"text": "`a.x` is NaN"}))
    assert stream.getvalue().splitlines() == [
        f"x: 2 groups, 4 workers, in {run.path}",
        "continues after step 40",
        "stopping: interrupted",
        "checkpoint of step 41",
        "warning: `a.x` is NaN",
    ]


def test_a_restart_is_one_line(run: RunDir) -> None:
    stream = io.StringIO()
    view = PlainOutput(make_plan(), run, stream)
    view.on_attempt(0, None)
    before = len(stream.getvalue())
    view.on_attempt(1, 40)
    value = {"attempt": 1, "cause": "train:1 failed: killed by SIGKILL", "left": 2}
    view.on_event(Event("restarted", step=40, value=value))
    line = "restarted after step 40: train:1 failed: killed by SIGKILL (2 restarts left)\n"
    assert stream.getvalue()[before:] == line


def test_slow_phases_before_the_first_step(run: RunDir) -> None:
    stream = io.StringIO()
    view = PlainOutput(make_plan(), run, stream)
    for name, phase, time in (
        ("phase", "connection", 1.0),
        ("phase", "setup of `a`", 1.02),
        ("ready", "", 13.5),
    ):
        for rank in (0, 1):
            view.on_event(Event(name, "train", rank, value={"phase": phase} if phase else {}, time=time))
    assert stream.getvalue() == "train: 2 workers running after setup of `a` 12.5 s\n"
