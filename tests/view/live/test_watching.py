from __future__ import annotations

import io
import json
import re
from dataclasses import replace

import pytest

from meshctl.run.directory import RunDir, Start, write_whole
from meshctl.run.events import Event, Journal
from meshctl.run.finding import NoRun
from meshctl.run.launcher import Launcher
from meshctl.run.metrics import as_json
from meshctl.view.live.run_state import RunState
from meshctl.view.live.seen_run import SeenRun
from meshctl.view.live.watching import JsonWatch, LivePicture, PlainWatch, polled, watch_view
from tests.view.conftest import Pinned
from tests.view.live.folds import end, save
from tests.view.live.test_dashboard import Terminal
from tests.view.recorded import Recorded


@pytest.fixture
def halfway(recorded: Recorded, run: RunDir) -> RunState:
    """The state, also on disk, of a run that has made nine steps."""
    run.write_start(Start(()))
    write_whole(run.plan, recorded.plan.to_json())
    write_whole(run.recipe, "name: arithmetic\n")
    state = RunState(recorded.plan)
    recorded.feed(state, steps=9)
    save(run, state)
    return state


def test_a_run_is_polled_until_it_has_ended(recorded: Recorded, run: RunDir, halfway: RunState) -> None:
    sleeps = list[float]()

    def sleep(seconds: float) -> None:
        sleeps.append(seconds)
        if len(sleeps) == 2:
            halfway.on_row({"step": 10, "time": 9.0})
            save(run, halfway)
        if len(sleeps) == 4:
            end(run, halfway, 5, "train:1 failed")

    found = list(polled(SeenRun.of(run, recorded.plan), sleep))
    assert [(seen.condition, seen.state.step) for seen in found] == [
        *[("running", 9)] * 2,
        *[("running", 10)] * 2,
        ("failed", 10),
    ]


def test_a_launcher_that_is_killed_ends_the_view(recorded: Recorded, run: RunDir, halfway: RunState) -> None:
    def kill(_: float) -> None:
        save(run, halfway, replace(Launcher.present(), start=1))

    *_, last = polled(SeenRun.of(run, recorded.plan), kill)
    assert (last.condition, last.code) == ("lost", 5)


def test_a_run_that_is_deleted_meanwhile(recorded: Recorded, run: RunDir, halfway: RunState) -> None:
    def delete(_: float) -> None:
        run.state.unlink()
        run.path.rename(run.path.with_name("elsewhere"))

    with pytest.raises(NoRun, match="was deleted"):
        list(polled(SeenRun.of(run, recorded.plan), delete))


def test_the_picture_of_a_terminal(recorded: Recorded, run: RunDir, halfway: RunState) -> None:
    stream = Terminal()
    view = watch_view(SeenRun.of(run, recorded.plan), stream, {"TERM": "xterm"})
    assert isinstance(view, LivePicture)
    halfway.on_event(
        Event("stall", value={"workers": ["train:1"], "text": ["stalled for 10 s"]}, time=1006.0)
    )
    save(run, halfway)
    view.show(SeenRun.of(run, recorded.plan))
    halfway.on_event(Event("over", value={"code": 0, "reason": ""}, time=1006.5))
    save(run, halfway)
    view.end(SeenRun.of(run, recorded.plan))
    view.close()
    text = re.sub(r"\x1b\[[0-9;?]*[a-zA-Z]", "", stream.getvalue())
    assert text.count("stalled for 10 s\n") == 1 and "arithmetic  step 9/12" in text
    assert "exam.reward" in text.rpartition("arithmetic")[2] and "rollout  2 cpu    running" in text


def test_plain_lines(
    recorded: Recorded, run: RunDir, halfway: RunState, pinned: Pinned, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("meshctl.view.live.watching.time.time", lambda: 1006.0)
    stream = io.StringIO()
    view = watch_view(SeenRun.of(run, recorded.plan), stream, {})
    assert isinstance(view, PlainWatch)
    view.show(SeenRun.of(run, recorded.plan))
    journal = Journal(run.journal("launcher"))
    journal.write("checkpoint", step=10, path="checkpoints/step-10")
    journal.write("stall", workers=["train:1"], seconds=10.0, text=["stalled for 10 s: train:1", "  a stack"])
    run.metrics.write_text(as_json({"step": 10, "time": 4.5, "metrics.loss": 0.2}))
    view.show(SeenRun.of(run, recorded.plan))
    run.metrics.write_text("")  # another attempt
    view.show(SeenRun.of(run, recorded.plan))
    run.metrics.write_text(as_json({"step": 10, "time": 9.5, "metrics.loss": 0.1}))
    halfway.on_event(Event("warning", value={"text": "unused"}))
    end(run, halfway, 143, "SIGTERM")
    view.end(SeenRun.of(run, recorded.plan))
    pinned(
        "watch_plain.txt",
        stream.getvalue().replace(f"logs {SeenRun.of(run, recorded.plan).name}", "logs NAME"),
    )


def test_json_has_a_line_for_each_change(recorded: Recorded, run: RunDir, halfway: RunState) -> None:
    stream = io.StringIO()
    view = JsonWatch(stream)
    for _ in range(3):
        view.show(SeenRun.of(run, recorded.plan))
    end(run, halfway, 0)
    view.end(SeenRun.of(run, recorded.plan))
    assert [json.loads(line)["state"] for line in stream.getvalue().splitlines()] == ["running", "done"]
