"""The output of workers on the screen: which lines are shown, on which kind of terminal, and that errors do
not affect the run."""

from __future__ import annotations

import io
from dataclasses import replace

import pytest

from meshctl.plan.model import Plan, Program
from meshctl.run.directory import RunDir, Start
from meshctl.run.events import Event
from meshctl.view.live import for_terminal
from meshctl.view.live.dashboard import Dashboard, Picture, newest_logs
from meshctl.view.live.output import MAX_FIRST_LINES, MAX_LAST_LINES, MAX_WARNINGS, Output
from meshctl.view.live.plain import PlainOutput
from meshctl.view.live.run_state import RunState
from tests.view.conftest import Pinned
from tests.view.live.test_dashboard import Terminal, drawn
from tests.view.live.test_logs import log
from tests.view.recorded import Recorded, make_plan


def programs() -> Plan:
    """The plan of two groups that run a program each."""
    plan = make_plan()
    groups = tuple(replace(group, program=Program(("train.py",))) for group in plan.groups)
    return replace(plan, groups=groups, components=(), stages=(), routes=())


def shown(output: Output) -> list[str]:
    return [f"{worker}: {text}" for worker, text in output.new()]


def ended(output: Output, *failed: tuple[str, int]) -> list[str]:
    return [f"{worker}: {text}" for worker, text in output.last(failed)]


def test_the_first_lines_of_rank_0(run: RunDir) -> None:
    output = Output(make_plan(), run)
    log(run, "train", 0, "loading shard 0\nloading shard 1\n")
    log(run, "train", 1, "I am another one\n")
    assert shown(output) == ["train:0: loading shard 0", "train:0: loading shard 1"]
    log(run, "train", 0, "late\n")
    assert shown(output) == ["train:0: late"]
    output.end_first_lines()
    log(run, "train", 0, "step 1\n")
    assert shown(output) == [] and ended(output) == ["train:0: step 1"]
    assert ended(output) == []


def test_so_many_first_lines_then_the_file_is_named(run: RunDir) -> None:
    output = Output(make_plan(), run)
    path = log(run, "train", 0, "again\n" * 500)
    assert shown(output) == ["train:0: again"] * MAX_FIRST_LINES + [f"train:0: more in {path}"]
    assert ended(output) == ["train:0: again"] * MAX_LAST_LINES


WARNINGS = [
    "/x/y.py:3: UserWarning: too small",
    "WARNING:root:too small",
    "[rank3]:[W1122 12:00:00.123 socket.cpp:1] no address",
    "W1122 12:00:00.1 torch/run.py:1] too small",
    "2026-01-02 12:00:00,123 - model - WARNING - too small",
    "ERROR model: no file",
    "warning: too small",
]


@pytest.mark.parametrize("line", WARNINGS)
def test_a_warning_is_shown_at_any_time_of_any_rank_once(run: RunDir, line: str) -> None:
    output = Output(make_plan(), run)
    output.end_first_lines()
    log(run, "train", 1, f"nothing\n{line}\n{line}\nno warning is meant\n")
    log(run, "train", 0, f"{line}\n")
    assert shown(output) in ([f"train:0: {line}"], [f"train:1: {line}"])
    log(run, "rollout", 0, f"{line}\n")
    assert shown(output) == [f"rollout:0: {line}"]


def test_what_is_no_warning_and_how_many_kinds_are_shown(run: RunDir) -> None:
    output = Output(make_plan(), run)
    output.end_first_lines()
    log(run, "train", 0, "ValueError: boom\n0 errors\nforewarning\nWARNINGS are off: 3\n")
    assert shown(output) == []
    log(run, "train", 1, "".join(f"warning: {'x' * number}\n" for number in range(2 * MAX_WARNINGS)))
    assert len(shown(output)) == MAX_WARNINGS


def test_programs_have_first_lines_at_any_time_and_last_lines_after_the_last_one_shown(run: RunDir) -> None:
    output = Output(programs(), run)
    output.end_first_lines()  # other groups run steps
    log(run, "train", 0, "begins\n")
    assert shown(output) == ["train:0: begins"]
    log(run, "train", 0, "".join(f"line {number}\n" for number in range(90)) + "warning: odd\nacc 0.9\n")
    shown(output)
    assert ended(output) == ["train:0: acc 0.9"]


