"""Passes a run to its trackers, each of which is a process beside the launcher.

    feeds = Feeds(run, plan.run.track, path, warn)
    feeds.start()                                   # after the engine has forked
    feeds.on_row(row)                               # returns at once
    feeds.on_end(code, reason)                      # waits for the trackers, within their `patience`

The calls go into a bounded queue for each tracker, and a thread sends them. So a tracker can be slow, hang,
crash or be killed, and the run goes on: it is stopped with a warning. If the queue is full, the oldest row is
left out.
"""

from __future__ import annotations

import json
import math
import os
import select
import signal
import socket
import subprocess
import sys
import threading
import time
from collections import deque
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import asdict
from pathlib import Path
from typing import Any

from meshctl.run.directory import RunDir
from meshctl.run.events import Event
from meshctl.run.settings import Track
from meshctl.text.english import counted, in_units

PATIENCE_S = 120.0
"""The `patience` of a tracker whose options do not set it."""
MAX_WAITING = 10_000
"""Maximum number of calls that wait for a tracker."""
POLL_S = 0.5
JUMP_S = 5.0
"""A longer time between two polls means that this process was suspended."""
EXIT_S = 1.0
"""Seconds in which a tracker that has finished must exit."""
FORWARDED = frozenset(
    ("launched", "resumed", "restarted", "stopping", "checkpoint", "warning", "stall", "fault", "media")
)
"""The names of the events that trackers receive."""


class Feed:
    """The process of one tracker, and the calls that wait for it. Only one thread calls it at a time."""

    def __init__(self, run: RunDir, track: Track, path: Sequence[str], environ: Mapping[str, str]) -> None:
        """Starts the process. Must be called from the main thread, because the process dies with the thread
        that starts it."""
        self.name, self._run = track.name, run
        self.log = run.tracker_log(track.name)
        options = dict(track.options)
        self._patience_s = float(options.pop("patience", PATIENCE_S)) or math.inf
        self._waiting = deque[tuple[bool, bytes]]()
        """The waiting calls: whether it is a row, and its line."""
        self._unsent = b""
        """The rest of the line that is being sent."""
        self._answers = b""
        self._open = 0
        """The number of calls without an answer, sent or not."""
        self._since = self._polled = time.monotonic()
        """The times at which the open call began, and of the last poll."""
        self._ends_at = math.inf
        self._left_out = 0
        self.is_over = False
        self.problem = ""
        """The reason that the tracker was stopped; empty if it was not."""
        self.notes: list[str] = []
        """Warnings that were not shown yet."""
        self._connection, self._process, self._pidfd = self._started(path, environ)
        self._put(False, {"run": str(run.path), "options": options, "path": list(path)})

    def _started(
        self, path: Sequence[str], environ: Mapping[str, str]
    ) -> tuple[socket.socket, subprocess.Popen[bytes], int]:
        ours, theirs = socket.socketpair()
        ours.setblocking(False)
        self.log.parent.mkdir(parents=True, exist_ok=True)
        module = [sys.executable, "-P", "-m", "meshctl.trackers.process"]
        with theirs, self.log.open("ab") as log:
            process = subprocess.Popen(
                [*module, self.name, str(os.getpid()), str(theirs.fileno())],
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=log,
                pass_fds=[theirs.fileno()],
                start_new_session=True,  # Ctrl-C is for the launcher
                env=dict(environ),
            )
        return ours, process, os.pidfd_open(process.pid)

    @property
    def pid(self) -> int:
        return self._process.pid

    @property
    def events(self) -> int:
        """The events of the socket that matter now."""
        return select.POLLIN | (select.POLLOUT if self._unsent or self._waiting else 0)

    def fileno(self) -> int:
        return self._connection.fileno()

    def call(self, method: str, *arguments: Any) -> None:
        """Adds a call to the queue. If it is full, the oldest row is left out."""
        if self.is_over:
            return
        self._put(method == "on_row", [method, *arguments])
        if len(self._waiting) > MAX_WAITING:
            row = next((index for index, (is_row, _) in enumerate(self._waiting) if is_row), 0)
            del self._waiting[row]
            self._open -= 1
            self._left_out += 1
            if self._left_out == 1:
                self.notes.append(f"tracker `{self.name}` is too slow: rows are left out of it")

    def _put(self, is_row: bool, message: Any) -> None:
        if not self._open:
            self._since = time.monotonic()
        self._open += 1
        self._waiting.append((is_row, json.dumps(message, separators=(",", ":")).encode() + b"\n"))

    def end(self, code: int, reason: str) -> None:
        """Adds the last call. From now on the tracker has `patience` to take all of them."""
        self._ends_at = time.monotonic() + self._patience_s
        self.call("on_end", code, reason)

    def poll(self) -> None:
        """Sends and receives what is possible at once. Stops a tracker that has failed or does not answer."""
        if self.is_over:
            return
        now = time.monotonic()
        if now - self._polled > JUMP_S:  # the launcher was suspended
            self._since += now - self._polled
        self._polled = now
        try:
            self._send()
            is_open = self._receive(now)
        except OSError as error:
            self._stop(f"its process has ended ({error.strerror})")
            return
        if not is_open:
            self._stop("its process has ended")
        elif self._open and now - self._since > self._patience_s:
            self._stop(f"it has not answered for {in_units(self._patience_s)} (its `patience`)")
        elif now > self._ends_at:
            self._stop(f"it has not finished within {in_units(self._patience_s)} (its `patience`)")

    def _send(self) -> None:
        while self._unsent or self._waiting:
            self._unsent = self._unsent or self._waiting.popleft()[1]
            try:
                self._unsent = self._unsent[self._connection.send(self._unsent) :]
            except BlockingIOError:
                return
            except (BrokenPipeError, ConnectionResetError):  # its earlier answers can still be received
                self._unsent = b""
                return

    def _receive(self, now: float) -> bool:
        """Reads the answers. Returns false if the process has ended without a last one."""
        while True:
            try:
                text = self._connection.recv(1 << 16)
            except BlockingIOError:
                return True
            except ConnectionResetError:
                return False
            if not text:
                return False
            *lines, self._answers = (self._answers + text).split(b"\n")
            for line in lines:
                answer = json.loads(line)
                if "failed" in answer:
                    self._stop(answer["failed"])
                    return True
                self._open, self._since = self._open - 1, now
                if not self._open and self._ends_at < math.inf:
                    self._finish()
                    return True

    def _stop(self, problem: str) -> None:
        self.problem = problem
        self.notes.append(f"tracker `{self.name}` is stopped: {problem}; log: {self.log}")
        self._finish(0.0)

    def _finish(self, exit_s: float = EXIT_S) -> None:
        """Ends the process, after `exit_s` seconds by SIGKILL, and drops the waiting calls. It is reaped
        later."""
        self.is_over, self._open, self._ends_at = True, 0, math.inf
        if self._left_out:
            self.notes.append(f"tracker `{self.name}` lacks {counted(self._left_out, 'row')}")
        self._waiting.clear()
        self._unsent = b""
        if exit_s:
            with suppress(subprocess.TimeoutExpired):
                self._process.wait(exit_s)
        self.kill()
        self._connection.close()
        os.close(self._pidfd)

    def reap(self) -> None:
        """Waits a moment until a process that was killed is gone."""
        with suppress(subprocess.TimeoutExpired):
            self._process.wait(EXIT_S)

    def kill(self) -> None:
        """Kills the process and its descendants."""
        below = descendants(self._process.pid)
        with suppress(ProcessLookupError):
            signal.pidfd_send_signal(self._pidfd, signal.SIGKILL)
        for pid in below:
            with suppress(OSError):
                os.kill(pid, signal.SIGKILL)


