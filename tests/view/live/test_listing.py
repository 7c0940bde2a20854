from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path

import pytest

from meshctl.run.directory import RunDir
from meshctl.run.events import Event
from meshctl.run.launcher import Launcher
from meshctl.view.live.listing import Row, age, listing, row_of, rows_of_runs
from meshctl.view.live.state_file import StateFile
from tests.contract.launches import old_runs
from tests.contract.pinned import DATA
from tests.view.conftest import Pinned
from tests.view.recorded import BEGAN, Recorded

NOW = 200_000.0


def rows() -> list[Row]:
    def run(name: str) -> RunDir:
        return RunDir(Path("/runs") / name)

    return [
        Row(run("grpo/20260102-030405"), "running", 57, 200, NOW - 12, 12.4),
        Row(
            run("grpo/20260102-030000"), "stalled", 4, 0, NOW - 300, 300.0, cause="stalled for 10 s: train:1"
        ),
        Row(run("a-long-name-of-a-recipe/20260101-120000-2"), "done", 200, 200, NOW - 7300, 7200.0, 0),
        Row(
            run("grpo/20260101-120000"),
            "failed",
            13,
            200,
            NOW - 190_000,
            123.0,
            5,
            "train:1 failed in stage metrics, step 14: ValueError: two\nlines",
        ),
        Row(run("x/1"), "unreadable", cause="/runs/x/1/state.json is damaged"),
    ]


@pytest.mark.parametrize("width", [0, 80, 100])
def test_the_table(width: int, pinned: Pinned) -> None:
    pinned(f"runs_{width}.txt", listing(rows(), NOW, width))


def test_the_table_with_restarts(pinned: Pinned) -> None:
    first, *others = rows()
    pinned("runs_restarts.txt", listing([replace(first, restarts=12), *others], NOW))


def test_causes_are_cut_to_the_width() -> None:
    short = [row for row in rows() if len(row.run.path.parent.name) < 6]
    assert max(map(len, listing(short, NOW, 80).splitlines())) <= 80


@pytest.mark.parametrize(("seconds", "text"), [(0, "0 s"), (61, "1 min"), (7300, "2 h"), (190_000, "2 d")])
def test_ages(seconds: float, text: str) -> None:
    assert age(NOW - seconds, NOW) == text


def begun(recorded: Recorded, run: RunDir, launcher: Launcher, *events: Event) -> StateFile:
    view = StateFile(recorded.plan, run)
    view._launcher = launcher
    for event in (Event("launched", time=BEGAN), *events):
        view.on_event(event)
    view._write()
    return view


def test_whether_the_launcher_lives_decides(recorded: Recorded, run: RunDir) -> None:
    me = Launcher.present()
    begun(recorded, run, me)
    assert (row_of(run, BEGAN + 9).state, row_of(run, BEGAN + 9).seconds) == ("running", 9.0)
    begun(recorded, run, replace(me, start=1))
    assert (row_of(run, BEGAN + 9).state, row_of(run, BEGAN + 9).seconds) == ("lost", 0.0)
    begun(recorded, run, replace(me, host="login-2", boot="another"))
    assert (row_of(run, BEGAN + 9).state, row_of(run, BEGAN + 9).cause) == ("running", "on login-2")
    stall = Event("stall", value={"workers": ["train:1"], "text": ["stalled for 10 s: train:1"]})
    begun(recorded, run, me, stall)
    assert (row_of(run, BEGAN + 9).state, row_of(run, 0).cause) == ("stalled", "stalled for 10 s: train:1")


def test_restarts_are_counted(recorded: Recorded, run: RunDir) -> None:
    whole = {"attempt": 1, "cause": "a node is lost", "left": 2}
    alone = {**whole, "group": "train", "generation": 1}
    failed = [Event("restarted", step=3, value=value) for value in (whole, alone)]
    begun(recorded, run, Launcher.present(), *failed)
    assert row_of(run, BEGAN + 9).to_data()["restarts"] == 2
    head, _, rest = run.state.read_text().partition("\n")
    data = json.loads(head[:-1] + "}")
    del data["restarts"]  # as earlier versions wrote it
    run.state.write_text(f"{json.dumps(data)[:-1]},\n{rest}")
    assert (row_of(run, BEGAN + 9).state, row_of(run, BEGAN + 9).restarts) == ("running", 0)


def test_runs_of_all_kinds_are_listed(recorded: Recorded, run: RunDir) -> None:
    begun(recorded, run, Launcher.present()).on_end(143, "SIGTERM")
    damaged = RunDir(run.path.parent / "damaged")
    damaged.path.mkdir()
    damaged.state.write_text('{"format": 1}')
    empty = RunDir(run.path.parent / "empty")
    empty.path.mkdir()
    old = RunDir(DATA / "runs" / old_runs()[0])
    found = {row.run.path.name: row for row in rows_of_runs([run, damaged, empty, old], NOW)}
    assert {name: row.state for name, row in found.items()} == {
        "a run": "interrupted",
        "damaged": "unreadable",
        "empty": "unreadable",
        old.path.name: "failed",
    }
    assert (found[old.path.name].step, found[old.path.name].steps) == (4, 6)
    assert found["empty"].cause.endswith("plan.json cannot be read: no such file or directory")
