"""The events of a run: one JSON line each, appended by the process that observed it.

Each process has a file of its own under `events/`. An event, and all events of a step together, are one write
to a file opened for appending, so lines never mix, and a process that is killed loses no event that it has
written. Readers follow all files of the folder and fold the events. The events of a worker continue in
further files (`event_files.py`), so that those of old steps can be folded into one (`event_folding.py`).

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
    strangers           worker          {"hosts": {ADDRESS: n}}: the connections without the token
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
from abc import ABC, abstractmethod
from collections.abc import Container, Iterator, Mapping
from contextlib import suppress
from dataclasses import field
from functools import cache
from pathlib import Path
from typing import Any

from meshctl.dataclass import dataclass
from meshctl.run import clock
from meshctl.run.event_files import EventFiles, event_files, newest_segment, segment_after, segment_name
from meshctl.run.reading import appended, decoded, is_number, lines_of, size_of

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
MAX_TEMPLATES = 256
"""Maximum number of cached lines of a process."""
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


class EventLog(ABC):
    """The destination of a process's events."""

    @abstractmethod
    def write(
        self, name: str, *, rank: int | None = None, step: int | None = None, stage: str = "", **value: Any
    ) -> None:
        """Appends an `Event`."""

    def write_metrics(self, report: StepReport) -> None:
        """Appends the metrics of a step."""
        for metric in report.metrics:
            if metric["values"]:
                self.write("metric", step=report.step, **metric)

    def write_step(self, report: StepReport) -> None:
        """Appends the events of a step: those of its metrics, then `step`."""
        self.write_metrics(report)
        more: dict[str, Any] = {"collectives": report.collectives} if report.collectives else {}
        if report.in_collectives:
            more["in_collectives"] = report.in_collectives
        more |= {key: times for key in TIMES if (times := getattr(report, key))}
        self.write(
            "step",
            step=report.step,
            seconds=report.seconds,
            stages=report.stages,
            waits=report.waits,
            routes=report.routes,
            **more,
        )


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

    def add_times(self, stage: str, waited: float, called: float, in_collectives: float = 0.0) -> None:
        """Adds the seconds of one call of a stage; in a block there are several in a step."""
        if in_collectives:
            self.in_collectives[stage] = self.in_collectives.get(stage, 0.0) + in_collectives
        self.waits[stage] = self.waits.get(stage, 0.0) + waited
        self.stages[stage] = self.stages.get(stage, 0.0) + called

    def add_metric(self, stage: str, values: Mapping[str, float], weight: float, collect: str) -> None:
        if values:
            self.metrics.append({"stage": stage, "values": values, "weight": weight, "collect": collect})


