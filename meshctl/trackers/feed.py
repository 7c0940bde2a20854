"""Passes a run to its trackers, each of which is a process beside the launcher.

    feeds = Feeds(run, plan.run.track, path, warn)
    feeds.start()                                   # after the engine has forked
    feeds.on_row(row)                               # returns at once
    feeds.on_end(code, reason)                      # waits for the trackers, within their `patience`

The calls go into a bounded queue for each tracker. A thread sends them one after another, and waits for the
answer to each. So a tracker can be slow, hang, crash or be killed, and the run goes on: it is stopped with a
warning. If the queue is full, the oldest row is left out.
"""

from __future__ import annotations

import json
import math
import os
import select
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
from signal import SIGKILL
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
EXIT_S = 1.0
"""Seconds in which a tracker that has finished must exit."""
FORWARDED = frozenset(
    ("launched", "resumed", "restarted", "stopping", "checkpoint", "warning", "stall", "fault", "media")
)
"""The names of the events that trackers receive."""


class _Stopped(Exception):
    """The reason why a tracker is stopped."""


class Feed:
    """The process of one tracker, the calls that wait for it, and the thread that sends them."""

    def __init__(
        self,
        run: RunDir,
        track: Track,
        path: Sequence[str],
        environ: Mapping[str, str],
        warn: Callable[[str], None],
    ) -> None:
        """Starts the process. Must be called from the main thread, because the process dies with the thread
        that starts it."""
        self.name, self._warn = track.name, warn
        self._log = run.tracker_log(track.name)
        options = dict(track.options)
        self._patience_s = float(options.pop("patience", PATIENCE_S)) or math.inf
        self._waiting = deque[tuple[str, bytes]]()
        """The waiting calls: the method, and the line."""
        self._changed = threading.Condition()
        self._ends_at = math.inf
        self._left_out = 0
        self._connection, self._process = self._started(path, environ)
        self._put("", {"run": str(run.path), "options": options, "path": list(path)})
        self._thread = threading.Thread(target=self._serve, name=f"tracker {self.name}", daemon=True)
        self._thread.start()

    def _started(
        self, path: Sequence[str], environ: Mapping[str, str]
    ) -> tuple[socket.socket, subprocess.Popen[bytes]]:
        ours, theirs = socket.socketpair()
        self._log.parent.mkdir(parents=True, exist_ok=True)
        module = [sys.executable, "-P", "-m", "meshctl.trackers.process"]
        with theirs, self._log.open("ab") as log:
            process = subprocess.Popen(
                [*module, self.name, str(os.getpid()), str(theirs.fileno())],
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=log,
                pass_fds=[theirs.fileno()],
                start_new_session=True,  # Ctrl-C is for the launcher
                env=dict(environ),
            )
        return ours, process

    @property
    def pid(self) -> int:
        return self._process.pid

    def call(self, method: str, *arguments: Any) -> None:
        """Adds a call to the queue, from any thread."""
        self._put(method, [method, *arguments])

    def end(self, code: int, reason: str) -> None:
        """Adds the last call. From now on the tracker has `patience` to take all of them."""
        self._ends_at = time.monotonic() + self._patience_s
        self.call("on_end", code, reason)

    def join(self, seconds: float) -> bool:
        """Waits until the tracker has finished or is stopped, and returns whether it is."""
        self._thread.join(seconds)
        return not self._thread.is_alive()

    def kill(self) -> None:
        """Kills the process and its descendants."""
        below = descendants(self._process.pid)
        self._process.kill()
        for pid in below:
            with suppress(OSError):
                os.kill(pid, SIGKILL)

    def _put(self, method: str, message: Any) -> None:
        line = json.dumps(message, separators=(",", ":")).encode() + b"\n"
        with self._changed:
            self._waiting.append((method, line))
            if is_too_slow := len(self._waiting) > MAX_WAITING:
                rows = (index for index, (name, _) in enumerate(self._waiting) if name == "on_row")
                del self._waiting[next(rows, 0)]
                self._left_out += 1
            self._changed.notify()
        if is_too_slow and self._left_out == 1:
            self._warn(f"tracker `{self.name}` is too slow: rows are left out of it")

    # The thread

    def _serve(self) -> None:
        try:
            self._send_all()
            with suppress(subprocess.TimeoutExpired):
                self._process.wait(EXIT_S)
        except _Stopped as problem:
            self._warn(f"tracker `{self.name}` is stopped: {problem}; log: {self._log}")
        except OSError as error:
            self._warn(f"tracker `{self.name}` is stopped: its process has ended ({error.strerror})")
        if self._left_out:
            self._warn(f"tracker `{self.name}` lacks {counted(self._left_out, 'row')}")
        self.kill()
        self._connection.close()
        with suppress(subprocess.TimeoutExpired):
            self._process.wait(EXIT_S)

    def _send_all(self) -> None:
        method = ""
        while method != "on_end":
            with self._changed:
                self._changed.wait_for(lambda: self._waiting, POLL_S)
                method, line = self._waiting.popleft() if self._waiting else ("", b"")
            if line:
                with suppress(BrokenPipeError, ConnectionResetError):  # its last answer can still be received
                    self._connection.sendall(line)
                self._await_answer()
            elif select.select([self._connection], [], [], 0)[0]:
                raise _Stopped("its process has ended")

    def _await_answer(self) -> None:
        answer, begun = b"", time.monotonic()
        while not answer.endswith(b"\n"):
            if select.select([self._connection], [], [], POLL_S)[0]:
                text = b""
                with suppress(ConnectionResetError):
                    text = self._connection.recv(1 << 16)
                if not text:
                    raise _Stopped("its process has ended")
                answer += text
                continue
            now = time.monotonic()
            if now - begun > self._patience_s:
                raise _Stopped(f"it has not answered for {in_units(self._patience_s)} (its `patience`)")
            if now > self._ends_at:
                raise _Stopped(f"it has not finished within {in_units(self._patience_s)} (its `patience`)")
        if problem := json.loads(answer).get("failed"):
            raise _Stopped(problem)


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

    @property
    def pids(self) -> list[int]:
        """The processes of the trackers that were not stopped."""
        return [feed.pid for feed in self._feeds if not feed.join(0)]

    def start(self) -> Feeds:
        """Starts the processes, and the threads that feed them. Returns the observer."""
        for track in self._tracks:
            try:
                self._feeds.append(Feed(self._run, track, self._path, self._environ, self._warn))
            except OSError as error:
                self._warn(f"tracker `{track.name}` cannot start: {error.strerror}: {error.filename}")
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
        for feed in self._feeds:
            feed.end(code, reason)
        for feed in self._feeds:
            while not feed.join(POLL_S / 5):
                if self._is_hurried():
                    feed.kill()

    def _call(self, method: str, *arguments: Any) -> None:
        for feed in self._feeds:
            feed.call(method, *arguments)


def descendants(pid: int) -> list[int]:
    """Returns the descendants of a process, also after it has ended but was not reaped; none on a system that
    does not list children."""
    found: list[int] = []
    with suppress(OSError):
        for task in Path(f"/proc/{pid}/task").iterdir():
            with suppress(OSError):
                for child in map(int, (task / "children").read_text().split()):
                    found += [child, *descendants(child)]
    return found
