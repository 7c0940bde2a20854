"""`state.json`: the state of a run on disk, so that other processes need not read its events.

    StateFile(plan, run)                an observer of the run, which writes the file
    read_state(plan, run)               the state that another process reads

The file is written whole, by a rename, at most once a second, and only when something has changed. That the
run stops is written at once, so that a second `meshctl stop` waits and sends no second signal. A thread does
this, so a slow disk never delays the run.
"""

from __future__ import annotations

import json
import threading
import time
from collections.abc import Mapping
from contextlib import suppress
from typing import Any, TypeVar, cast

from meshctl.package import OUR_VERSION
from meshctl.plan.model import Plan
from meshctl.run import clock
from meshctl.run.directory import RunDir, write_whole
from meshctl.run.events import Event, Follower, parsed
from meshctl.run.finding import NoRun
from meshctl.run.launcher import Launcher
from meshctl.run.metrics import rows_of
from meshctl.run.reading import DAMAGED, decoded, is_number, lines_of, size_of, text_of
from meshctl.view.live.run_state import STARTING, GroupState, History, RunState, State, Times, Timing
from meshctl.view.times import WorkerTimes

FORMAT = 1
"""The format of the file. One of another format is refused."""
INTERVAL_S = 1.0
MAX_PART = 0.01
"""The part of a core that writing the file may take. A large file is written less often than once a
second."""
END_S = 5.0
"""Seconds for which the end of a run waits for a slow disk to take the last file but one."""
TAIL_BYTES = 1 << 16
"""Bytes at the end of the launcher's events in which its last one is searched."""
PLAIN = ("step", "steps", "source", "attempt", "checkpoint", "reason", "notice", "is_stopping")
Made = TypeVar("Made")
LISTS = ("warnings", "restarts", "stalled", "stall")


# The state as plain data


def data_of(state: RunState, launcher: Launcher | None) -> dict[str, Any]:
    """Returns the state as data for `as_text`, whose parts are those of the state and are not copied."""
    shown = dict(state.shown())
    return {
        "format": FORMAT,
        "meshctl": OUR_VERSION,
        "name": state.plan.name,
        "state": state.condition,
        "launcher": launcher.to_data() if launcher else None,
        **{name: getattr(state, name) for name in ("code", *PLAIN, *LISTS, "first", "last")},
        **{name: getattr(state, name) for name in ("times", "groups", "routes")},
        "metrics": {
            name: history if name in shown else {"first": history.first, "last": history.last}
            for name, history in state.histories.items()
        },
    }


def state_of(plan: Plan, data: Mapping[str, Any]) -> RunState:
    """Returns the state that `data_of` stored. Raises `KeyError`, `TypeError` or `ValueError` for other
    data."""
    state = RunState(plan)
    for name in PLAIN:
        setattr(state, name, type(getattr(state, name))(data[name]))
    state.code = None if data["code"] is None else int(data["code"])
    for name in LISTS:
        setattr(state, name, list(map(str, data[name])))
    for name in ("first", "last"):
        setattr(state, name, (int(data[name][0]), float(data[name][1])) if data[name] else None)
    state.times = _made(Times, data["times"])
    state.routes |= {str(name): int(sent) for name, sent in data["routes"].items()}
    for name, group in state.groups.items():
        if name in data["groups"]:
            _fill_group(group, data["groups"][name])
    state.histories = {name: _made(History, history) for name, history in data["metrics"].items()}
    return state


def _fill_group(group: GroupState, data: Mapping[str, Any]) -> None:
    group.workers = int(data.get("workers", group.workers))
    group.states = {int(rank): cast(State, str(state)) for rank, state in data["states"].items()}
    group.stages = {name: _made(Timing, timing) for name, timing in data["stages"].items()}
    group.step = _made(Timing, data["step"])
    group.phases = {name: float(seconds) for name, seconds in data["phases"].items()}
    group.times = {int(rank): _made(WorkerTimes, times) for rank, times in data.get("times", {}).items()}
    group.running = {int(rank): (str(phase), float(at)) for rank, (phase, at) in data["running"].items()}


def _made(kind: type[Made], data: Mapping[str, Any]) -> Made:
    """Returns a record of numbers, and of lists and mappings of numbers. Unknown keys are left out. Raises
    `TypeError` for other values."""
    found = kind(**{name: data[name] for name in vars(kind()) if name in data})
    for name, usual in vars(kind()).items():
        value = getattr(found, name)
        inner = value.values() if isinstance(usual, dict) else value if isinstance(usual, list) else [value]
        if not all(is_number(one) or (one is usual is None) for one in inner):
            raise TypeError(f"`{name}` is no number")
    return found


def as_text(data: Mapping[str, Any]) -> str:
    """Returns the text of the file. A dataclass is stored as a mapping of its fields."""
    return json.dumps(data, separators=(",", ":"), default=vars) + "\n"


# Reading