class Journal(EventLog):
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
        self._templates: dict[tuple[str, ...], bytes] = {}
        """The names in a `step` line (stages, routes) -> the line, with formats for numbers."""
        self._metrics: dict[tuple[str, ...], bytes] = {}
        """The same for the lines of metrics, by their stage, `collect` and names."""

    def write(
        self, name: str, *, rank: int | None = None, step: int | None = None, stage: str = "", **value: Any
    ) -> None:
        who = self._rank if rank is None else rank
        self._append(self._line(name, who, step, stage, value, clock.now()))

    def write_step(self, report: StepReport) -> None:
        """Appends the events of a step in one write. The `step` line is a template filled with numbers,
        because encoding it as JSON would take longer than everything else in the loop of an empty step."""
        stages, waits, routes, sends = report.stages, report.waits, report.routes, report.sends
        awaited, full, peers = report.awaited, report.full, report.peers
        key = (*stages, "", *waits, "", *routes, "", *sends, "", *awaited, "", *full, "", *peers)
        template = self._templates.get(key)
        if template is None:
            if len(self._templates) >= MAX_TEMPLATES:
                self._templates.clear()
            template = self._templates[key] = self._template(report)
        numbers = (
            *(report.step, report.seconds),
            *(*stages.values(), *waits.values(), *routes.values()),
            *(*sends.values(), *awaited.values(), *full.values(), *peers.values()),
        )
        now = clock.now()
        if self._size >= SEGMENT_BYTES:
            self._begin_segment()
        if not report.metrics and not report.collectives:
            self._append(template % (*numbers, b"", now))
            return
        now = round(now, 6)  # all have the same time: readers sort by it and keep their order
        lines = []
        for metric in report.metrics:
            lines.append(self._metric(metric, report.step, now))
        self._append(b"".join([*lines, template % (*numbers, _collectives_of(report), now)]))

    def _metric(self, metric: Mapping[str, Any], step: int, now: float) -> bytes:
        """Returns the line of a metric: a template as well, where its numbers are finite."""
        values, weight = metric["values"], metric["weight"]
        numbers = (*values.values(), weight)
        if not all(type(number) in (float, int) and math.isfinite(number) for number in numbers):
            value = {key: value for key, value in metric.items() if key != "stage"}
            return self._line("metric", self._rank, step, metric["stage"], value, now)
        key = (metric["stage"], metric["collect"], *values)
        template = self._metrics.get(key)
        if template is None:
            template = self._metrics[key] = self._metric_template(metric)
        return template % (step, *numbers, now)

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

    def _line(
        self,
        name: str,
        rank: int | None,
        step: int | None,
        stage: str,
        value: Mapping[str, Any],
        now: float,
    ) -> bytes:
        event = {
            "name": name,
            "group": self._group,
            "rank": rank,
            "step": step,
            "stage": stage,
            "value": value,
            "time": now,
        }
        return (_LINE.encode(event) + "\n").encode()

    def _template(self, report: StepReport) -> bytes:
        """Returns the line of a `step` event with the keys of this report, and formats in place of the
        numbers."""
        stages, waits = _template_of(report.stages, "%.7f"), _template_of(report.waits, "%.7f")
        routes = _template_of(report.routes, "%d")
        more = [(key, times) for key in TIMES if (times := getattr(report, key))]
        rest = "".join(f',"{key}":{_template_of(times, "%.7f")}' for key, times in more)
        value = f'{{"seconds":%.7f,"stages":{stages},"waits":{waits},"routes":{routes}{rest}%b}}'
        return f'{self._head("step")},"step":%d,"stage":"","value":{value},"time":%.6f}}\n'.encode()

    def _metric_template(self, metric: Mapping[str, Any]) -> bytes:
        stage, collect = (_LINE.encode(metric[key]).replace("%", "%%") for key in ("stage", "collect"))
        values = _template_of(metric["values"], "%a")
        value = f'{{"values":{values},"weight":%a,"collect":{collect}}}'
        return f'{self._head("metric")},"step":%d,"stage":{stage},"value":{value},"time":%.6f}}\n'.encode()

    def _head(self, name: str) -> str:
        event = {"name": name, "group": self._group, "rank": self._rank}
        return _LINE.encode(event).replace("%", "%%")[:-1]

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


def _collectives_of(report: StepReport) -> bytes:
    """Returns the end of the value of a `step` event."""
    if not report.collectives:
        return b""
    calls = b",".join(b"%b:%b" % (_text(key), _calls(value)) for key, value in report.collectives.items())
    times = b",".join(b"%b:%.7f" % (_text(stage), n) for stage, n in report.in_collectives.items())
    return b',"collectives":{%b}%b' % (calls, b',"in_collectives":{%b}' % times if times else b"")


def _calls(value: Mapping[str, Any]) -> bytes:
    if len(value) == 2:
        return b'{"count":%d,"digest":%d}' % (value["count"], value["digest"])
    return _LINE.encode(value).encode()


@cache
def _text(name: str) -> bytes:
    return _LINE.encode(name).encode()


def _ends_with_line(path: Path) -> bool:
    with path.open("rb") as file:
        file.seek(-1, os.SEEK_END)
        return file.read(1) == b"\n"


