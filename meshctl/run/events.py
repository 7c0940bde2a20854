"""The events of a run: one JSON line each, appended by the process that observed it.

Each process has a file of its own under `events/`. An event, and all events of a step together, are one write
to a file opened for appending, so lines never mix, and a process that is killed loses no event that it has
written. Readers follow all files of the folder and fold the events. The events of a worker continue in
further files, so that those of old steps can be folded into one (`event_folding.py`):

train-0.jsonl, train-0.1.jsonl, train-0.2.jsonl, ...   the segments, in the order of writing
train-0.5.folded.jsonl                                 replaces the segments up to number 5

    name                written by      value
    started, exited     agent           {"pid": n}; {"pid": n, "code": n}, negative for a signal,
                                        and "out_of_memory" where the kernel killed it for that
    phase               worker          {"phase": name} of what it begins before its first step: connection,
                                        imports and setup of a component, resume, first sync
    ready               worker          {"last": n, "source": STAGE}: the planned last step, null where only a
                                        stop ends the run, and the source with whose data it ends, if
                                        one does; `step` is the one before the first
    step                worker          {"seconds": s, "stages": {STAGE: s}, "waits": {STAGE: s},
                                        "routes": {ROUTE: bytes sent}} at the end of a step, and where
                                        there were collectives {"collectives": {COMPONENT:DIM,DIM:
                                        {"count": n, "digest": n, "sites": {FILE:LINE: calls}}}}: this
                                        rank's calls since its last `step`, `sites` where they changed,
                                        and "operations" with all calls for `run.checks: all`;
                                        "in_collectives": {STAGE: s} is the part of `stages` in these.
                                        Where there were such times, {"sends": {STAGE: s}} until a value
                                        was sent, and {"awaited": {ROUTE: s}, "full": {ROUTE: s},
                                        "peers": {ROUTE: s}}: the parts of `waits`, `sends` and, for a
                                        sync, `stages` in which this rank did nothing, because values of
                                        the route had not arrived, because it had no free slot, and
                                        because other ranks of this group were not there
    steps               launcher        {"first": step, "count": n, "seconds": s, "stages": {STAGE: s},
                                        "times": {STAGE: n}, "waits": {STAGE: s}, "routes": {ROUTE:
                                        bytes}, ...}: the sums of the `step` events up to `step` that it
                                        replaces, and how many of them have each stage. The first `step`
                                        event after `ready` is not replaced
    metric              worker          {"values": {NAME: number}, "weight": w,
                                        "collect": "mean" | "sum" | "first"} of the stage in `stage`
    memory              worker          {"resident": bytes, "peak": bytes} of its process now and then, and
                                        {"device": bytes, "device_peak": bytes} that torch has reserved
    media               worker          {"metric": NAME, "kind": KIND, "file": path} of `media.py`
    uncounted           worker          {"names": [NAME], "counted": rank} of numbers that this rank logs for
                                        the first time; `counted` is the rank whose numbers count
    differs             worker          {"metric": NAME, "counted": GROUP:RANK, "values": [TEXT, TEXT]}
                                        where this rank logs another number than the rank that counts
    retried             worker          {"error": TYPE, "times": n}: the call of `stage` raised an exception
                                        and is repeated for the n-th time
    saving              worker          {"seconds": s}: its part of the checkpoint of `step` is copied, and is
                                        written beside training
    saved               worker          {"seconds": s, "files": {PATH: {"size": bytes, "sha256": digest}}}:
                                        its part of the checkpoint of `step` is on disk
    unsaved             worker          {"error": path and reason} where that part cannot be written
    done                worker          nothing; after its last step
    fault               worker, agent,  {"error": line, "traceback": text, "lost": bool,
                        launcher        "peer": [GROUP, RANK], "progress": RECORD}; `lost` where a peer was
                                        lost, `progress` where this rank has called collectives
    launched, stopping, launcher        see `engines/supervise/head.py`
    resumed, checkpoint, over,
    warning, download, restarted, stall, clock
"""