def test_tracebacks_of_components_are_left_to_the_launcher(run: RunDir) -> None:
    text = "loading\nTraceback (most recent call last):\n  File x\nValueError: y\n"
    output = Output(make_plan(), run)
    log(run, "train", 0, text)
    assert shown(output) == ["train:0: loading"] and ended(output, ("train", 0)) == []
    output = Output(programs(), run)
    assert len(shown(output)) == 4


def test_a_rank_that_is_followed_is_shown_completely(run: RunDir) -> None:
    output = Output(make_plan(), run, ["train"])
    output.end_first_lines()
    lines = [
        *(f"{'x' * 300} {number}" for number in range(15_000)),
        "Traceback (most recent call last):",
        "again",
        "again",
    ]
    log(run, "train", 1, "\n".join([*lines, ""]))
    log(run, "rollout", 1, "not followed\n")
    assert shown(output) == [f"train:1: {line}" for line in lines] and ended(output, ("train", 1)) == []


def test_of_a_rank_that_prints_too_fast_lines_are_left_out(run: RunDir) -> None:
    output = Output(make_plan(), run)
    output.end_first_lines()
    for _ in range(2):
        log(run, "train", 1, f"{'x' * 999}\n" * 3000)
        lines = shown(output)
    assert lines == [] and output.newest["train"] == (1, "x" * 200)


def test_the_newest_line_of_a_group_is_that_of_any_rank(run: RunDir) -> None:
    output = Output(make_plan(), run)
    log(run, "rollout", 1, "slow\n")
    log(run, "train", 0, "loading\n")
    shown(output)
    assert output.newest == {"rollout": (1, "slow"), "train": (0, "loading")}
    log(run, "rollout", 0, "ready\n")
    shown(output)
    assert output.newest["rollout"] == (0, "ready")


@pytest.mark.parametrize(("attempt", "shown"), [(0, ["old", "new"]), (1, ["new"])])
def test_a_run_that_continues_shows_new_lines_only(run: RunDir, attempt: int, shown: list[str]) -> None:
    run.write_start(Start((), attempt))
    log(run, "train", 0, "old\n")
    stream = io.StringIO()
    view = for_terminal(make_plan(), run, stream, {})
    log(run, "train", 0, "new\n")
    view.on_end(0, "")
    assert stream.getvalue().splitlines() == [f"train:0: {line}" for line in shown]


def test_the_dashboard_shows_it_until_a_group_has_run_a_step(run: RunDir, pinned: Pinned) -> None:
    state = RunState(make_plan())
    newest = {"rollout": (1, "loading [bold]1.2 GB[/bold]"), "train": (0, "x" * 99)}
    hint = "follow a rank: launch --follow GROUP:RANK, or tail -f RUN/logs/GROUP/RANK.log"
    pinned("dashboard_logs.txt", drawn(Picture.of(state, 4.25, "", newest_logs(state, newest, hint))))
    state.on_event(Event("step", "train", 0, 1, value={"seconds": 1.0}))
    assert "xxx" not in drawn(Picture.of(state, 4.25, "", newest_logs(state, newest, hint)))


def test_the_dashboard_shows_the_whole_path_to_follow() -> None:
    state = RunState(make_plan())
    hint = "follow a rank: tail -f /home/somebody/jobs/runs/name/20261122-161855/logs/GROUP/RANK.log"
    picture = Picture.of(state, 4.25, "", newest_logs(state, {"train": (0, "x" * 99)}, hint))
    for width in (40, 80):
        lines = drawn(picture, width).splitlines()
        assert "".join(hint.split()) in "".join("".join(lines).split())
        assert sum("xx" in line for line in lines) == 1 and max(map(len, lines)) <= width


# Plain lines


def plain(run: RunDir, plan: Plan | None = None) -> tuple[io.StringIO, PlainOutput]:
    plan, stream = plan or make_plan(), io.StringIO()
    return stream, PlainOutput(plan, run, stream, Output(plan, run))


