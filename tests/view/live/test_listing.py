from __future__ import annotations

from dataclasses import replace
from pathlib import Path

from meshctl.run.directory import RunDir, write_whole
from meshctl.run.events import Event
from meshctl.run.launcher import Launcher
from meshctl.view.live.listing import Row, age, listing, row_of, rows_of_runs
from meshctl.view.live.run_state import RunState
from tests.contract.launches import old_runs
from tests.contract.pinned import DATA
from tests.view.conftest import Pinned
from tests.view.live.folds import end, save
from tests.view.recorded import BEGAN, Recorded

NOW = 200_000.0


def rows() -> list[Row]:
    long = "train:1 failed in stage metrics, step 14: ValueError: two\nlines"
    runs = {
        "grpo/20260102-030405": ("running", 57, 200, NOW - 12, 12.4),
        "grpo/20260102-030000": ("stalled", 4, 0, NOW - 300, 300.0, None, "stalled for 10 s: train:1"),
        "a-long-name-of-a-recipe/20260101-120000-2": ("done", 200, 200, NOW - 7300, 7200.0, 0),
        "grpo/20260101-120000": ("failed", 13, 200, NOW - 190_000, 123.0, 5, long),
        "x/1": ("unreadable", 0, 0, 0.0, 0.0, None, "/runs/x/1/state.json is damaged"),
    }
    return [Row(RunDir(Path("/runs") / name), *facts) for name, facts in runs.items()]  # type: ignore[arg-type]


def test_the_table(pinned: Pinned) -> None:
    for width in (0, 80, 100):
        pinned(f"runs_{width}.txt", listing(rows(), NOW, width))
    first, *others = rows()
    pinned("runs_restarts.txt", listing([replace(first, restarts=12), *others], NOW))
    short = [row for row in rows() if len(row.run.path.parent.name) < 6]
    assert max(map(len, listing(short, NOW, 80).splitlines())) <= 80
    ages = {0: "0 s", 61: "1 min", 7300: "2 h", 190_000: "2 d"}
    assert {seconds: age(NOW - seconds, NOW) for seconds in ages} == ages


def begun(recorded: Recorded, run: RunDir, launcher: Launcher, *events: Event) -> RunState:
    state = RunState(recorded.plan)
    for event in (Event("launched", time=BEGAN), *events):
        state.on_event(event)
    write_whole(run.plan, recorded.plan.to_json())
    save(run, state, launcher)
    return state


def test_whether_the_launcher_lives_decides(recorded: Recorded, run: RunDir) -> None:
    me = Launcher.present()
    stall = Event("stall", value={"workers": ["train:1"], "text": ["stalled for 10 s: train:1"]})
    for launcher, events, expected in (
        (me, [], ("running", 9.0, "")),
        (replace(me, start=1), [], ("lost", 0.0, "")),
        (replace(me, host="login-2", boot="another"), [], ("running", 9.0, "on login-2")),
        (me, [stall], ("stalled", 9.0, "stalled for 10 s: train:1")),
    ):
        begun(recorded, run, launcher, *events)
        row = row_of(run, BEGAN + 9)
        assert (row.state, row.seconds, row.cause) == expected


def test_restarts_are_counted(recorded: Recorded, run: RunDir) -> None:
    whole = {"attempt": 1, "cause": "a node is lost", "left": 2}
    alone = {**whole, "group": "train", "generation": 1}
    failed = [Event("restarted", step=3, value=value) for value in (whole, alone)]
    begun(recorded, run, Launcher.present(), *failed)
    assert row_of(run, BEGAN + 9).to_data()["restarts"] == 2


def test_runs_of_all_kinds_are_listed(recorded: Recorded, run: RunDir) -> None:
    end(run, begun(recorded, run, Launcher.present()), 143, "SIGTERM")
    damaged = RunDir(run.path.parent / "damaged")
    damaged.path.mkdir()
    damaged.state.write_text('{"format": 1}')
    empty = RunDir(run.path.parent / "empty")
    empty.path.mkdir()
    old = RunDir(DATA / "runs" / old_runs()[0])
    found = {row.run.path.name: row for row in rows_of_runs([run, damaged, empty, old], NOW)}
    states = {"a run": "interrupted", "damaged": "unreadable", "empty": "unreadable", old.path.name: "failed"}
    assert {name: row.state for name, row in found.items()} == states
    assert (found[old.path.name].step, found[old.path.name].steps) == (4, 6)
    assert found["empty"].cause.endswith("plan.json cannot be read: no such file or directory")