from __future__ import annotations

import errno
import heapq
import json
import math
import os
import re
import threading
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import field
from pathlib import Path
from typing import Any, NamedTuple, Protocol

from meshctl.dataclass import dataclass
from meshctl.run import clock
from meshctl.run.reading import appended, decoded, is_number, lines_of, size_of

NOT_ALONE = "cannot restart alone"
"""The words of the fault of a group after which the whole run restarts."""
SEGMENT_BYTES = 1 << 20
"""Size of a worker's event file after which its events are continued in another file."""
LISTING_S = 1.0
"""Maximum number of seconds between two listings of the event files."""
MAX_UNWRITTEN = 4 << 20
"""Bytes of events that wait for space on a full disk, at most. Beyond it the writer fails."""
RETRY_S = 0.1
"""Seconds between two attempts to write to a full disk."""
TIMES = ("sends", "awaited", "full", "peers")
"""The keys of a `step` event, and fields of its report, that are left out where they are empty."""
_LINE = json.JSONEncoder(separators=(",", ":"))


@dataclass(frozen=True)
class Event:
    name: str
    group: str = ""
    rank: int | None = None
    """The rank in the world of the group; None for an agent or the launcher."""
    step: int | None = None
    stage: str = ""
    value: dict[str, Any] = field(default_factory=dict)
    time: float = 0.0
    """Seconds since the epoch, by the clock of the process that wrote it."""


@dataclass(slots=True)
class StepReport:
    """The times, bytes and metrics of one step of one worker."""

    step: int
    metrics: list[dict[str, Any]] = field(default_factory=list)
    """The `stage`, `values`, `weight` and `collect` of each metric."""
    stages: dict[str, float] = field(default_factory=dict)
    """Stage -> seconds in the called method."""
    in_collectives: dict[str, float] = field(default_factory=dict)
    """Stage -> seconds of these in `self.collective`, for stages that call one."""
    waits: dict[str, float] = field(default_factory=dict)
    """Stage -> seconds until its inputs had arrived."""
    routes: dict[str, int] = field(default_factory=dict)
    """Route -> bytes sent."""
    sends: dict[str, float] = field(default_factory=dict)
    """Stage -> seconds until its value was sent."""
    awaited: dict[str, float] = field(default_factory=dict)
    """Route -> seconds in which this rank did nothing until values had arrived."""
    full: dict[str, float] = field(default_factory=dict)
    """Route -> seconds in which this rank did nothing until a slot was free."""
    peers: dict[str, float] = field(default_factory=dict)
    """Route -> seconds in which this rank did nothing until other ranks of its group were there."""
    collectives: dict[str, Any] = field(default_factory=dict)
    """Key of a process group -> what this rank has called in it."""
    seconds: float = 0.0

    @property
    def value(self) -> dict[str, Any]:
        """The value of the `step` event, with the times in tenths of a microsecond."""
        value: dict[str, Any] = {"seconds": round(self.seconds, 7)}
        value |= {"stages": _rounded(self.stages), "waits": _rounded(self.waits), "routes": self.routes}
        if self.collectives:
            value["collectives"] = self.collectives
        times = [(key, found) for key in ("in_collectives", *TIMES) if (found := getattr(self, key))]
        return value | {key: _rounded(found) for key, found in times}

    def add_times(self, stage: str, waited: float, called: float, in_collectives: float = 0.0) -> None:
        """Adds the seconds of one call of a stage; in a block there are several in a step."""
        if in_collectives:
            self.in_collectives[stage] = self.in_collectives.get(stage, 0.0) + in_collectives
        self.waits[stage] = self.waits.get(stage, 0.0) + waited
        self.stages[stage] = self.stages.get(stage, 0.0) + called

    def add_metric(self, stage: str, values: Mapping[str, float], weight: float, collect: str) -> None:
        if values:
            self.metrics.append({"stage": stage, "values": values, "weight": weight, "collect": collect})