def _template_of(values: Mapping[str, float], number: str) -> str:
    """Returns a mapping as JSON with the format `number` in place of each value."""
    names = [_LINE.encode(name).replace("%", "%%") for name in values]
    return "{" + ",".join(f"{name}:{number}" for name in names) + "}"


@dataclass(slots=True)
class _Tail:
    """The position up to which the events of a process were read."""

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
        self._processes: list[EventFiles] = []
        self._listed = (0, -math.inf)
        """The last change of the folder, and when its files were listed."""

    def new(self) -> Iterator[Event]:
        """Yields the events since the last call, file by file. A line that is still being written waits for
        the next call."""
        for process in self._grown():
            yield from self._events(process)

    def in_order(self) -> Iterator[Event]:
        """Yields the events since the last call, of all files in the order of their times. It needs memory
        for one event of each process, because its events are in order."""
        return heapq.merge(*map(self._events, self._grown()), key=lambda event: event.time)

    def of_steps(self, steps: Container[int]) -> Iterator[Event]:
        """Yields the events since the last call that are metrics or ends of `steps`, or belong to the time
        before a worker's first step. All others are skipped without decoding them."""
        for process in self._grown():
            yield from self._events(process, steps)

    def skip(self) -> None:
        """Skips all events so far."""
        for process in self._files():
            if process.segments:
                path = self._folder / segment_name(process.who, process.segments[-1])
                self._tails[process.who] = _Tail(process.segments[-1], str(path), path.stat().st_size)

    def has_read(self, who: str, segment: int) -> bool:
        """Returns whether all events of a segment, which another one follows, were yielded."""
        return who in self._tails and segment < self._tails[who].segment

    def _files(self) -> list[EventFiles]:
        """Returns the files of all processes. They are listed where the folder has changed, and every second,
        because the clock of a file system may be coarse."""
        try:
            change, now = os.stat(self._folder).st_mtime_ns, time.monotonic()
        except FileNotFoundError:
            return []
        if change != self._listed[0] or now - self._listed[1] > LISTING_S:
            self._processes, self._listed = event_files(self._folder), (change, now)
        return self._processes

    def _grown(self) -> list[EventFiles]:
        """Returns the files of the processes that have written events."""
        tails = self._tails
        return [
            process
            for process in self._files()
            if (tail := tails.get(process.who)) is None
            or tail.segment < process.last
            or size_of(tail.path) > tail.position
        ]

    def _events(self, process: EventFiles, steps: Container[int] | None = None) -> Iterator[Event]:
        names = process.names_from(self._tails[process.who].segment if process.who in self._tails else -1)
        tail = self._tails.setdefault(process.who, _Tail())
        for number, name in names:
            path = f"{self._folder}/{name}"
            if path != tail.path:
                tail.path, tail.position = path, 0
            tail.segment = number
            for line in lines_of(path, tail.position):
                tail.position += len(line)
                if (steps is None or _is_of(line, steps)) and (event := parsed(line)):
                    yield event


def events_of(path: Path) -> Iterator[Event]:
    """Yields the events of one file."""
    return filter(None, map(parsed, lines_of(path)))


_STEP = re.compile(rb'{"name":"(?:metric|step)","group":"[^"]*","rank":\d+,"step":(\d+),')


def _is_of(line: bytes, steps: Container[int]) -> bool:
    found = _STEP.match(line)
    return int(found[1]) in steps if found else line.startswith((b'{"name":"phase"', b'{"name":"ready"'))


def parsed(line: bytes) -> Event | None:
    """Returns the event of a line; None for one that was cut, by a kill or a full disk, or is no event."""
    with suppress(ValueError, TypeError):
        event = Event(**decoded(line.decode()))
        is_right = is_number(event.time) and isinstance(event.value, dict)
        is_right = is_right and {type(event.name), type(event.group), type(event.stage)} == {str}
        return event if is_right and {type(event.rank), type(event.step)} <= {int, type(None)} else None
    return None
