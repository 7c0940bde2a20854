from __future__ import annotations

import io
import threading
from itertools import product

import pytest
from rich.console import Console

from meshctl.run.directory import RunDir
from meshctl.run.events import Event
from meshctl.view.live import for_terminal
from meshctl.view.live.dashboard import Dashboard, Picture
from meshctl.view.live.plain import PlainOutput
from meshctl.view.live.run_state import RunState
from tests.hang import HANG_S
from tests.view.conftest import Pinned
from tests.view.recorded import Recorded, make_plan


class Terminal(io.StringIO):
    def isatty(self) -> bool:
        return True


def drawn(picture: Picture, width: int = 80, height: int = 40) -> str:
    stream = io.StringIO()
    Console(file=stream, width=width, height=height).print(picture)
    return "\n".join(line.rstrip() for line in stream.getvalue().splitlines()) + "\n"


@pytest.fixture
def halfway(recorded: Recorded) -> RunState:
    state = RunState(recorded.plan)
    recorded.feed(state, steps=9)
    return state


def test_golden(halfway: RunState, pinned: Pinned) -> None:
    pinned("dashboard.txt", drawn(Picture.of(halfway, 4.25, "checkpoint of step 9")))
    pinned("dashboard_last.txt", drawn(Picture.last(halfway, 4.25)))
    pinned("dashboard_start.txt", drawn(Picture.of(RunState(make_plan()), 4.25, "starting")))


def test_a_failed_worker_and_a_metric_that_is_not_finite_are_seen(halfway: RunState) -> None:
    halfway.on_event(Event("fault", "train", 1, 10, "metrics"))
    halfway.on_row({"step": 10, "time": 9.0, "metrics.loss": None})
    picture = drawn(Picture.of(halfway, 4.25))
    groups = [line.split()[3] for line in picture.splitlines() if " cpu " in line]
    assert groups == ["running", "failed"] and "not finite" in picture


def test_it_fits_into_the_terminal_and_a_low_one_shows_what_matters_most(halfway: RunState) -> None:
    for width, height in product((40, 60, 80, 200), (6, 10, 14, 40)):
        lines = drawn(Picture.of(halfway, 4.25), width, height).splitlines()
        assert max(map(len, lines)) <= width and len(lines) < height
        assert "rollout" in "".join(lines) or width < 60
    pictures = [drawn(Picture.of(halfway, 4.25), height=height) for height in (30, 14, 10, 6)]
    shown = {"rollouts -> metrics": 1, "waits": 2, "exam.reward": 3, "running": 4}
    assert {words: sum(words in picture for picture in pictures) for words in shown} == shown


def test_a_picture_of_a_run_that_continues_names_its_first_step() -> None:
    stream = Terminal()
    view = Dashboard(make_plan(), stream, clock=lambda: 0.0)
    view.on_attempt(1, 40)
    picture = io.StringIO()
    Console(file=picture, width=80, height=40).print(view.picture())
    view.on_end(0, "")
    assert "continues after step 40" in picture.getvalue()


def test_live_on_a_terminal_leaves_the_last_picture_and_the_cursor(
    recorded: Recorded, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("TERM", "xterm")
    stream, before = Terminal(), set(threading.enumerate())
    view = Dashboard(recorded.plan, stream, clock=lambda: 0.0)
    recorded.feed(view)
    view.on_end(0, "")
    view.on_end(0, "")
    output = stream.getvalue()
    assert "step 12/12" in output and "\x1b[?1049h" not in output
    assert output.rindex("\x1b[?25h") > output.rindex("\x1b[?25l")
    for thread in set(threading.enumerate()) - before:
        thread.join(HANG_S)
        assert not thread.is_alive()


@pytest.mark.parametrize(
    ("stream", "environ", "kind"),
    [
        (io.StringIO(), {"TERM": "xterm"}, PlainOutput),
        (Terminal(), {"TERM": "dumb"}, PlainOutput),
        (Terminal(), {}, PlainOutput),
        (Terminal(), {"TERM": "tmux-256color"}, Dashboard),
    ],
)
def test_who_gets_which(stream: io.StringIO, environ: dict[str, str], kind: type, run: RunDir) -> None:
    view = for_terminal(make_plan(), run, stream, environ)
    view.on_end(0, "")
    assert type(view) is kind


def test_the_phase_of_a_group_that_starts() -> None:
    state = RunState(make_plan())
    state.on_event(Event("started", "train", 0, time=1.0))
    state.on_event(Event("phase", "train", 0, value={"phase": "setup of `actor`"}, time=1.5))
    (line,) = [line for line in drawn(Picture.of(state, 4.25)).splitlines() if line.startswith("train")]
    assert line.split(maxsplit=3) == ["train", "2", "cpu", "starting  setup of `actor`"]