class Feeds:
    """All trackers of a run, as one observer."""

    def __init__(
        self,
        run: RunDir,
        tracks: Sequence[Track],
        path: Sequence[str],
        warn: Callable[[str], None],
        is_hurried: Callable[[], bool] = lambda: False,
        environ: Mapping[str, str] = os.environ,
    ) -> None:
        """`path` are the folders in which users' trackers are found, `warn` receives each warning, from any
        thread, and `is_hurried` returns whether the end does not wait for trackers."""
        self._run, self._tracks, self._path = run, tracks, path
        self._warn, self._is_hurried, self._environ = warn, is_hurried, environ
        self._feeds: list[Feed] = []
        self.is_ending = False
        """True if the run is over."""
        self._lock = threading.Lock()
        self._thread: threading.Thread | None = None
        self._woken, self._wakes = os.pipe2(os.O_NONBLOCK | os.O_CLOEXEC)

    @property
    def pids(self) -> list[int]:
        """The processes of the trackers that were not stopped."""
        return [feed.pid for feed in self._feeds if not feed.is_over]

    def start(self) -> Feeds:
        """Starts the processes, and the thread that feeds them. Returns the observer."""
        for track in self._tracks:
            try:
                self._feeds.append(Feed(self._run, track, self._path, self._environ))
            except OSError as error:
                self._warn(f"tracker `{track.name}` cannot start: {error.strerror}: {error.filename}")
        self._thread = threading.Thread(target=self._serve, name="trackers", daemon=True)
        self._thread.start()
        return self

    def on_attempt(self, number: int, step: int | None) -> None:
        self._call("on_attempt", number, step)

    def on_event(self, event: Event) -> None:
        if event.name in FORWARDED:
            self._call("on_event", asdict(event))

    def on_row(self, row: Mapping[str, Any]) -> None:
        self._call("on_row", dict(row))

    def on_end(self, code: int, reason: str) -> None:
        """Waits until every tracker has finished or is stopped."""
        self.is_ending = True
        with self._lock:
            for feed in self._feeds:
                feed.end(code, reason)
        self._wake()
        while self._thread and self._thread.is_alive():
            self._thread.join(POLL_S / 5)
            if self._is_hurried():
                with self._lock:
                    for feed in self._feeds:
                        if not feed.is_over:
                            feed.kill()
                self._wake()
        for feed in self._feeds:
            feed.reap()
        os.close(self._woken)
        os.close(self._wakes)

    def _call(self, method: str, *arguments: Any) -> None:
        with self._lock:
            for feed in self._feeds:
                feed.call(method, *arguments)
        self._wake()

    def _wake(self) -> None:
        with suppress(BlockingIOError):
            os.write(self._wakes, b"x")

    def _serve(self) -> None:
        while feeds := [feed for feed in self._feeds if not feed.is_over]:
            poller = select.poll()
            poller.register(self._woken, select.POLLIN)
            for feed in feeds:
                poller.register(feed.fileno(), feed.events)
            poller.poll(POLL_S * 1000)
            with suppress(BlockingIOError):
                os.read(self._woken, 1 << 12)
            for feed in feeds:
                with self._lock:
                    feed.poll()
                    notes, feed.notes = feed.notes, []
                for text in notes:
                    self._warn(text)


def descendants(pid: int) -> list[int]:
    """Returns the descendants of a process, also after it has ended but was not reaped; none on a system that
    does not list children."""
    found: list[int] = []
    for task in Path(f"/proc/{pid}/task").glob("*"):
        with suppress(OSError):
            for child in map(int, (task / "children").read_text().split()):
                found += [child, *descendants(child)]
    return found