def read_state(plan: Plan, run: RunDir) -> tuple[RunState, Launcher | None]:
    """Returns the state of a run and its launcher. Without the file, or where it is damaged, the events are
    read in its place. Raises `NoRun`."""
    if not run.path.is_dir():
        raise NoRun(f"the run directory {run.path} was deleted")
    try:
        with suppress(FileNotFoundError, *DAMAGED):
            data = read_data(run)
            launcher = Launcher.of_data(data["launcher"]) if data.get("launcher") else None
            state = state_of(plan, data)
            lives = state.code is None and launcher and launcher.is_alive()
            if state.code is None and not lives and (over := end_after(run, state.times.launched)):
                state.on_event(over)
            return state, launcher
        return folded_state(plan, run), None
    except OSError as error:
        file = error.filename or run.state
        raise NoRun(f"{file} cannot be read: {(error.strerror or str(error)).lower()}") from None


def read_data(run: RunDir) -> dict[str, Any]:
    """Returns the data of the file. Raises `OSError`, `ValueError` if it is damaged, and `NoRun` for another
    format."""
    data = decoded(text_of(run.state))
    if not isinstance(data, dict):
        raise ValueError("it is no JSON object")
    if data.get("format") != FORMAT:
        by = f"meshctl {data.get('meshctl', '')}".strip()
        raise NoRun(f"{run.state} was written by {by} in format {data.get('format')!r}")
    return data


def end_after(run: RunDir, launched: float) -> Event | None:
    """Returns the launcher's last event if it is the end of the launch that began at a time. A full disk may
    have taken it and not the file."""
    path = run.journal("launcher")
    last = None
    for line in lines_of(path, max(0, size_of(path) - TAIL_BYTES)):
        last = parsed(line) or last
    return last if last and last.name == "over" and last.time >= launched else None


def folded_state(plan: Plan, run: RunDir) -> RunState:
    """Returns the state of a run from its events and rows. Those with damaged values are skipped."""
    state = RunState(plan)
    for event in Follower(run.events).in_order():
        with suppress(*DAMAGED):
            state.on_event(event)
    for row in rows_of(run.metrics):
        with suppress(*DAMAGED):
            state.on_row(row)
    return state


# Writing


class StateFile:
    """Writes the state of a run as it goes on."""

    def __init__(self, plan: Plan, run: RunDir) -> None:
        """Writes the first state, of a run that begins or continues. Starts no thread before the first
        attempt, because the engine forks before."""
        self._run, self._launcher = run, Launcher.present()
        self.state = RunState(plan)
        with suppress(OSError, NoRun, *DAMAGED):
            self.state = state_of(plan, read_data(run))
        state = self.state
        state.code, state.reason, state.notice, state.is_stopping = None, "", STARTING, False
        self._lock, self._wake = threading.Lock(), threading.Condition()
        self._has_changed = self._is_urgent = self._is_over = False
        self._thread: threading.Thread | None = None
        with suppress(OSError):
            self._write()

    def on_attempt(self, number: int, step: int | None) -> None:
        with self._lock:
            self.state.on_attempt(number, step)
        if self._thread is None:
            self._thread = threading.Thread(target=self._write_changes, name="state", daemon=True)
            self._thread.start()

    def on_event(self, event: Event) -> None:
        if event.name == "metric":  # the rows have them
            return
        with self._lock:
            self.state.on_event(event)
        self._note_change(is_urgent=event.name == "stopping")

    def on_row(self, row: Mapping[str, Any]) -> None:
        with self._lock:
            self.state.on_row(row)
        self._note_change()

    def on_end(self, code: int, reason: str) -> None:
        """Writes the last state. A second call does nothing."""
        if self._is_over:
            return
        with self._wake:
            self._is_over = True
            self._wake.notify()
        if self._thread:
            self._thread.join(END_S)
        if self.state.code is None:
            self.state.on_event(Event("over", value={"code": code, "reason": reason}, time=clock.now()))
        with suppress(OSError):  # the run directory was deleted, or the disk is full
            self._write()

    def _note_change(self, is_urgent: bool = False) -> None:
        if is_urgent or not self._has_changed:
            with self._wake:
                self._has_changed, self._is_urgent = True, self._is_urgent or is_urgent
                self._wake.notify()

    def _write_changes(self) -> None:
        while True:
            with self._wake:
                self._wake.wait_for(lambda: self._has_changed or self._is_over)
                self._has_changed = self._is_urgent = False
                if self._is_over:
                    return
            begun = time.thread_time()
            with suppress(OSError):  # it is written again after the next change
                self._write()
            pause = max(INTERVAL_S, (time.thread_time() - begun) / MAX_PART)
            with self._wake:
                self._wake.wait_for(lambda: self._is_over or self._is_urgent, pause)

    def _write(self) -> None:
        if not self._run.path.is_dir():  # `write_whole` would make a deleted folder again
            return
        with self._lock:
            text = as_text(data_of(self.state, self._launcher))
        write_whole(self._run.state, text)