def _rounded(times: Mapping[str, float]) -> dict[str, float]:
    return {name: round(seconds, 7) for name, seconds in times.items()}


class Journal:
    """One process's event file, for appending."""

    def __init__(self, path: Path, group: str = "", rank: int | None = None) -> None:
        """`path` is that of the first segment. The events are appended to the newest one."""
        path.parent.mkdir(parents=True, exist_ok=True)
        self._path, self._group, self._rank = newest_segment(path), group, rank
        self._file = appended(self._path)
        self._size = os.fstat(self._file).st_size
        """The size of the segment in bytes."""
        self._lock = threading.Lock()
        self._unwritten = b""
        """The bytes that a full disk did not take yet."""
        self._error_number = errno.ENOSPC
        """The number of the last error of the disk."""
        if self._size and not _ends_with_line(self._path):
            self._append(b"\n")  # a writer before this one was killed, or the disk was full

    def write(
        self, name: str, *, rank: int | None = None, step: int | None = None, stage: str = "", **value: Any
    ) -> None:
        """Appends an `Event`."""
        who = self._rank if rank is None else rank
        self._append(line_of(Event(name, self._group, who, step, stage, value, clock.now())))

    def write_metrics(self, report: StepReport) -> None:
        """Appends the metrics of a step."""
        for metric in report.metrics:
            if metric["values"]:
                self.write("metric", step=report.step, **metric)

    def write_step(self, report: StepReport) -> None:
        """Appends the events of a step in one write, all with the same time: readers sort by it and keep
        their order."""
        now, step = round(clock.now(), 6), report.step
        if self._size >= SEGMENT_BYTES:
            self._begin_segment()
        lines = list[bytes]()
        for metric in report.metrics:
            value = {key: metric[key] for key in ("values", "weight", "collect")}
            lines.append(line_of(Event("metric", self._group, self._rank, step, metric["stage"], value, now)))
        step_event = Event("step", self._group, self._rank, step, "", report.value, now)
        self._append(b"".join([*lines, line_of(step_event)]))

    def _append(self, text: bytes) -> None:
        """Appends whole lines. What a full disk does not take is written with a later event. Raises `OSError`
        beyond `MAX_UNWRITTEN`, because an event must not be lost."""
        with self._lock:  # a checkpoint that is written beside training is reported by its thread
            text = self._unwritten + text
            try:
                written = os.write(self._file, text)
            except OSError as error:
                self._unwritten, self._error_number = text, error.errno or errno.EIO
                if len(text) > MAX_UNWRITTEN:
                    raise OSError(error.errno, error.strerror, str(self._path)) from None
                return
            self._unwritten = text[written:]
            self._size += written

    def _begin_segment(self) -> None:
        """Continues in another file, so that this one can be folded. Where it cannot be made, or the disk is
        full, the present one is continued."""
        with self._lock, suppress(OSError):
            self._size = 0
            if not self._unwritten:
                path = segment_after(self._path)
                file = appended(path)
                os.close(self._file)
                self._file, self._path = file, path

    def flush(self, seconds: float = 0.0) -> None:
        """Writes the events that a full or read-only disk did not take, and waits for it, at most this long.
        Raises `OSError` if the disk still does not take them."""
        end = time.monotonic() + seconds
        while self._unwritten:
            self._append(b"")
            if self._unwritten and time.monotonic() >= end:
                raise OSError(self._error_number, os.strerror(self._error_number), str(self._path))
            if self._unwritten:
                time.sleep(RETRY_S)

    def close(self) -> None:
        os.close(self._file)


def line_of(event: Event) -> bytes:
    return (_LINE.encode(vars(event)) + "\n").encode()


