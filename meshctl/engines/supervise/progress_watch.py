"""Watches whether the workers of an attempt advance: reports stalls, stopped processes and stragglers, and
ends an attempt that does not advance.

    watch = ProgressWatch(attempt, nodes, journal, causes)
    watch.add(event, now)               # events of workers
    watch.receive(report)               # what nodes report
    watch.poll(now, is_stopping)        # writes events, and records a cause
"""

from __future__ import annotations

import time

from meshctl.engines.supervise import stalls
from meshctl.engines.supervise.attempt import Attempt
from meshctl.engines.supervise.cause import Causes, Priority
from meshctl.engines.supervise.nodes import Nodes
from meshctl.engines.supervise.reports import Stacks, Standing, Stopped
from meshctl.engines.supervise.stall_report import cause_of, log_stall, report_of, stacks_of
from meshctl.engines.supervise.stalls import Stall, StallWatch
from meshctl.engines.supervise.stopped import StoppedWatch
from meshctl.engines.supervise.stragglers import Stragglers
from meshctl.engines.supervise.wait_graph import name_of
from meshctl.run.events import Event, Journal


class ProgressWatch:
    def __init__(self, attempt: Attempt, nodes: Nodes, journal: Journal, causes: Causes) -> None:
        self._plan, self._log = attempt.plan, attempt.run.stalls
        self._nodes, self._journal, self._causes = nodes, journal, causes
        self._is_debugged = bool(attempt.start.debug)
        """True if somebody debugs a worker, so that no limit holds."""
        self._stalls = StallWatch(attempt.plan, nodes.ask_stacks, is_suspended=self._is_debugged)
        self._stopped = StoppedWatch(attempt.plan.run.patience, stalls.LIMITS.report_s)
        self._stragglers = Stragglers()

    def add(self, event: Event, now: float) -> None:
        self._stalls.add(event, now)
        self._stragglers.add(event)

    def forget(self, group: str) -> None:
        """Forgets the workers of a group, which restarts."""
        self._stalls.forget(group)

    def receive(self, report: Standing | Stacks | Stopped) -> None:
        match report:
            case Standing(workers, moved):
                now = time.monotonic()
                for group, rank, record, seconds in workers:
                    self._stalls.stand(group, rank, record, now - seconds)
                for group, rank in moved:
                    self._stalls.move(group, rank)
            case Stacks(workers=found):
                for group, rank, state in found:
                    self._stalls.answer(group, rank, state)
            case Stopped(node, processes):
                self._stopped.note(node, processes)

    def poll(self, now: float, is_stopping: bool) -> None:
        """`is_stopping`: the workers agree on a last step."""
        for text in self._stragglers.warnings():
            self._journal.write("warning", text=text)
        if self._is_debugged:
            return
        for stall in self._stalls.poll(now, is_stopping):
            if not self._is_of_stopped(stall):
                self._report(stall)
        for worker, seconds in self._stalls.take_continued():
            name = name_of(worker)
            text = f"{name} advances again, after {seconds:.0f} s"
            self._journal.write("stall", workers=[], advanced=[name], seconds=seconds, text=[text])
        if (expired := self._stalls.take_expired()) and not self._is_of_stopped(expired):
            log_stall(self._log, stacks_of(expired))
            cause = cause_of(self._plan, expired, str(self._log))
            self._journal.write("fault", error=cause.line, traceback=cause.traceback, lost=False)
            self._causes.record_cause(cause)
        for line in self._stopped.poll(now, self._nodes.local_pids, self._stalls.advanced):
            self._journal.write("stall", workers=[], seconds=stalls.LIMITS.report_s, text=[line])
        if reason := self._stopped.take_expired():
            self._journal.write("fault", error=reason, traceback="", lost=False)
            self._causes.record(reason, Priority.OWN)

    def _is_of_stopped(self, stall: Stall) -> bool:
        """Returns whether the workers of a stall have ended, or are unknown, and a stopped process has not
        reported it."""
        return self._stopped.has_any and all(one.state in ("", "Z") for one in stall.states.values())

    def _report(self, stall: Stall) -> None:
        text = report_of(self._plan, stall)
        log_stall(self._log, [*text, *stacks_of(stall)])
        self._journal.write(
            "stall",
            step=stall.known.records[stall.workers[0]].step,
            workers=[name_of(worker) for worker in stall.workers],
            seconds=stall.seconds,
            text=text,
        )