def test_plain_output_has_lines_of_workers_before_those_of_steps(run: RunDir) -> None:
    """And at its end the last lines of a worker that failed."""
    stream, view = plain(run)
    view.on_attempt(0, None)
    assert f"or tail -f '{run.path}/logs/GROUP/RANK.log'" in stream.getvalue()
    begun = len(stream.getvalue().splitlines())
    log(run, "rollout", 0, "loading\n")
    view.on_row({"step": 1, "time": 1.0})
    log(run, "train", 0, "result\n")
    log(run, "train", 1, "the last thing\n")
    view.on_row({"step": 2, "time": 1.1})
    view.on_event(Event("exited", "train", 1, value={"code": -9}))
    view.on_end(5, "train:1 failed")
    view.on_end(5, "train:1 failed")
    lines = [
        "rollout:0: loading",
        "step 1/12  1.0 s",
        "train:0: result",
        "train:1: the last thing",
        "step 2/12  1.1 s",
    ]
    assert stream.getvalue().splitlines()[begun:] == lines


def test_the_dashboard_has_the_lines_above_the_picture(run: RunDir) -> None:
    stream = Terminal()
    view = Dashboard(make_plan(), stream, Output(make_plan(), run, ["train:1"]), clock=lambda: 0.0)
    log(run, "train", 1, "[bold]hello\x1b[2J\n")
    view.on_row({"step": 1, "time": 1.0})
    log(run, "train", 0, "result\n")
    view.on_end(0, "")
    text = stream.getvalue()
    assert text.index("train:1: [bold]hello") < text.index("train:0: result") < text.rindex("arithmetic")
    assert "\x1b[2J" not in text


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


def test_slow_steps_have_a_line_each_and_one_that_comes_again_with_more_is_printed_with_all(
    run: RunDir,
) -> None:
    stream = io.StringIO()
    view = PlainOutput(make_plan(steps=0), run, stream)
    for step in (1, 2, 3):
        view.on_row({"step": step, "time": 10.0 * step, "metrics.loss": None})
        assert stream.getvalue().count("step") == step
    assert stream.getvalue().splitlines()[-1] == "step 3  30.0 s  metrics.loss not finite"
    view.on_row({"step": 4, "time": 30.1, "metrics.loss": 0.5})
    view.on_row({"step": 4, "time": 30.2, "metrics.loss": 0.5, "exam.reward": 0.9})
    view.on_end(0, "")
    assert stream.getvalue().splitlines()[-1] == "step 4  30.2 s  exam.reward 0.9  metrics.loss 0.5"


def test_the_output_of_the_launcher(run: RunDir) -> None:
    stream = io.StringIO()
    view = PlainOutput(replace(make_plan(), name="x"), run, stream)
    view.on_attempt(1, 40)
    view.on_event(Event("stopping", value={"reason": "interrupted"}))
    view.on_event(Event("checkpoint", step=41))
    view.on_event(Event("warning", value={"text": "`a.x` is NaN"}))
    view.on_attempt(2, 40)
    value = {"attempt": 2, "cause": "train:1 failed: killed by SIGKILL", "left": 2}
    view.on_event(Event("restarted", step=40, value=value))
    assert stream.getvalue().splitlines() == [
        f"x: 2 groups, 4 workers, in {run.path}",
        "continues after step 40",
        "stopping: interrupted",
        "checkpoint of step 41",
        "warning: `a.x` is NaN",
        "restarted after step 40: train:1 failed: killed by SIGKILL (2 restarts left)",
    ]


def test_slow_phases_before_the_first_step(run: RunDir) -> None:
    stream = io.StringIO()
    view = PlainOutput(make_plan(), run, stream)
    for phase, time in (("connection", 1.0), ("setup of `a`", 1.02), ("", 13.5)):
        for rank in (0, 1):
            value = {"phase": phase} if phase else {}
            view.on_event(Event("phase" if phase else "ready", "train", rank, value=value, time=time))
    assert stream.getvalue() == "train: 2 workers running after setup of `a` 12.5 s\n"
