from __future__ import annotations

import json
from dataclasses import replace

import pytest

from meshctl.plan.model import Group, Plan, Program
from meshctl.run.best import ScoredCheckpoint
from meshctl.run.directory import RunDir
from meshctl.run.events import Event, Journal
from meshctl.view.live.state_file import folded_state
from meshctl.view.live.summary import text_of
from tests.view.conftest import Pinned
from tests.view.recorded import Recorded, make_plan


def summary(plan: Plan, run: RunDir) -> str:
    return text_of(folded_state(plan, run), run)


def test_of_a_whole_run(recorded: Recorded, run: RunDir, pinned: Pinned) -> None:
    recorded.write(run)
    pinned("summary.txt", summary(recorded.plan, run))


def test_of_a_run_that_failed_and_can_go_on(recorded: Recorded, run: RunDir, pinned: Pinned) -> None:
    failed = [
        event for event in recorded.events if (event.step or 0) <= 7 and event.name not in ("done", "over")
    ]
    over = Event("over", value={"code": 5, "reason": "train:1 failed in stage metrics, step 8"})
    Recorded(recorded.plan, [*failed, over]).write(run)
    run.checkpoint(6).mkdir(parents=True)
    run.publish_checkpoint(6)
    pinned("summary_failed.txt", summary(recorded.plan, run))


def test_the_best_checkpoints_and_the_warnings_are_named(recorded: Recorded, run: RunDir) -> None:
    """Of a warning, those of the last attempt."""
    texts = [Event("warning", value={"text": text}) for text in ("old", "new")]
    again = Event("launched", value={"attempt": 1})
    Recorded(recorded.plan, [*recorded.events[:60], texts[0], again, texts[1]]).write(run)
    for step in (4, 6):
        run.checkpoint(step).mkdir(parents=True)
    run.write_best("exam.reward", "max", [ScoredCheckpoint(6, 0.75, 6), ScoredCheckpoint(4, 0.5, 3)])
    lines = summary(recorded.plan, run).splitlines()
    assert [line for line in lines if "warning" in line] == ["  warning: new"]
    assert [line for line in lines if "best checkpoint" in line] == [
        f"  best checkpoint: {run.checkpoint(6)} (exam.reward 0.75)",
        f"  next best checkpoint: {run.checkpoint(4)} (exam.reward 0.5, of step 3)",
    ]


@pytest.mark.parametrize(
    ("over", "begins"),
    [
        ([Event("over", value={"code": 130, "reason": "Ctrl-C"})], "arithmetic: interrupted (Ctrl-C) after"),
        ([], "arithmetic: ended without a report of its launcher after"),
    ],
)
def test_of_a_run_that_was_interrupted_or_whose_launcher_was_killed(
    over: list[Event], begins: str, recorded: Recorded, run: RunDir
) -> None:
    Recorded(recorded.plan, [*recorded.events[:60], *over]).write(run)
    with run.metrics.open("a") as file:
        file.write('{"step": 99, "ti')
    assert summary(recorded.plan, run).startswith(begins)


def test_of_a_run_that_never_began_and_of_its_second_attempt(recorded: Recorded, run: RunDir) -> None:
    begun = "arithmetic: ended without a report of its launcher\n\n"
    assert summary(recorded.plan, run) == f"{begun}  run directory: {run.path}\n"
    recorded.write(run)
    journal = Journal(run.journal("launcher-None"))
    journal.write("launched", attempt=1)
    journal.write("resumed", step=12)
    assert "without a report" in summary(recorded.plan, run)
    journal.write("over", code=0, reason="")
    journal.close()
    assert summary(recorded.plan, run).startswith("arithmetic: done after 12 steps")


def test_of_a_program(run: RunDir) -> None:
    program = Group("ddp", "cpu", 2, 0, program=Program(("train.py",)))
    plan = replace(make_plan(), groups=(program,), components=(), stages=(), routes=())
    journal = Journal(run.journal("launcher"))
    journal.write("launched", attempt=0)
    journal.write("over", code=0, reason="")
    journal.close()
    text = summary(plan, run)
    assert (
        text.startswith("arithmetic: done after 0.0 s\n") and f"output of ddp: {run.path}/logs/ddp\n" in text
    )


def test_phases_that_took_long(recorded: Recorded, run: RunDir) -> None:
    begun = Event("phase", "train", 0, value={"phase": "setup of `actor`"})
    launched, *events = recorded.events
    Recorded(recorded.plan, [launched, begun, *events]).write(run)
    for who, earlier_s in (("launcher-None", 74.0), ("train-0", 73.0)):
        path = run.journal(who)
        first, *rest = [json.loads(line) for line in path.read_text().splitlines()]
        first["time"] -= earlier_s
        path.write_text("".join(f"{json.dumps(line)}\n" for line in (first, *rest)))
    text = summary(recorded.plan, run)
    assert "  group  before step 1           time\n  train  setup of `actor`  1 min 13 s\n" in text