def _ends_with_line(path: Path) -> bool:
    with path.open("rb") as file:
        file.seek(-1, os.SEEK_END)
        return file.read(1) == b"\n"


@dataclass(slots=True)
class _Tail:
    segment: int = 0
    path: str = ""
    position: int = 0
    """The number of bytes of `path` that were read."""


class Follower:
    """All event files of a folder, read as they grow."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._tails: dict[str, _Tail] = {}
        """Process -> its tail. What is folded after it was read is not read again."""
        self._files: dict[str, list[EventFile]] = {}
        self._listed = (0, -math.inf)
        """The last change of the folder, and when its files were listed."""

    def new(self) -> Iterator[Event]:
        """Yields the events since the last call, file by file. A line that is still being written waits for
        the next call."""
        for who in self.grown():
            yield from self._events(who)

    def in_order(self) -> Iterator[Event]:
        """Yields the events since the last call, of all files in the order of their times. It needs memory
        for one event of each process, because its events are in order."""
        return heapq.merge(*map(self._events, self.grown()), key=lambda event: event.time)

    def skip(self) -> None:
        """Skips all events so far."""
        for who, files in self.files().items():
            path = self._folder / files[-1].name
            self._tails[who] = _Tail(files[-1].number, str(path), path.stat().st_size)

    def has_read(self, who: str, segment: int) -> bool:
        """Returns whether all events of a segment, which another one follows, were yielded."""
        return who in self._tails and segment < self._tails[who].segment

    def files(self) -> Mapping[str, Sequence[EventFile]]:
        """Returns the files of all processes. They are listed where the folder has changed, and every second,
        because the clock of a file system may be coarse."""
        try:
            change, now = os.stat(self._folder).st_mtime_ns, time.monotonic()
        except FileNotFoundError:
            return {}
        if change != self._listed[0] or now - self._listed[1] > LISTING_S:
            self._files, self._listed = event_files(self._folder), (change, now)
        return self._files

    def grown(self) -> list[str]:
        """Returns the processes that have written events."""
        tails = self._tails
        return [
            who
            for who, files in self.files().items()
            if (tail := tails.get(who)) is None
            or tail.segment < files[-1].number
            or size_of(tail.path) > tail.position
        ]

    def lines(self, who: str) -> Iterator[bytes]:
        """Yields the lines of a process since the last call."""
        first = self._tails[who].segment if who in self._tails else -1
        tail = self._tails.setdefault(who, _Tail())
        for number, is_folded, name in self._files.get(who, ()):
            if number < first or (is_folded and first >= 0):
                continue
            path = f"{self._folder}/{name}"
            if path != tail.path:
                tail.path, tail.position = path, 0
            tail.segment = number
            for line in lines_of(path, tail.position):
                tail.position += len(line)
                yield line

    def _events(self, who: str) -> Iterator[Event]:
        return filter(None, map(parsed, self.lines(who)))


def events_of(path: Path) -> Iterator[Event]:
    """Yields the events of one file."""
    return filter(None, map(parsed, lines_of(path)))


def parsed(line: bytes) -> Event | None:
    """Returns the event of a line; None for one that was cut, by a kill or a full disk, or is no event."""
    with suppress(ValueError, TypeError):
        event = Event(**decoded(line.decode()))
        is_right = is_number(event.time) and isinstance(event.value, dict)
        is_right = is_right and {type(event.name), type(event.group), type(event.stage)} == {str}
        return event if is_right and {type(event.rank), type(event.step)} <= {int, type(None)} else None
    return None


def restart_line(event: Event) -> str:
    """Returns the line about a restart, `restarted after step 40: train:1 failed: killed by SIGKILL`; with
    `, train with 3 of 4 workers` after the step if groups change their size. `rollout restarts alone` is the
    beginning where a single group restarts."""
    if group := event.value.get("group"):
        return f"{group} restarts alone: {event.value.get('cause', '')}"
    where = f"after step {event.step}" if event.step else "from the beginning"
    sizes = [
        f", {name} with {after} of {before} workers"
        if after < before
        else f", {name} with {after} workers again"
        for name, (before, after) in sizes_in(event.value.get("sizes"))
    ]
    return f"restarted {where}{''.join(sizes)}: {event.value.get('cause', '')}"


def sizes_in(sizes: object) -> Iterator[tuple[str, tuple[int, int]]]:
    """Yields (group, numbers of its workers before and after) of the field of an event."""
    for name, pair in sizes.items() if isinstance(sizes, dict) else ():
        if isinstance(pair, list) and len(pair) == 2 and all(isinstance(one, int) for one in pair):
            yield str(name), (pair[0], pair[1])


class Observer(Protocol):
    """An object that watches a run and cannot disturb it: the dashboard or the plain output, and the
    trackers. The supervisor calls it from one thread, in this order:

        on_attempt, (on_event | on_row)*, on_attempt, ..., on_end
    """

    def on_attempt(self, number: int, step: int | None) -> None:
        """Attempt `number` begins. Its first step is the one after `step`, or the first of the run where that
        is None. Rows of later steps, which an earlier attempt produced, no longer count."""
        return

    def on_event(self, event: Event) -> None:
        """Something has happened. Events of one process arrive in order."""
        return

    def on_row(self, row: Mapping[str, Any]) -> None:
        """A step is complete: `step`, `time`, and its metrics by `STAGE.NAME`. The row of the last step may
        arrive again with more metrics."""
        return

    def on_end(self, code: int, reason: str) -> None:
        """The run is over, with an exit code and the cause or the signal. Called once, and last."""


SUFFIX = ".jsonl"
_NAME = re.compile(r"(?P<who>[^.]+)(?:\.(?P<number>\d{1,9}))?(?P<folded>\.folded)?\.jsonl")


class EventFile(NamedTuple):
    """A segment of the events of a process, or the file that replaces all segments up to this one."""

    number: int
    is_folded: bool
    name: str


def segment_name(who: str, number: int) -> str:
    return f"{who}.{number}{SUFFIX}" if number else f"{who}{SUFFIX}"


def folded_name(who: str, number: int) -> str:
    return f"{who}.{number}.folded{SUFFIX}"


def event_files(folder: Path) -> dict[str, list[EventFile]]:
    """Returns process -> its event files, in the order of their events. Those that a folded file contains are
    left out: the process that folded them was killed before it deleted them."""
    found = _all_files(folder)
    for who, files in found.items():
        found[who] = files[max((place for place, file in enumerate(files) if file.is_folded), default=0) :]
    return found


def _all_files(folder: Path) -> dict[str, list[EventFile]]:
    found = dict[str, list[EventFile]]()
    with suppress(FileNotFoundError):
        for match in filter(None, map(_NAME.fullmatch, os.listdir(folder))):
            file = EventFile(int(match["number"] or 0), bool(match["folded"]), match[0])
            found.setdefault(match["who"], []).append(file)
    return {who: sorted(files) for who, files in sorted(found.items())}


def newest_segment(path: Path) -> Path:
    """Returns the file to which a process appends, given the path of its first segment."""
    who = path.name.removesuffix(SUFFIX)
    number, is_folded, _ = event_files(path.parent).get(who, [EventFile(0, False, path.name)])[-1]
    return path.with_name(segment_name(who, number + is_folded))


def segment_after(path: Path) -> Path:
    found = _NAME.fullmatch(path.name)
    assert found, path
    return path.with_name(segment_name(found["who"], int(found["number"] or 0) + 1))


def delete_folded(folder: Path, who: str, number: int) -> None:
    """Deletes the files of a process that its folded file with this number contains."""
    for file in _all_files(folder).get(who, ()):
        if (file.number, file.is_folded) < (number, True):
            (folder / file.name).unlink(missing_ok=True)
