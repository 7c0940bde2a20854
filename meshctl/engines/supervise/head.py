"""The launcher's part of a run, once its processes have been started: it listens, folds, publishes, ends, and
says why.

    head = Head(plan, run, store, processes, view)
    outcome = head.follow()          # the exit code, and the first cause if there is one

What it says itself, in `events/launcher.jsonl`:

| event | value |
| --- | --- |
| `launched` | `{"attempt": n, "digest": of the plan}`: the processes have been started |
| `resumed` | the same, with `{"path": the checkpoint}`, where the run continues from `step` |
| `stopping` | `{"reason": why}`: an orderly end was asked for, or a failure is being cleaned up |
| `checkpoint` | `{"path": folder}`: all workers have saved `step`, and `latest` is it |
| `fault` | the death of an agent or of the fork server |
| `over` | `{"code": exit code, "reason": the cause or the signal, or empty}` |

An orderly end (a signal, a component's `stop`) lets every worker finish the agreed last step and save. A
second signal, or `plan.run.grace` seconds after the first, ends it at once. After a failure everything gets
SIGTERM, and SIGKILL when the guard's grace is over.
"""

from __future__ import annotations

import math
import select
import signal
import time
from collections import Counter
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from types import FrameType
from typing import Any, Protocol

from meshctl.engines.node import guard
from meshctl.engines.node.guard import name_of
from meshctl.engines.supervise.cause import Cause, Causes, Weight
from meshctl.plan.model import Plan
from meshctl.run.directory import RunDir
from meshctl.run.events import Event, Follower, Journal
from meshctl.run.metrics import Fold, Table
from meshctl.run.shutdown import Asked, Proposer, Store

STOP = "stop"
"""The key, under the attempt's prefix, that asks the agents of programs for an orderly end."""
TOGETHER = 0.2
"""Seconds within which two of the same signal are one: some senders reach a process twice, by its pid and by
its process group."""
POLL = 0.03
"""Seconds between two looks at the events, unless something wakes it earlier."""
FAILED = 5


class View(Protocol):
    """Somebody who watches."""

    def update(self, event: Event) -> None: ...
    def line(self, metrics: Mapping[str, Any]) -> None: ...
    def close(self) -> None: ...


class Steady:
    """A view that may lose its terminal or its pipe: the run goes on, and is written down anyway."""

    def __init__(self, view: View) -> None:
        self._view: View | None = view

    def update(self, event: Event) -> None:
        self._show(lambda view: view.update(event))

    def line(self, metrics: Mapping[str, Any]) -> None:
        self._show(lambda view: view.line(metrics))

    def close(self) -> None:
        self._show(lambda view: view.close())

    def _show(self, what: Callable[[View], None]) -> None:
        if self._view is not None:
            try:
                what(self._view)
            except OSError:
                self._view = None


@dataclass(frozen=True)
class Gone:
    """A process that the engine started, and that has ended."""

    what: str
    """As messages call it, e.g. "the agent of train"."""
    code: int
    log: str = ""


class Processes(Protocol):
    """What an engine started; the head never sees a pid. `files` become readable when one of them ends."""

    def gone(self) -> list[Gone]: ...
    @property
    def running(self) -> bool: ...
    def files(self) -> list[int]: ...
    def terminate(self) -> None: ...
    def kill(self) -> None: ...


@dataclass(frozen=True)
class Outcome:
    code: int
    cause: Cause | None = None


class Signals:
    """Those that ask this process to end, counted; the first is kept for the exit code."""

    NUMBERS = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)

    def __init__(self) -> None:
        self.count = 0
        self._last = 0, -math.inf
        self.first: signal.Signals | None = None

    @contextmanager
    def heard(self) -> Iterator[Signals]:
        before = {number: signal.getsignal(number) for number in self.NUMBERS}
        for number, old in before.items():
            if old is not signal.SIG_IGN:  # nohup means it
                signal.signal(number, self._hear)
        try:
            yield self
        finally:
            for number, old in before.items():
                signal.signal(number, old)

    @property
    def code(self) -> int:
        return 130 if self.first == signal.SIGINT else 143

    def _hear(self, number: int, _: FrameType | None) -> None:
        now = time.monotonic()
        last, when = self._last
        if number != last or now > when + TOGETHER:
            self.count += 1
        self._last = number, now
        self.first = self.first or signal.Signals(number)


class Head:
    def __init__(
        self,
        plan: Plan,
        run: RunDir,
        store: Store,
        proposer: Proposer,
        processes: Processes,
        view: View,
        signals: Signals,
        follower: Follower,
        fold: Fold,
    ) -> None:
        """`store` is under the attempt's prefix; `follower` has passed over what earlier attempts said."""
        self._plan, self._run, self._store, self._proposer = plan, run, store, proposer
        self._processes, self._signals, self._follower, self._fold = processes, signals, follower, fold
        self._view = Steady(view)
        self._journal, self._table = Journal(run.journal("launcher")), Table(run.metrics)
        components = {group.name: group.workers for group in plan.groups if group.program is None}
        self._causes = Causes(frozenset(components), run.log)
        self._workers = sum(components.values())
        self._saved: Counter[int] = Counter()
        self._ready = False
        self._asked = self._signalled = False
        self._cause: Cause | None = None
        self._phase = 0
        """Of ending by force: 0 not yet, 1 SIGTERM was sent, 2 SIGKILL."""
        self._deadline = math.inf
        """When the next phase begins."""

    def follow(self) -> Outcome:
        """Until nothing runs any more."""
        start = self._run.read_start()
        self._say("launched", attempt=start.attempt, digest=self._plan.digest)
        if start.resume:
            self._say("resumed", step=int(start.resume.rpartition("step-")[2]), path=start.resume)
        while self._processes.running:
            self._look()
            self._end_in_order()
            self._end_by_force()
            select.select(self._processes.files(), [], [], POLL)
        self._look()
        self._look()  # what came with the last look is judged by the next
        return self._over()

    # What was said, and what it means

    def _look(self) -> None:
        now = time.monotonic()
        self._causes.judge()
        for gone in self._processes.gone():
            self._bury(gone, now)
        for event in sorted(self._follower.new(), key=lambda event: event.time):
            self._view.update(event)
            self._causes.hear(event, now)
            self._ready = self._ready or event.name == "ready"
            if event.name == "saved" and event.step is not None:
                self._publish(event.step)
            for line in self._fold.add(event):
                self._table.write(line)
                self._view.line(line)

    def _bury(self, gone: Gone, now: float) -> None:
        if self._phase or gone.code == 0:
            return
        weight = Weight.OWN if gone.code < 0 else Weight.ECHO
        error = f"{gone.what}: {name_of(gone.code)}"
        self._journal.say("fault", error=error, traceback="", lost=weight is Weight.ECHO)
        self._causes.blame(error, weight, now, gone.log)

    def _publish(self, step: int) -> None:
        self._saved[step] += 1
        checkpoint = self._plan.run.checkpoint
        if self._saved[step] == self._workers and checkpoint is not None:
            self._run.publish_checkpoint(step, checkpoint.keep)
            self._say("checkpoint", step=step, path=str(self._run.checkpoint(step)))

    # How it ends

    def _end_in_order(self) -> None:
        if self._phase:
            return
        if self._signals.first and not self._signalled:
            self._signalled = True
            self._stop(Asked(self._signals.first.name))
            self._deadline = (
                time.monotonic() + self._plan.run.grace if self._ready or not self._workers else 0.0
            )
        while asked := self._proposer.asked() if self._workers else None:
            self._stop(asked)
        if self._asked and self._workers:
            self._proposer.poll()

    def _stop(self, asked: Asked) -> None:
        if asked.ended is None:
            self._say("stopping", reason=asked.reason)
            self._store.set(STOP, asked.reason)
        self._asked = True
        if self._workers:
            self._proposer.propose(asked)

    def _end_by_force(self) -> None:
        now = time.monotonic()
        if self._cause is None and not self._phase and (cause := self._causes.settled(now)):
            self._cause = cause
            self._say("stopping", reason=cause.line)
            self._deadline = now
        if self._signals.count > 1 and self._phase < 2:
            self._phase = 1
            self._deadline = now
        if now < self._deadline:
            return
        self._phase += 1
        if self._phase == 1:
            self._processes.terminate()
            self._deadline = now + guard.GRACE + 0.5
        else:
            self._processes.kill()
            self._deadline = now + guard.GRACE

    def _over(self) -> Outcome:
        first = self._signals.first
        if cause := self._cause or (None if self._phase else self._causes.best):
            outcome, reason = Outcome(FAILED, cause), cause.line
        else:
            outcome, reason = Outcome(self._signals.code if first else 0), first.name if first else ""
        self._say("over", code=outcome.code, reason=reason)
        self._view.close()
        self._journal.close()
        self._table.close()
        return outcome

    def _say(self, name: str, *, step: int | None = None, **value: Any) -> None:
        """Heard by the view with everything else, when the events are next read."""
        self._journal.say(name, step=step, **value)
